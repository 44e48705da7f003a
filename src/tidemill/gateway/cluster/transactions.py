"""Transactions that are open, what they hold back, and their end (KIP-664).

A look sends a fixed number of requests to each broker, none for a single transaction or partition.
Readers with ``read_committed`` stop at the last stable offset of a partition, which is before the
first open transaction. A write that no coordinator knows hangs: only a marker ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.errors import StateConflictError, TidemillError
from tidemill.gateway.cluster.asking import TRANSACTION, Asker, check
from tidemill.gateway.cluster.requests import state_text
from tidemill.kafka_client.settings import Address

LIST_OFFSETS, INIT_PRODUCER_ID, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 2, 22, 27, 61
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
KEPT_S = 4.0
"""How long a look is shown again."""
HANGS_MS = 60_000
"""A write without a transaction that is older hangs: its coordinator has forgotten it."""
MOST_OPEN = 5000
"""Transactions that are described, of each coordinator."""
MOST_HELD = 2000
"""Partitions of each leader whose producers are asked for."""
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_INVALID_TIMEOUT = 50

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Open:
    """A transaction that is open or being ended.

    Attributes:
        started_ms: When it began; None if unknown.
        partitions: What it has written to; while it is being ended, what has no marker yet.
        held: Records that readers with ``read_committed`` don't get because of it.
    """

    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[Place, ...]
    held: int = 0

    @property
    def open_s(self) -> float | None:
        """The seconds since it began; None if unknown."""
        if self.started_ms is None:
            return None
        return max(0.0, time.time() - self.started_ms / 1000)


@dataclass(frozen=True, slots=True)
class Hanging:
    """A write in a partition that no transaction ends.

    Attributes:
        first_offset: Where readers stop.
        last_write_ms: When the producer wrote last; None if unknown.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_write_ms: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """All of them at one moment, and what could not be found out.

    Attributes:
        held: By partition that has open transactions, the records behind the last stable offset.
    """

    at_ms: int
    open: Sequence[Open]
    hanging: Sequence[Hanging]
    held: Mapping[Place, int]
    problems: Sequence[str] = field(default_factory=tuple)


class Transactions:
    """The transactions of a cluster, as one user sees them."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._lock = asyncio.Lock()
        self._kept: tuple[float, Look] | None = None

    @property
    def latest(self) -> Look | None:
        """The last look, which can be old; None without one. It asks for nothing."""
        return None if self._kept is None else self._kept[1]

    async def look(self) -> Look:
        """Return what is open.

        Raises:
            TidemillError: no broker answers, or it does not report transactions.
        """
        async with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > KEPT_S:
                found = await asyncio.to_thread(_look, self._kafka)
                self._kept = time.monotonic(), found
            return self._kept[1]

    async def abort(self, transactional_id: str, producer_id: int) -> None:
        """Abort an open transaction, and fence its producer.

        Args:
            producer_id: the producer that was shown: another transaction is not ended.

        Raises:
            StateConflictError: the transaction has ended.
            NotAllowedError: the user must not do it.
        """
        await asyncio.to_thread(_abort, self._kafka, transactional_id, producer_id)
        self._kept = None

    async def abort_hanging(self, topic: str, partition: int, producer_id: int) -> None:
        """Write a marker that ends a hanging write.

        Raises:
            StateConflictError: the write has ended.
            NotAllowedError: the user must not do it.
        """
        self._kept = None
        look = await self.look()
        place = (topic, partition, producer_id)
        found = [e for e in look.hanging if (e.topic, e.partition, e.producer_id) == place]
        if not found:
            raise StateConflictError("this write has ended, or does not hang")
        await asyncio.to_thread(_end, self._kafka, found[0])
        self._kept = None


# --- in a thread ---------------------------------------------------------------------------------


def _look(kafka: Kafka) -> Look:
    problems: list[str] = []
    at_ms = time.time_ns() // 1_000_000
    with Asker(kafka) as asker:
        metadata = asker.metadata()
        addresses = {each.node_id: Address(each.host, each.port) for each in metadata.brokers}
        found = [each for address in addresses.values() for each in _open(asker, address, problems)]
        leaders = _leaders(metadata, addresses)
        stable = _offsets(asker, leaders, committed=True)
        ends = _offsets(asker, leaders, committed=False)
        held = {
            place: ends[place] - offset
            for place, offset in stable.items()
            if ends.get(place, -1) > offset >= 0
        }
        writes = _writes(asker, leaders, held, problems)
    owned = {(each.producer_id, place) for each in found for place in each.partitions}
    hanging = [
        each
        for each in writes
        if (each.producer_id, (each.topic, each.partition)) not in owned
        and each.last_write_ms is not None
        and at_ms - each.last_write_ms > HANGS_MS
    ]
    first = {(each.producer_id, each.topic, each.partition): each.first_offset for each in writes}

    def held_by(each: Open) -> int:
        return sum(
            max(0, ends[place] - first[each.producer_id, *place])
            for place in each.partitions
            if (each.producer_id, *place) in first
        )

    rows = [replace(each, held=held_by(each)) for each in found]
    return Look(at_ms, rows, hanging, held, tuple(dict.fromkeys(problems)))


def _open(asker: Asker, address: Address, problems: list[str]) -> list[Open]:
    """Return the open transactions that a broker coordinates."""
    tree = {
        "state_filters": list(_OPEN),
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }
    answer = asker.ask(address, LIST_TRANSACTIONS, (0, 2), tree)
    check(answer.error_code, "transactions")
    ids = [each.transactional_id for each in answer.transaction_states]
    if len(ids) > MOST_OPEN:
        problems.append(f"Only {MOST_OPEN} of {len(ids)} open transactions are shown.")
    if not ids:
        return []
    tree = {"transactional_ids": ids[:MOST_OPEN]}
    answer = asker.ask(address, DESCRIBE_TRANSACTIONS, (0, 0), tree)
    return [
        Open(
            id=each.transactional_id,
            state=state_text(each.transaction_state),
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            timeout_ms=each.transaction_timeout,
            started_ms=each.transaction_start_time if each.transaction_start_time > 0 else None,
            partitions=tuple(
                sorted((t.topic, partition) for t in each.topics for partition in t.partitions)
            ),
        )
        for each in answer.transaction_states
        if not each.error_code and each.transaction_state in _OPEN
    ]


def _leaders(metadata: Any, addresses: Mapping[int, Address]) -> dict[Address, list[Place]]:
    found: dict[Address, list[Place]] = {}
    for topic in metadata.topics:
        for each in topic.partitions if not topic.error_code else ():
            if each.leader_id in addresses:
                place = topic.name, each.partition_index
                found.setdefault(addresses[each.leader_id], []).append(place)
    return found


def _offsets(
    asker: Asker, leaders: Mapping[Address, Sequence[Place]], *, committed: bool
) -> dict[Place, int]:
    """Return the end of each partition: for readers of what is committed, or of all."""
    found: dict[Place, int] = {}
    for address, places in leaders.items():
        topics: dict[str, list[dict[str, int]]] = {}
        for name, number in places:
            wanted = {"partition_index": number, "timestamp": -1}
            topics.setdefault(name, []).append(wanted)
        tree = {
            "replica_id": -1,
            "isolation_level": int(committed),
            "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
        }
        for topic in asker.ask(address, LIST_OFFSETS, (2, 3), tree).topics:
            for each in topic.partitions:
                if not each.error_code:
                    found[topic.name, each.partition_index] = each.offset
    return found


def _writes(
    asker: Asker,
    leaders: Mapping[Address, Sequence[Place]],
    held: Mapping[Place, int],
    problems: list[str],
) -> list[Hanging]:
    """Return the open writes in the partitions that hold readers back."""
    found: list[Hanging] = []
    for address, places in leaders.items():
        wanted = [each for each in places if each in held]
        if len(wanted) > MOST_HELD:
            problems.append(f"Only {MOST_HELD} of {len(wanted)} partitions are looked at.")
        topics: dict[str, list[int]] = {}
        for name, number in wanted[:MOST_HELD]:
            topics.setdefault(name, []).append(number)
        if not topics:
            continue
        tree = {"topics": [{"name": n, "partition_indexes": each} for n, each in topics.items()]}
        for topic in asker.ask(address, DESCRIBE_PRODUCERS, (0, 0), tree).topics:
            for partition in topic.partitions:
                found += _of_partition(topic.name, partition)
    return found


def _of_partition(topic: str, partition: Any) -> list[Hanging]:
    return [
        Hanging(
            topic=topic,
            partition=partition.partition_index,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            coordinator_epoch=each.coordinator_epoch,
            first_offset=each.current_txn_start_offset,
            last_write_ms=each.last_timestamp if each.last_timestamp >= 0 else None,
        )
        for each in partition.active_producers
        if each.current_txn_start_offset >= 0
    ]


def _abort(kafka: Kafka, transactional_id: str, producer_id: int) -> None:
    with Asker(kafka) as asker:
        coordinator = asker.coordinator(TRANSACTION, transactional_id)
        tree: dict[str, Any] = {"transactional_ids": [transactional_id]}
        (now,) = asker.ask(coordinator, DESCRIBE_TRANSACTIONS, (0, 0), tree).transaction_states
        check(now.error_code, f"transactional id {transactional_id}")
        if now.transaction_state != "Ongoing" or now.producer_id != producer_id:
            raise StateConflictError(f"the transaction of {transactional_id} has ended")

        def fence(timeout_ms: int) -> Any:
            wanted = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
            answer = asker.ask(coordinator, INIT_PRODUCER_ID, (2, 5), wanted)
            if answer.error_code == _INVALID_TIMEOUT and timeout_ms > 1:
                return fence(1)  # the broker's limit is lower than before
            return answer, answer.error_code

        what = f"transactional id {transactional_id}"
        asker.until_settled(lambda: fence(now.transaction_timeout), what)


def _end(kafka: Kafka, write: Hanging) -> None:
    marker = {
        "producer_id": write.producer_id,
        "producer_epoch": write.producer_epoch,
        "transaction_result": False,
        "topics": [{"name": write.topic, "partition_indexes": [write.partition]}],
        # -1 means that this producer has no marker here yet.
        "coordinator_epoch": max(write.coordinator_epoch, 0),
    }
    with Asker(kafka) as asker:
        metadata = asker.metadata([write.topic])
        addresses = {each.node_id: Address(each.host, each.port) for each in metadata.brokers}
        leaders = _leaders(metadata, addresses)
        place = (write.topic, write.partition)
        leader = next((address for address, each in leaders.items() if place in each), None)
        if leader is None:
            raise TidemillError(f"{write.topic} partition {write.partition} has no leader")
        answer = asker.ask(leader, WRITE_TXN_MARKERS, (1, 1), {"markers": [marker]})
    for each in answer.markers:
        for topic in each.topics:
            for one in topic.partitions:
                check(one.error_code, f"{write.topic} partition {write.partition}")
