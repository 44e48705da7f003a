"""Requests to partition leaders: the open transactions in partitions (KIP-664).

A coordinator knows the transaction of a transactional id. A partition knows the producers that
have written to it in a transaction that has not ended there. If no coordinator knows such a
transaction, it hangs. This module must not print.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.cli.broker_requests import BrokerRequests, check_error_code, retry_transient
from tidemill.cli.client import TopicPartitionKey
from tidemill.cli.transaction.coordinators import (
    Description,
    describe_transactions,
    list_transactions,
    now_ms,
)
from tidemill.kafka_client.settings import Address

WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 27, 61
MARKER_VERSIONS = range(1, 2)
FIRST_VERSION = range(1)


@dataclass(frozen=True)
class OpenWrite:
    """A producer that has written to a partition in a transaction that has not ended there.

    Attributes:
        first_offset: the first offset of its transaction in this partition.
        last_write_ms: the timestamp of its last batch; None if unknown.
        owner: the transactional id; None if no coordinator knows the transaction, so it hangs.
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
    def key(self) -> TopicPartitionKey:
        """The partition."""
        return self.topic, self.partition

    @property
    def idle_ms(self) -> int | None:
        """The time since its last write, by this machine's clock, or None if unknown."""
        return None if self.last_write_ms is None else max(now_ms() - self.last_write_ms, 0)


def open_writes(
    requests: BrokerRequests, partitions: Collection[TopicPartitionKey]
) -> list[OpenWrite]:
    """Return the open transactions in the partitions, with their transactional ids."""
    found = _open_writes(requests, partitions)
    known = _owners(requests, found)
    suspects = [each for each in found if _owner(known, each) is None]
    if suspects:  # they may have ended between the two requests, so ask again
        still = {
            _identity(each) for each in _open_writes(requests, {each.key for each in suspects})
        }
        found = [each for each in found if each not in suspects or _identity(each) in still]
        known = _owners(requests, found)
    return [replace(each, owner=_owner(known, each)) for each in found]


def _identity(write: OpenWrite) -> tuple[TopicPartitionKey, int, int]:
    return write.key, write.producer_id, write.first_offset


def _owner(known: Collection[Description], write: OpenWrite) -> Description | None:
    return next(
        (
            each
            for each in known
            if each.producer_id == write.producer_id
            and each.is_open
            and write.key in each.partitions
        ),
        None,
    )


def _owners(requests: BrokerRequests, writes: Sequence[OpenWrite]) -> list[Description]:
    """Return the transactional ids of the producers."""
    producers = {each.producer_id for each in writes}
    if not producers:
        return []
    listed = list_transactions(requests, producer_ids=producers)
    return describe_transactions(requests, [each.transactional_id for each in listed])


def _open_writes(
    requests: BrokerRequests, partitions: Collection[TopicPartitionKey]
) -> list[OpenWrite]:
    by_leader: dict[Address, dict[str, list[int]]] = {}
    for (topic, partition), leader in retry_transient(lambda: requests.leaders(partitions)).items():
        by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
    found: list[OpenWrite] = []
    for broker, topics in by_leader.items():
        request = {
            "topics": [{"name": t, "partition_indexes": indexes} for t, indexes in topics.items()]
        }

        def call(broker: Address = broker, request: dict[str, Any] = request) -> list[OpenWrite]:
            answer = requests.ask(broker, DESCRIBE_PRODUCERS, FIRST_VERSION, request)
            return [
                write
                for topic in answer["topics"]
                for partition in topic["partitions"]
                for write in _of_partition(topic["name"], partition)
            ]

        found += retry_transient(call)
    return sorted(found, key=lambda each: (each.key, each.first_offset))


def _of_partition(topic: str, partition: dict[str, Any]) -> list[OpenWrite]:
    number = partition["partition_index"]
    check_error_code(
        partition["error_code"], f"{topic} partition {number}", partition["error_message"]
    )
    return [
        OpenWrite(
            topic=topic,
            partition=number,
            producer_id=each["producer_id"],
            producer_epoch=each["producer_epoch"],
            coordinator_epoch=each["coordinator_epoch"],
            first_offset=each["current_txn_start_offset"],
            last_write_ms=each["last_timestamp"] if each["last_timestamp"] >= 0 else None,
        )
        for each in partition["active_producers"]
        if each["current_txn_start_offset"] >= 0
    ]


def abort_write(requests: BrokerRequests, write: OpenWrite) -> None:
    """Write an abort marker for a producer into one partition, without a coordinator."""
    request = {
        "markers": [
            {
                "producer_id": write.producer_id,
                "producer_epoch": write.producer_epoch,
                "transaction_result": False,
                "topics": [{"name": write.topic, "partition_indexes": [write.partition]}],
                # -1 means that this producer has no marker here yet.
                "coordinator_epoch": max(write.coordinator_epoch, 0),
            }
        ]
    }
    leader = requests.leaders([write.key])[write.key]
    answer = requests.ask(leader, WRITE_TXN_MARKERS, MARKER_VERSIONS, request)
    for marker in answer["markers"]:
        for topic in marker["topics"]:
            for partition in topic["partitions"]:
                subject = f"{write.topic} partition {write.partition}"
                check_error_code(partition["error_code"], subject)
