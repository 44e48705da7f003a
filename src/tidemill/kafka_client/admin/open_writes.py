"""Asks leaders for the open transactions in partitions, and ends those that hang (KIP-664).

A coordinator knows the transaction of a transactional id. A partition knows the producers that
have written to it in a transaction that has not ended there. If no coordinator knows such a
transaction, it hangs, and only a marker ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.kafka_client.admin.requests import (
    BrokerRequests,
    Place,
    Report,
    by_leader,
    by_topic,
    check_error_code,
    raise_refusal,
    retry_transient,
)
from tidemill.kafka_client.admin.transactions import (
    Description,
    describe_listed,
    list_transactions,
    now_ms,
)
from tidemill.kafka_client.settings import Address

WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 27, 61


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """A producer that has written to a partition in a transaction that has not ended there.

    Attributes:
        first_offset: The first offset of its transaction in this partition.
        last_write_ms: The timestamp of its last batch; None if unknown.
        owner: The transactional id; None if no coordinator knows the transaction, so it hangs.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_write_ms: int | None
    owner: Description | None = None

    @property
    def key(self) -> Place:
        """The partition."""
        return self.topic, self.partition

    @property
    def idle_ms(self) -> int | None:
        """The time since its last write, by this machine's clock, or None if unknown."""
        return None if self.last_write_ms is None else max(now_ms() - self.last_write_ms, 0)


def open_writes(
    requests: BrokerRequests, places: Collection[Place], *, report: Report = raise_refusal
) -> list[OpenWrite]:
    """Return the open transactions in partitions, with their transactional ids.

    Args:
        report: Gets the errors of partitions, which are left out.
    """
    found = _open_writes(requests, places, report)
    known = _owners(requests, found)
    suspects = [each for each in found if _owner(known, each) is None]
    if suspects:  # they may have ended between the two requests, so ask again
        again = _open_writes(requests, {each.key for each in suspects}, report)
        still = {_identity(each) for each in again}
        hanging = {_identity(each) for each in suspects}
        found = [e for e in found if _identity(e) not in hanging or _identity(e) in still]
        known = _owners(requests, found)
    return [replace(each, owner=_owner(known, each)) for each in found]


def _identity(write: OpenWrite) -> tuple[Place, int, int]:
    return write.key, write.producer_id, write.first_offset


Owners = dict[tuple[int, Place], Description]


def _owner(known: Owners, write: OpenWrite) -> Description | None:
    return known.get((write.producer_id, write.key))


def _owners(requests: BrokerRequests, writes: Sequence[OpenWrite]) -> Owners:
    """Return the open transactions of the producers, by producer id and partition."""
    producers = {each.producer_id for each in writes}
    if not producers:
        return {}
    described = describe_listed(requests, list_transactions(requests, producer_ids=producers))
    return {
        (each.producer_id, place): each
        for each in described
        if each.is_open
        for place in each.partitions
    }


def _open_writes(
    requests: BrokerRequests, places: Collection[Place], report: Report
) -> list[OpenWrite]:
    if not places:
        return []
    found: list[OpenWrite] = []
    leaders = retry_transient(lambda: requests.leaders(places, report=report))
    for leader, led in by_leader(leaders).items():
        topics = [{"name": name, "partition_indexes": each} for name, each in by_topic(led).items()]

        def ask(leader: Address = leader, topics: Any = topics) -> list[OpenWrite]:
            answer = requests.ask(leader, DESCRIBE_PRODUCERS, (0, 0), {"topics": topics})
            return [
                write
                for topic in answer.topics
                for partition in topic.partitions
                for write in _of_partition(topic.name, partition, report)
            ]

        found += retry_transient(ask)
    return sorted(found, key=lambda each: (each.key, each.first_offset))


def _of_partition(topic: str, partition: Any, report: Report) -> list[OpenWrite]:
    number = partition.partition_index
    subject = f"{topic} partition {number}"
    if not check_error_code(partition.error_code, subject, partition.error_message, report=report):
        return []
    return [
        OpenWrite(
            topic=topic,
            partition=number,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
            first_offset=each.current_txn_start_offset,
            last_write_ms=each.last_timestamp if each.last_timestamp >= 0 else None,
        )
        for each in partition.active_producers
        if each.current_txn_start_offset >= 0
    ]


def abort_write(requests: BrokerRequests, write: OpenWrite) -> None:
    """Write an abort marker for a producer into one partition, without a coordinator.

    Raises:
        RefusedError: The broker refuses, or the partition has no leader.
    """
    marker = {
        "producer_id": write.producer_id,
        "producer_epoch": write.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": write.topic, "partition_indexes": [write.partition]}],
        # -1 means that this producer has no marker here yet.
        "coordinator_epoch": max(write.coordinator_epoch, 0),
    }
    leader = requests.leaders([write.key])[write.key]
    answer = requests.ask(leader, WRITE_TXN_MARKERS, (1, 1), {"markers": [marker]})
    for each in answer.markers:
        for topic in each.topics:
            for partition in topic.partitions:
                subject = f"{write.topic} partition {write.partition}"
                check_error_code(partition.error_code, subject)
