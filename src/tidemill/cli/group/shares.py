"""Requests about share groups, which the client library leaves out (KIP-932).

This module must not print. It knows nothing of the members' records, which no request shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster, PartitionOffsets, TopicPartitionKey
from tidemill.cli.group.requests import describe_group, is_dead, state_text
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.kafka_client.admin import share_groups
from tidemill.kafka_client.admin.requests import BrokerRequests, check_error_code, retry_transient
from tidemill.kafka_client.admin.share_groups import ShareStart
from tidemill.kafka_client.errors import (
    RefusedError,
    RequestNotSupportedError,
    UnsupportedSettingError,
)
from tidemill.kafka_client.settings import Address

LIST_GROUPS = 16
SHARE_GROUP_DESCRIBE = 77
_WITH_TYPES, _DESCRIBE_VERSIONS = (5, 5), (1, 1)
_GROUP_ID_NOT_FOUND = 69
_NOT_SUPPORTED = 35


@dataclass(frozen=True)
class ShareMember:
    """A member of a share group. ``partitions`` are as ``topic-partition``."""

    member_id: str
    client_id: str
    host: str
    epoch: int
    topics: tuple[str, ...]
    partitions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the member for JSON."""
        return {
            "member": self.member_id,
            "client": self.client_id,
            "host": self.host,
            "epoch": self.epoch,
            "topics": list(self.topics),
            "partitions": list(self.partitions),
        }


@dataclass(frozen=True)
class ShareGroup:
    """A share group. The names are those of confluent-kafka's ``ConsumerGroupDescription``."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    partition_assignor: str
    members: tuple[ShareMember, ...]


def list_share_groups(cluster: Cluster) -> list[ShareGroup]:
    """Return all share groups; none where the cluster has no such groups, or needs Kerberos
    or OAUTHBEARER.
    """
    try:
        requests = requests_to(cluster)
    except UnsupportedSettingError:
        return []
    with requests:
        try:
            return [
                group for broker in requests.brokers().values() for group in _at(requests, broker)
            ]
        except RequestNotSupportedError:
            return []
        except RefusedError as error:
            if error.code == _NOT_SUPPORTED:
                return []
            raise


def _at(requests: BrokerRequests, broker: Address) -> Iterator[ShareGroup]:
    """Yield the share groups that a broker coordinates."""

    def listed() -> list[str]:
        tree: dict[str, list[str]] = {"states_filter": [], "types_filter": []}
        response = requests.ask(broker, LIST_GROUPS, _WITH_TYPES, tree)
        check_error_code(response.error_code, "groups")
        return [each.group_id for each in response.groups if each.group_type.lower() == "share"]

    names = retry_transient(listed)
    if not names:
        return
    for group in _describe(requests, broker, names):
        if group.error_code != _GROUP_ID_NOT_FOUND:  # not deleted since
            check_error_code(group.error_code, group.group_id, group.error_message)
            yield _share_group(group)


def find_group(cluster: Cluster, group_id: str) -> Any:
    """Return a group of any kind: a ``ShareGroup``, or confluent-kafka's description.

    A group that does not exist has a description whose state is dead.
    """
    description = describe_group(cluster, group_id)
    if not is_dead(description):
        return description
    return _find_share_group(cluster, group_id) or description


def _find_share_group(cluster: Cluster, group_id: str) -> ShareGroup | None:
    try:
        requests = requests_to(cluster)
    except UnsupportedSettingError:
        return None
    with requests:
        coordinator = requests.group_coordinator(group_id)

        def ask() -> ShareGroup:
            (group,) = _describe(requests, coordinator, [group_id])
            check_error_code(group.error_code, f"group {group_id}", group.error_message)
            return _share_group(group)

        try:
            return retry_transient(ask)
        except RequestNotSupportedError:
            return None
        except RefusedError as error:
            if error.code in (_GROUP_ID_NOT_FOUND, _NOT_SUPPORTED):
                return None
            raise


def _describe(requests: BrokerRequests, broker: Address, names: Sequence[str]) -> Sequence[Any]:
    tree = {"group_ids": names, "include_authorized_operations": False}
    response = requests.ask(broker, SHARE_GROUP_DESCRIBE, _DESCRIBE_VERSIONS, tree)
    groups: Sequence[Any] = response.groups
    return groups


def _share_group(group: Any) -> ShareGroup:
    return ShareGroup(
        group.group_id,
        state_text(group.group_state),
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name,
        tuple(_member(member) for member in group.members),
    )


def _member(member: Any) -> ShareMember:
    partitions = sorted(
        (topic.topic_name, partition)
        for topic in member.assignment.topic_partitions
        for partition in topic.partitions
    )
    return ShareMember(
        member.member_id,
        member.client_id,
        member.client_host,
        member.member_epoch,
        tuple(sorted(member.subscribed_topic_names)),
        tuple(f"{topic}-{partition}" for topic, partition in partitions),
    )


def share_starts(cluster: Cluster, group_id: str) -> dict[TopicPartitionKey, ShareStart]:
    """Return where a share group is, by partition."""
    with requests_to(cluster) as requests:
        coordinator = requests.group_coordinator(group_id)
        found = retry_transient(
            lambda: share_groups.share_starts(requests, coordinator, [group_id])
        )
    return found[group_id]


def known_starts(cluster: Cluster, group_id: str) -> dict[TopicPartitionKey, int]:
    """Return the start offsets of a share group, of the partitions that have one."""
    starts = share_starts(cluster, group_id)
    return {key: each.start for key, each in starts.items() if each.start is not None}


def held_offsets(
    cluster: Cluster, keys: Iterable[TopicPartitionKey]
) -> dict[TopicPartitionKey, PartitionOffsets]:
    """Return the offsets that partitions hold. Those of deleted topics are left out."""
    found: dict[TopicPartitionKey, PartitionOffsets] = {}
    for topic in sorted({topic for topic, _ in keys}):
        try:
            found.update(cluster.offsets(cluster.partitions(topic)))
        except UnknownTopicOrPartitionError:
            continue
    return found


def move_starts(cluster: Cluster, group_id: str, starts: Mapping[TopicPartitionKey, int]) -> None:
    """Move the start offsets of a share group. What was delivered is forgotten."""
    with requests_to(cluster) as requests:
        share_groups.move_share_starts(requests, group_id, starts)
