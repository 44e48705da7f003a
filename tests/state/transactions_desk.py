"""A transaction coordinator on a desk: its log in memory, time, producer ids, and short names."""

from __future__ import annotations

from typing import TypeVar

from tests.state.harness import START_MS, compacted
from tidemill.log.names import TopicPartition
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.transaction import created
from tidemill.state.transactions import Transactions
from tidemill.state.transactions_format import TransactionValue, encode_key, encode_value
from tidemill.state.types import (
    NO_PRODUCER,
    InitProducer,
    ProducerIdentity,
    TransactionState,
    TransactionVersion,
)

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
S = TransactionState
ID = "tx"
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 60_000
FIRST_ID = 100

R = TypeVar("R")


def pid(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(producer_id, epoch)


class TransactionDesk:
    """Runs commands of one transactional id and hands their records to replay."""

    def __init__(self, log: list[StateRecord] | None = None, now: int = START_MS) -> None:
        self.machine = Transactions()
        self.log: list[StateRecord] = []
        self.now = now
        self.next_id = FIRST_ID
        for record in log or []:
            self.append(record)
        self.machine.loaded(now)

    def append(self, record: StateRecord) -> None:
        self.log.append(record)
        assert self.machine.replay(record.key, record.value)

    def run(self, outcome: Outcome[R]) -> R:
        for record in outcome.records:
            self.append(record)
        return outcome.result

    def restart(self, *, compact: bool = False) -> TransactionDesk:
        """The same log, read by a fresh coordinator."""
        desk = TransactionDesk(compacted(self.log) if compact else self.log, self.now)
        desk.next_id = self.next_id
        return desk

    def fresh(self, transactional_id: str = ID) -> int | None:
        """A fresh producer id where one may be needed."""
        return self.next_id if self.machine.needs_producer_id(transactional_id) else None

    def answer(self, outcome: Outcome[ProducerIdentity]) -> ProducerIdentity:
        self.next_id = max(self.next_id, outcome.result.producer_id + 1)
        return self.run(outcome)

    # --- the commands, as the broker strings them together ---------------------------------------

    def init(
        self,
        current: ProducerIdentity = NO_PRODUCER,
        *,
        timeout_ms: int = TIMEOUT_MS,
        transactional_id: str = ID,
    ) -> ProducerIdentity:
        request = InitProducer(transactional_id, timeout_ms, current)
        self.run(self.machine.fence(request, self.now))
        if self.machine.unfinished(transactional_id):
            self.complete(transactional_id)
        fresh = self.fresh(transactional_id)
        return self.answer(self.machine.init(request, self.now, fresh))

    def add(
        self,
        producer: ProducerIdentity,
        *partitions: TopicPartition,
        version: TransactionVersion = V1,
    ) -> int:
        """How many records that took."""
        before = len(self.log)
        self.run(self.machine.add(ID, producer, partitions, self.now, version))
        return len(self.log) - before

    def write(
        self, producer: ProducerIdentity, tp: TopicPartition = A, version: TransactionVersion = V2
    ) -> int:
        """How many records that took."""
        outcome = self.machine.check_write(ID, producer, tp, self.now, version)
        if outcome is None:
            return 0
        self.run(outcome)
        return len(outcome.records)

    def prepare(
        self,
        producer: ProducerIdentity,
        *,
        commit: bool = True,
        version: TransactionVersion = V2,
    ) -> ProducerIdentity:
        fresh = self.fresh()
        return self.answer(self.machine.end(ID, producer, commit, self.now, version, fresh))

    def complete(self, transactional_id: str = ID) -> None:
        self.run(self.machine.complete(transactional_id, self.now))

    def end(
        self,
        producer: ProducerIdentity,
        *,
        commit: bool = True,
        version: TransactionVersion = V2,
    ) -> ProducerIdentity:
        """EndTxn with its markers."""
        answer = self.prepare(producer, commit=commit, version=version)
        if self.machine.unfinished(ID):
            self.complete()
        return answer

    def expire(self) -> None:
        """The transaction's time is up."""
        self.now += TIMEOUT_MS
        self.run(self.machine.expire(ID, self.now))
        self.complete()

    # --- looking ---------------------------------------------------------------------------------

    @property
    def value(self) -> TransactionValue:
        return self.machine.stored()[ID]

    @property
    def state(self) -> TransactionState:
        return self.value.state

    def set(self, state: TransactionState, epoch: int, version: TransactionVersion = V2) -> None:
        """Put the id into a state, with partition ``A`` where the state has partitions."""
        first = created(FIRST_ID, TIMEOUT_MS, self.now)
        has_partitions = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
        value = TransactionValue(
            ProducerIdentity(FIRST_ID, epoch),
            first.timeout_ms,
            state,
            frozenset({A} if has_partitions else ()),
            self.now,
            self.now if state is not S.EMPTY else -1,
            previous_producer_id=FIRST_ID,
            version=version,
            last_epoch=epoch - 1,
        )
        self.next_id = FIRST_ID + 1
        self.append(StateRecord(encode_key(ID), encode_value(value)))
