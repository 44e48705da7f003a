"""Asks for the start offsets of share groups, and moves them (KIP-932)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.kafka_client.admin.requests import (
    BrokerRequests,
    Place,
    Report,
    check_error_code,
    raise_refusal,
    retry_transient,
)
from tidemill.kafka_client.settings import Address

DESCRIBE_SHARE_OFFSETS, ALTER_SHARE_OFFSETS = 90, 91


@dataclass(frozen=True, slots=True)
class ShareStart:
    """The place of a share group in a partition.

    Attributes:
        start: All records before this offset are finished; None if unknown.
        lag: How many records are not finished; None if unknown.
    """

    start: int | None = None
    lag: int | None = None


def share_starts(
    requests: BrokerRequests,
    coordinator: Address,
    groups: Sequence[str],
    *,
    report: Report = raise_refusal,
) -> dict[str, dict[Place, ShareStart]]:
    """Return where share groups are, by partition.

    Args:
        report: Gets the errors of groups and partitions, which are left out.
    """
    tree = {"groups": [{"group_id": group, "topics": None} for group in groups]}
    answer = requests.ask(coordinator, DESCRIBE_SHARE_OFFSETS, (0, 1), tree)
    found: dict[str, dict[Place, ShareStart]] = {}
    for group in answer.groups:
        subject = f"group {group.group_id}"
        if not check_error_code(group.error_code, subject, group.error_message, report=report):
            continue
        found[group.group_id] = {
            (topic.topic_name, each.partition_index): ShareStart(
                _known(each.start_offset), _known(getattr(each, "lag", -1))
            )
            for topic in group.topics
            for each in topic.partitions
        }
    return found


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def move_share_starts(requests: BrokerRequests, group: str, starts: Mapping[Place, int]) -> None:
    """Set where a share group without members starts. What it has delivered is forgotten.

    Raises:
        RefusedError: The broker refuses the group or a partition.
    """
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), start in starts.items():
        entry = {"partition_index": partition, "start_offset": start}
        topics.setdefault(topic, []).append(entry)
    tree = {
        "group_id": group,
        "topics": [{"topic_name": name, "partitions": each} for name, each in topics.items()],
    }
    coordinator = requests.group_coordinator(group)

    def ask() -> None:
        answer = requests.ask(coordinator, ALTER_SHARE_OFFSETS, (0, 0), tree)
        check_error_code(answer.error_code, f"group {group}", answer.error_message)
        for topic in answer.responses:
            for each in topic.partitions:
                subject = f"{topic.topic_name} partition {each.partition_index}"
                check_error_code(each.error_code, subject, each.error_message)

    retry_transient(ask)
