"""Requests about share groups, which the client library leaves out (KIP-932).

This module must not print. It knows nothing of the members' records, which no request shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli.broker_requests import BrokerRequests, check_error_code, retry_transient
from tidemill.cli.client import Cluster, PartitionOffsets, TopicPartitionKey
from tidemill.cli.group.requests import describe_group, is_dead, state_text
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.kafka_client.errors import UnsupportedSettingError
from tidemill.kafka_client.settings import Address
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.state.errors import GroupIdNotFoundError

LIST_GROUPS = 16
SHARE_GROUP_DESCRIBE = 77
DESCRIBE_OFFSETS, ALTER_OFFSETS = 90, 91
_WITH_TYPES = range(5, 6)
_DESCRIBE_VERSIONS, _OFFSET_VERSIONS, _ALTER_VERSIONS = range(1, 2), range(2), range(1)


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


@dataclass(frozen=True)
class ShareStart:
    """A share group's place in a partition; None if unknown.

    All records before ``start`` are finished, and ``lag`` records are not finished.
    """

    start: int | None = None
    lag: int | None = None


def list_share_groups(cluster: Cluster) -> list[ShareGroup]:
    """Return all share groups; none where the cluster has no such groups, or needs Kerberos
    or OAUTHBEARER.
    """
    try:
        requests = BrokerRequests(cluster)
    except UnsupportedSettingError:
        return []
    with requests:
        try:
            return [
                group for broker in requests.brokers().values() for group in _at(requests, broker)
            ]
        except UnsupportedVersionError:
            return []


def _at(requests: BrokerRequests, broker: Address) -> Iterator[ShareGroup]:
    """Yield the share groups that a broker coordinates."""

    def listed() -> list[str]:
        tree: dict[str, list[str]] = {"states_filter": [], "types_filter": []}
        response = requests.ask(broker, LIST_GROUPS, _WITH_TYPES, tree)
        check_error_code(response["error_code"], "groups")
        return [
            group["group_id"]
            for group in response["groups"]
            if group["group_type"].lower() == "share"
        ]

    names = retry_transient(listed)
    if not names:
        return
    for group in _describe(requests, broker, names):
        try:
            check_error_code(group["error_code"], group["group_id"], group["error_message"])
        except GroupIdNotFoundError:
            continue  # deleted since
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
        requests = BrokerRequests(cluster)
    except UnsupportedSettingError:
        return None
    with requests:
        coordinator = requests.group_coordinator(group_id)

        def ask() -> ShareGroup:
            (group,) = _describe(requests, coordinator, [group_id])
            check_error_code(group["error_code"], f"group {group_id}", group["error_message"])
            return _share_group(group)

        try:
            return retry_transient(ask)
        except (GroupIdNotFoundError, UnsupportedVersionError):
            return None


def _describe(
    requests: BrokerRequests, broker: Address, names: Sequence[str]
) -> list[dict[str, Any]]:
    tree = {"group_ids": names, "include_authorized_operations": False}
    response = requests.ask(broker, SHARE_GROUP_DESCRIBE, _DESCRIBE_VERSIONS, tree)
    return list(response["groups"])


def _share_group(group: Mapping[str, Any]) -> ShareGroup:
    return ShareGroup(
        group["group_id"],
        state_text(group["group_state"]),
        group["group_epoch"],
        group["assignment_epoch"],
        group["assignor_name"],
        tuple(_member(member) for member in group["members"]),
    )


def _member(member: Mapping[str, Any]) -> ShareMember:
    partitions = sorted(
        (topic["topic_name"], partition)
        for topic in member["assignment"]["topic_partitions"]
        for partition in topic["partitions"]
    )
    return ShareMember(
        member["member_id"],
        member["client_id"],
        member["client_host"],
        member["member_epoch"],
        tuple(sorted(member["subscribed_topic_names"])),
        tuple(f"{topic}-{partition}" for topic, partition in partitions),
    )


def share_starts(cluster: Cluster, group_id: str) -> dict[TopicPartitionKey, ShareStart]:
    """Return where a share group is, by partition."""
    tree = {"groups": [{"group_id": group_id, "topics": None}]}
    with BrokerRequests(cluster) as requests:
        coordinator = requests.group_coordinator(group_id)

        def ask() -> dict[str, Any]:
            response = requests.ask(coordinator, DESCRIBE_OFFSETS, _OFFSET_VERSIONS, tree)
            group: dict[str, Any] = response["groups"][0]
            check_error_code(group["error_code"], f"group {group_id}", group["error_message"])
            return group

        group = retry_transient(ask)
    found: dict[TopicPartitionKey, ShareStart] = {}
    for topic in group["topics"]:
        for each in topic["partitions"]:
            key = topic["topic_name"], each["partition_index"]
            found[key] = ShareStart(_known(each["start_offset"]), _known(each.get("lag", -1)))
    return found


def _known(value: int) -> int | None:
    return value if value >= 0 else None


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
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), start in starts.items():
        entry = {"partition_index": partition, "start_offset": start}
        topics.setdefault(topic, []).append(entry)
    tree = {
        "group_id": group_id,
        "topics": [{"topic_name": name, "partitions": parts} for name, parts in topics.items()],
    }
    with BrokerRequests(cluster) as requests:
        coordinator = requests.group_coordinator(group_id)

        def ask() -> None:
            response = requests.ask(coordinator, ALTER_OFFSETS, _ALTER_VERSIONS, tree)
            check_error_code(response["error_code"], f"group {group_id}", response["error_message"])
            for topic in response["responses"]:
                for each in topic["partitions"]:
                    subject = f"{topic['topic_name']} partition {each['partition_index']}"
                    check_error_code(each["error_code"], subject, each["error_message"])

        retry_transient(ask)
