"""Ask for the epochs of a group with the consumer protocol, which the client library leaves out.

This module must not print.
"""

from __future__ import annotations

from typing import Any

from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.group.requests import Epochs, is_consumer_group
from tidemill.kafka_client.admin.requests import check_error_code, retry_transient
from tidemill.kafka_client.errors import UnsupportedSettingError

CONSUMER_GROUP_DESCRIBE = 69
VERSIONS = (0, 1)
_CLASSIC = 0


def group_epochs(cluster: Cluster, description: Any) -> Epochs | None:
    """Return the epochs; None for a classic group, and with Kerberos or OAUTHBEARER."""
    if not is_consumer_group(description):
        return None
    try:
        requests = requests_to(cluster)
    except UnsupportedSettingError:
        return None
    group_id = description.group_id
    with requests:
        coordinator = requests.group_coordinator(group_id)
        request = {"group_ids": [group_id], "include_authorized_operations": False}

        def ask() -> Any:
            answer = requests.ask(coordinator, CONSUMER_GROUP_DESCRIBE, VERSIONS, request)
            (group,) = answer.groups
            check_error_code(group.error_code, f"group {group_id}", group.error_message)
            return group

        group = retry_transient(ask)
    return Epochs(
        group.group_epoch,
        group.assignment_epoch,
        {member.member_id: _member(member) for member in group.members},
    )


def _member(member: Any) -> dict[str, Any]:
    kind = getattr(member, "member_type", -1)
    target = sorted(
        f"{topic.topic_name}-{partition}"
        for topic in member.target_assignment.topic_partitions
        for partition in topic.partitions
    )
    protocol = None if kind < 0 else "classic" if kind == _CLASSIC else "consumer"
    return {"protocol": protocol, "epoch": member.member_epoch, "target": target}
