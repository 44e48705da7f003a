"""Questions about transactions that several verbs ask, over the Kafka protocol (KIP-664).

What is open stands in two places: the coordinator of a transactional id knows its transaction, and
each partition knows which producers have written to it and not ended. Where the second has what
the first does not, the transaction hangs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.cli.client import TopicPartitionKey
from tidemill.cli.output import UsageError
from tidemill.cli.wire import Address, Wire, check, until_settled
from tidemill.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionTimeoutError,
    RequestTimedOutError,
    TransactionalIdNotFoundError,
    UnsupportedVersionError,
)

INIT_PRODUCER_ID, WRITE_TXN_MARKERS = 22, 27
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66

INIT_VERSIONS = range(2, 6)
MARKER_VERSIONS = range(1, 2)
LIST_VERSIONS = range(3)
FIRST_VERSION = range(1)

STATES = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare-commit": "PrepareCommit",
    "prepare-abort": "PrepareAbort",
    "complete-commit": "CompleteCommit",
    "complete-abort": "CompleteAbort",
    "prepare-epoch-fence": "PrepareEpochFence",
    "dead": "Dead",
}
"""States as commands write them -> Kafka's names."""
OPEN_STATES = ("ongoing", "prepare-commit", "prepare-abort", "prepare-epoch-fence")
"""Readers with read_committed wait for transactions in one of these."""

_TRANSACTIONAL_ID_NOT_FOUND = 105
_INVALID_REGULAR_EXPRESSION = 128


def state_text(name: str) -> str:
    """Kafka's name of a state as commands write it: ``prepare-commit``."""
    return next((ours for ours, kafka in STATES.items() if kafka == name), name.lower())


@dataclass(frozen=True)
class Listing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True)
class Description:
    """A transactional id as its coordinator describes it.

    Attributes:
        started_ms: when the open transaction began; None where none is open.
        partitions: which it has written to; of one that is ending, those still to be told.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartitionKey, ...]
    coordinator: int

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.producer_id, self.producer_epoch

    @property
    def is_open(self) -> bool:
        """Whether readers with read_committed wait for it."""
        return self.state in OPEN_STATES

    @property
    def open_ms(self) -> int | None:
        """For how long it has been open, by this machine's clock."""
        return None if self.started_ms is None else max(now_ms() - self.started_ms, 0)


@dataclass(frozen=True)
class OpenWrite:
    """A producer that has written to a partition in a transaction that has not ended there.

    Attributes:
        first_offset: of its transaction in this partition.
        last_write_ms: timestamp of its last batch; None where unknown.
        owner: whose transaction it is; None where no coordinator knows it: it hangs.
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
        """How long ago it was written to last, by this machine's clock."""
        return None if self.last_write_ms is None else max(now_ms() - self.last_write_ms, 0)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


# --- coordinators --------------------------------------------------------------------------------


def list_transactions(
    wire: Wire,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    open_longer_than_ms: int | None = None,
    id_pattern: str | None = None,
) -> list[Listing]:
    """Transactional ids of all coordinators, sorted.

    Raises:
        UnsupportedVersionError: a broker does not know one of the filters.
        UsageError: ``id_pattern`` is no regular expression to the broker.
    """
    if open_longer_than_ms is not None:
        # Brokers also count those that ended, from their start.
        states = [each for each in states or OPEN_STATES if each in OPEN_STATES]
        if not states:
            return []
    request = {
        "state_filters": [STATES[each] for each in states],
        "producer_id_filters": list(producer_ids),
        "duration_filter": -1 if open_longer_than_ms is None else open_longer_than_ms,
        "transactional_id_pattern": id_pattern,
    }
    needed = 2 if id_pattern is not None else 1 if open_longer_than_ms is not None else 0
    found: list[Listing] = []
    for broker_id, broker in wire.brokers().items():
        _refuse_older(wire, broker, needed)

        def call(broker: Address = broker) -> dict[str, Any]:
            answer = wire.ask(broker, LIST_TRANSACTIONS, LIST_VERSIONS, request)
            if id_pattern and answer["error_code"] == _INVALID_REGULAR_EXPRESSION:
                raise _no_pattern(id_pattern)
            check(answer["error_code"], f"transactions of the broker at {broker}")
            return answer

        found += [
            Listing(
                each["transactional_id"],
                state_text(each["transaction_state"]),
                each["producer_id"],
                broker_id,
            )
            for each in until_settled(call)["transaction_states"]
        ]
    return sorted(found, key=lambda each: each.transactional_id)


def _no_pattern(pattern: str) -> UsageError:
    """The broker's answer has no room for a reason: the same engine, here, has one."""
    import re2

    options = re2.Options()
    options.log_errors = False  # on stderr, by itself
    reason = ""
    try:
        re2.compile(pattern, options=options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        reason = f": {said.decode(errors='replace') if isinstance(said, bytes) else said}"
    return UsageError(
        f"--id-pattern {pattern}: not a regular expression{reason}",
        hint="The syntax is RE2's, and it is matched with an id as a whole, e.g. 'shop-.*'.",
    )


def _refuse_older(wire: Wire, broker: Address, needed: int) -> None:
    """An older broker would ignore the filter and list everything."""
    if needed and wire.version(broker, LIST_TRANSACTIONS, LIST_VERSIONS) < needed:
        option = "--id-pattern" if needed > 1 else "--open-longer-than"
        raise UnsupportedVersionError(
            f"the broker at {broker} does not know {option}",
            hint="Apache Kafka knows --open-longer-than from 3.8 on, --id-pattern from 4.1 on.",
        )


def describe_transaction(wire: Wire, transactional_id: str) -> Description:
    """One transactional id.

    Raises:
        TransactionalIdNotFoundError: there is no such id.
    """
    found = describe_transactions(wire, [transactional_id])
    if not found:
        raise TransactionalIdNotFoundError(
            f"transactional id {transactional_id} does not exist",
            hint="See what there is: tidemill transaction list",
        )
    return found[0]


def describe_transactions(wire: Wire, transactional_ids: Sequence[str]) -> list[Description]:
    """Those of the ids that exist."""
    found: list[Description] = []
    by_coordinator: dict[tuple[int, Address], list[str]] = {}
    for each, coordinator in wire.coordinators(transactional_ids).items():
        by_coordinator.setdefault(coordinator, []).append(each)
    for (number, broker), ids in by_coordinator.items():

        def call(
            number: int = number, broker: Address = broker, ids: list[str] = ids
        ) -> list[Description]:
            request = {"transactional_ids": ids}
            answer = wire.ask(broker, DESCRIBE_TRANSACTIONS, FIRST_VERSION, request)
            return [
                _description(state, number)
                for state in answer["transaction_states"]
                if state["error_code"] != _TRANSACTIONAL_ID_NOT_FOUND
            ]

        found += until_settled(call)
    return found


def _description(state: dict[str, Any], coordinator: int) -> Description:
    check(state["error_code"], f"transactional id {state['transactional_id']}")
    name = state_text(state["transaction_state"])
    started = state["transaction_start_time"]
    return Description(
        transactional_id=state["transactional_id"],
        state=name,
        producer_id=state["producer_id"],
        producer_epoch=state["producer_epoch"],
        timeout_ms=state["transaction_timeout"],
        # Of one that has ended, brokers may name its old start, or zero.
        started_ms=started if started > 0 and name in OPEN_STATES else None,
        partitions=tuple(
            sorted(
                (t["topic"], partition) for t in state["topics"] for partition in t["partitions"]
            )
        ),
        coordinator=coordinator,
    )


def fence(wire: Wire, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
    """Take the id over as a new producer would, which aborts what is open (KIP-98, KIP-664).

    Args:
        timeout_ms: transaction time-out of the new producer, which the id keeps: the old one's, so
            that nothing but the epoch changes. Apache Kafka also waits so long for its own write.

    Returns:
        Producer id and epoch of the new producer, which nobody uses.

    Raises:
        TidemillError: the coordinator refuses, or the end is not written in ten seconds.
    """
    _, coordinator = wire.coordinators([transactional_id])[transactional_id]

    def call(timeout_ms: int) -> tuple[int, int]:
        request = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        answer = wire.ask(coordinator, INIT_PRODUCER_ID, INIT_VERSIONS, request)
        check(answer["error_code"], f"transactional id {transactional_id}")
        return answer["producer_id"], answer["producer_epoch"]

    try:
        try:
            return until_settled(lambda: call(timeout_ms))
        except InvalidTransactionTimeoutError:  # the broker allows less than it did
            return until_settled(lambda: call(1))
    except RequestTimedOutError as error:
        raise ConcurrentTransactionsError(
            str(error),
            hint="It is decided, and waits for its partitions; see them: "
            f"tidemill transaction describe {transactional_id}",
        ) from error


# --- partitions ----------------------------------------------------------------------------------


def open_writes(wire: Wire, partitions: Collection[TopicPartitionKey]) -> list[OpenWrite]:
    """Who has written to the partitions in transactions that have not ended, and for whom."""
    found = _open_writes(wire, partitions)
    known = _owners(wire, found)
    suspects = [each for each in found if _owner(known, each) is None]
    if suspects:  # it may have ended between the two questions
        still = {_identity(each) for each in _open_writes(wire, {each.key for each in suspects})}
        found = [each for each in found if each not in suspects or _identity(each) in still]
        known = _owners(wire, found)
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


def _owners(wire: Wire, writes: Sequence[OpenWrite]) -> list[Description]:
    """The transactional ids of the producers."""
    producers = {each.producer_id for each in writes}
    if not producers:
        return []
    listed = list_transactions(wire, producer_ids=producers)
    return describe_transactions(wire, [each.transactional_id for each in listed])


def _open_writes(wire: Wire, partitions: Collection[TopicPartitionKey]) -> list[OpenWrite]:
    by_leader: dict[Address, dict[str, list[int]]] = {}
    for (topic, partition), leader in until_settled(lambda: wire.leaders(partitions)).items():
        by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
    found: list[OpenWrite] = []
    for broker, topics in by_leader.items():
        request = {
            "topics": [{"name": t, "partition_indexes": indexes} for t, indexes in topics.items()]
        }

        def call(broker: Address = broker, request: dict[str, Any] = request) -> list[OpenWrite]:
            answer = wire.ask(broker, DESCRIBE_PRODUCERS, FIRST_VERSION, request)
            return [
                write
                for topic in answer["topics"]
                for partition in topic["partitions"]
                for write in _of_partition(topic["name"], partition)
            ]

        found += until_settled(call)
    return sorted(found, key=lambda each: (each.key, each.first_offset))


def _of_partition(topic: str, partition: dict[str, Any]) -> list[OpenWrite]:
    number = partition["partition_index"]
    check(partition["error_code"], f"{topic} partition {number}", partition["error_message"])
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


def abort_write(wire: Wire, write: OpenWrite) -> None:
    """Write an abort marker for a producer into one partition, past any coordinator.

    Raises:
        TidemillError: the broker refuses.
    """
    request = {
        "markers": [
            {
                "producer_id": write.producer_id,
                "producer_epoch": write.producer_epoch,
                "transaction_result": False,
                "topics": [{"name": write.topic, "partition_indexes": [write.partition]}],
                # -1: no marker of this producer was written here yet.
                "coordinator_epoch": max(write.coordinator_epoch, 0),
            }
        ]
    }
    leader = wire.leaders([write.key])[write.key]
    answer = wire.ask(leader, WRITE_TXN_MARKERS, MARKER_VERSIONS, request)
    for marker in answer["markers"]:
        for topic in marker["topics"]:
            for partition in topic["partitions"]:
                subject = f"{write.topic} partition {write.partition}"
                check(partition["error_code"], subject)
