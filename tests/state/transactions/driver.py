"""A driver for the transactions machine: time, a log in memory, producer ids, and short names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.state.driver import START_MS, MachineDriver, compacted
from tidemill.log.names import TopicPartition
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.transactions.format import TransactionValue, encode_record
from tidemill.state.transactions.machine import Transactions
from tidemill.state.transactions.transaction import created
from tidemill.state.transactions.types import InitProducer, TransactionState
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TransactionVersion

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
S = TransactionState
ID = "tx"
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT_MS = 60_000
FIRST_ID = 100


def pid(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(producer_id, epoch)


class TransactionsDriver(MachineDriver[Transactions]):
    """Runs commands of one transactional id, and replays their records."""

    def __init__(self, log: Iterable[StateRecord] = (), now: int = START_MS) -> None:
        super().__init__(Transactions(), log)
        self.now = now
        self.next_id = FIRST_ID
        self.machine.loaded(now)

    def restart(self, *, compact: bool = False) -> TransactionsDriver:
        """Return a new driver that has replayed the same log."""
        driver = TransactionsDriver(compacted(self.log) if compact else self.log, self.now)
        driver.next_id = self.next_id
        return driver

    def fresh(self, transactional_id: str = ID) -> int | None:
        """Return a new producer id if one may be needed."""
        return self.next_id if self.machine.needs_producer_id(transactional_id) else None

    def answer(self, outcome: Outcome[ProducerIdentity]) -> ProducerIdentity:
        self.next_id = max(self.next_id, outcome.result.producer_id + 1)
        return self.run(outcome)

    # --- the commands, in the order in which the engine calls them -------------------------------

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
        """Return the number of records."""
        before = len(self.log)
        self.run(self.machine.add(ID, producer, partitions, self.now, version))
        return len(self.log) - before

    def write(
        self, producer: ProducerIdentity, tp: TopicPartition = A, version: TransactionVersion = V2
    ) -> int:
        """Return the number of records."""
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

    def end(self, producer: ProducerIdentity, **options: Any) -> ProducerIdentity:
        """End a transaction as ``prepare`` does, and write its markers."""
        answer = self.prepare(producer, **options)
        if self.machine.unfinished(ID):
            self.complete()
        return answer

    def expire(self) -> None:
        """Abort the transaction after its timeout."""
        self.now += TIMEOUT_MS
        self.run(self.machine.upkeep.expire(ID, self.now))
        self.complete()

    # --- views ---------------------------------------------------------------------------------

    @property
    def value(self) -> TransactionValue:
        return self.machine.stored()[ID]

    @property
    def state(self) -> TransactionState:
        return self.value.state

    def set(self, state: TransactionState, epoch: int, version: TransactionVersion = V2) -> None:
        """Set the state of the id, with partition ``A`` if the state has partitions."""
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
        self.run(Outcome(None, [encode_record(ID, value)]))
