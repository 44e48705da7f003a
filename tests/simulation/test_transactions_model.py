"""Simulation of transactions, compared with a model of a few lines: each is whole or absent.

Producers of both versions share transactional ids. They write, commit, abort, take over, time out
and continue as zombies. The broker's steps are interleaved, and the power is cut between any two of
them, also during the repair at start. For a reader with read_committed:

- A commit that was answered is complete.
- A commit without an answer is complete or absent.
- Records that were not committed are absent.
- Records that were readable once stay readable.
- A fenced producer never writes, and no transaction hangs.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.transactions_broker import PARTITIONS, SmallBroker, Steps, Written
from tests.support.effort import examples
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidTxnStateError
from tidemill.log.names import TopicPartition
from tidemill.state.errors import ConcurrentTransactionsError
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.transactions.format import encode_key, encode_value
from tidemill.state.transactions.transaction import created
from tidemill.state.transactions.types import InitProducer
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TransactionVersion

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
TIMEOUT_MS = 10_000
ALL = 1000
numbers = st.integers(0, 2**16)
COUNTS = (*[ALL] * 6, 1, 2, 3, 4, 6, 9)
counts = st.sampled_from(COUNTS)
"""Steps of an operation until something else happens."""
WEIGHTS = [
    *["write"] * 8,
    *["commit"] * 4,
    *["power"] * 3,
    *["continue", "hurry", "sync"] * 2,
    *["abort", "add", "late", "recover", "send again", "settle", "take over", "time"],
]
IDS = ("fresh", "worn")
"""The second one's epochs are nearly used up."""


class Fate(enum.Enum):
    OPEN = enum.auto()
    """No commit was requested: none of its records is readable."""
    ASKED = enum.auto()
    """A commit was sent: all or none of its records are readable."""
    COMMITTED = enum.auto()
    """The commit was answered."""


@dataclass
class Txn:
    """The records of a producer between two ends."""

    fate: Fate = Fate.OPEN
    values: dict[TopicPartition, list[bytes]] = field(default_factory=dict)


@dataclass
class Unanswered:
    tp: TopicPartition
    sequence: int
    value: bytes
    written: Written | None


@dataclass(eq=False)
class Producer:
    """A client, as far as it goes by the protocol's rules."""

    transactional_id: str
    version: TransactionVersion
    identity: ProducerIdentity = NO_PRODUCER
    txn: Txn = field(default_factory=Txn)
    added: set[TopicPartition] = field(default_factory=set)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    unanswered: list[Unanswered] = field(default_factory=list)
    ending: bool | None = None
    """The commit (True) or abort that it waits for, or has to ask for again."""
    has_failed: bool = False
    """A write was refused: it must abort."""
    is_fenced: bool = False

    def begin(self, identity: ProducerIdentity) -> None:
        """The next transaction, under this identity."""
        if identity != self.identity:
            self.sequences.clear()
        self.identity = identity
        self.txn = Txn()
        self.added.clear()
        self.unanswered.clear()
        self.ending = None
        self.has_failed = False


@dataclass
class Running:
    """An operation under way at the broker."""

    producer: Producer | None
    steps: Steps[Any]
    done: Callable[[Any], None]


class TransactionSimulation(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.broker = SmallBroker()
        self.producers: list[Producer] = []
        self.txns: list[Txn] = []
        self.running: dict[str, Running] = {}
        """One at a time for each id: the broker's lock."""
        self.seen: dict[TopicPartition, list[bytes]] = {tp: [] for tp in PARTITIONS}
        self.serial = 0
        first = created(500, TIMEOUT_MS, self.broker.now)
        worn = replace(first, producer=ProducerIdentity(500, 32762))
        self.broker.apply(Outcome(None, [StateRecord(encode_key("worn"), encode_value(worn))]))
        self.broker.journal.flush()

    def pick(self, number: int) -> Producer | None:
        """Nearly always one that is not fenced."""
        live = [producer for producer in self.producers if not producer.is_fenced]
        some = live if live and number % 8 else self.producers
        return some[number % len(some)] if some else None

    def idle(self, number: int) -> Producer | None:
        """A producer that is not waiting for an answer, whose id has nothing under way."""
        producer = self.pick(number)
        if producer is None or producer.is_fenced or producer.transactional_id in self.running:
            return None
        return producer

    @rule(
        what=st.sampled_from(WEIGHTS),
        number=numbers,
        tp=st.sampled_from(PARTITIONS),
        version=st.sampled_from(TransactionVersion),
        count=counts,
    )
    def act(
        self, what: str, number: int, tp: TopicPartition, version: TransactionVersion, count: int
    ) -> None:
        """One rule for all: Hypothesis leaves some rules out of each run, here all must meet."""
        transactional_id = IDS[number % len(IDS)]
        match what:
            case "write":
                self.write(number, tp)
            case "send again":
                self.send_again(number)
            case "late":
                self.a_batch_of_an_earlier_epoch_comes_late(number, tp, 1 + number % 3)
            case "add":
                self.add(number, {tp, PARTITIONS[number % 3]}, count)
            case "commit":
                self.end(number, True, count)
            case "abort":
                self.end(number, False, count)
            case "take over":
                self.take_over(transactional_id, version, count)
            case "recover":
                self.recover(number, count)
            case "continue":
                self.continue_running(transactional_id, count)
            case "sync":
                self.sync(tp if number % 2 else None)
            case "time":
                self.time_passes((1, 10, 100, 5_000)[number % 4], count)
            case "power":
                self.lose_power(number, [count % 13, number % 7][: number % 3])
            case "hurry":
                self.hurry(number, tp)
            case "settle":
                self.settle()

    # --- operations under way --------------------------------------------------------------------

    def run(
        self,
        transactional_id: str,
        producer: Producer | None,
        steps: Steps[Any],
        done: Callable[[Any], None],
        count: int,
    ) -> None:
        """Begin an operation with ``count`` steps. ``continue_running`` runs the others."""
        self.running[transactional_id] = Running(producer, steps, done)
        self.step(transactional_id, count)

    def step(self, transactional_id: str, count: int) -> None:
        running = self.running[transactional_id]
        for _ in range(count):
            try:
                next(running.steps)
            except StopIteration as end:
                del self.running[transactional_id]
                running.done(end.value)
                return
            except TidemillError as error:
                del self.running[transactional_id]
                if running.producer is None:
                    raise
                self.refused(running.producer, error)
                return

    def refused(self, producer: Producer, error: TidemillError) -> None:
        if isinstance(error, ConcurrentTransactionsError):
            return  # it asks again
        if isinstance(error, InvalidTxnStateError):
            assert producer.ending is True
            producer.ending, producer.has_failed = None, True  # timed out: abort, continue
            return
        producer.is_fenced = True

    def continue_running(self, transactional_id: str, count: int) -> None:
        if transactional_id in self.running:
            self.step(transactional_id, count)

    def sync(self, which: TopicPartition | None) -> None:
        (self.broker.journal if which is None else self.broker.logs[which]).flush()
        self.acknowledge()

    def acknowledge(self) -> None:
        for producer in self.producers:
            for item in list(producer.unanswered):
                if item.written is not None and self.broker.is_durable(item.written):
                    producer.unanswered.remove(item)

    # --- what producers do -----------------------------------------------------------------------

    def take_over(self, transactional_id: str, version: TransactionVersion, count: int) -> None:
        if transactional_id in self.running:
            return
        producer = Producer(transactional_id, version)

        def done(identity: ProducerIdentity) -> None:
            for other in self.producers:
                if other.transactional_id == transactional_id:
                    assert other.identity != identity
                    other.is_fenced = True
            self.producers.append(producer)
            producer.begin(identity)
            self.txns.append(producer.txn)

        request = InitProducer(transactional_id, TIMEOUT_MS)
        self.run(transactional_id, producer, self.broker.init(request), done, count)

    def recover(self, number: int, count: int) -> None:
        producer = self.idle(number)
        if producer is None or producer.ending is not None:
            return

        def done(identity: ProducerIdentity) -> None:
            assert identity != producer.identity
            producer.begin(identity)
            self.txns.append(producer.txn)

        request = InitProducer(producer.transactional_id, TIMEOUT_MS, producer.identity)
        self.run(producer.transactional_id, producer, self.broker.init(request), done, count)

    def add(self, number: int, tps: set[TopicPartition], count: int) -> None:
        producer = self.idle(number)
        if producer is None or producer.version is V2 or producer.ending is not None:
            return
        if producer.has_failed:
            return
        steps = self.broker.add(producer.transactional_id, producer.identity, tps, V1)
        self.run(
            producer.transactional_id, producer, steps, lambda _: producer.added.update(tps), count
        )

    def write(self, number: int, tp: TopicPartition) -> None:
        if not any(not each.is_fenced for each in self.producers):
            self.take_over(IDS[number % len(IDS)], tuple(TransactionVersion)[number // 7 % 2], ALL)
        producer = self.pick(number)
        if producer is None or producer.ending is not None or producer.has_failed:
            return
        running = self.running.get(producer.transactional_id)
        if running is not None and running.producer is producer:
            return
        if producer.version is V1 and tp not in producer.added and not producer.is_fenced:
            if self.idle(number) is not producer:
                return
            self.add(number, {tp}, ALL)
            if tp not in producer.added:
                return
        if any(item.written is None for item in producer.unanswered):
            return
        self.serial += 1
        item = Unanswered(tp, producer.sequences.get(tp, 0), b"%d" % self.serial, None)
        if producer.is_fenced:
            with pytest.raises(TidemillError):
                self.send(producer, item)
            return
        producer.sequences[tp] = item.sequence + 1
        producer.unanswered.append(item)
        producer.txn.values.setdefault(tp, []).append(item.value)
        self.try_to_send(producer, item)

    def send_again(self, number: int) -> None:
        producer = self.pick(number)
        if producer is None or producer.is_fenced or producer.has_failed:
            return
        for item in producer.unanswered:
            if item.written is None and not producer.has_failed:
                self.try_to_send(producer, item)

    def try_to_send(self, producer: Producer, item: Unanswered) -> None:
        try:
            item.written = self.send(producer, item)
        except ConcurrentTransactionsError:
            pass  # again later; what comes after it waits for it
        except TidemillError:
            producer.has_failed = True

    def send(self, producer: Producer, item: Unanswered) -> Written:
        return self.broker.produce(
            producer.transactional_id,
            producer.identity,
            item.tp,
            item.sequence,
            item.value,
            producer.version,
        )

    def a_batch_of_an_earlier_epoch_comes_late(
        self, number: int, tp: TopicPartition, back: int
    ) -> None:
        producer = self.pick(number)
        if producer is None or producer.identity.epoch < back:
            return
        producer_id, epoch = producer.identity
        stale = replace(producer, identity=ProducerIdentity(producer_id, epoch - back))
        self.serial += 1
        with pytest.raises(TidemillError):
            self.send(stale, Unanswered(tp, 0, b"%d" % self.serial, None))

    def end(self, number: int, commit: bool, count: int) -> None:
        producer = self.idle(number)
        if producer is None:
            return
        if commit:
            self.flush(producer)
        if producer.ending is not None:
            commit = producer.ending
        elif producer.has_failed:
            commit = False
        elif commit and (producer.unanswered or not producer.txn.values):
            return
        if producer.version is V1 and not producer.added:
            if producer.has_failed:
                producer.is_fenced = True  # closed by its application
            return
        producer.ending = commit
        if commit:
            producer.txn.fate = Fate.ASKED

        def done(identity: ProducerIdentity) -> None:
            if commit:
                producer.txn.fate = Fate.COMMITTED
            assert (identity != producer.identity) == (producer.version is V2)
            producer.begin(identity)
            self.txns.append(producer.txn)

        steps = self.broker.end(
            producer.transactional_id, producer.identity, commit, producer.version
        )
        self.run(producer.transactional_id, producer, steps, done, count)

    def flush(self, producer: Producer) -> None:
        """Wait for the answers to all writes: the broker syncs what they need, and no more."""
        for item in list(producer.unanswered):
            if item.written is None and not producer.has_failed and not producer.is_fenced:
                self.try_to_send(producer, item)
            if item.written is not None and not self.broker.is_durable(item.written):
                self.broker.logs[item.tp].flush()
            if item.written is not None and not self.broker.is_durable(item.written):
                self.broker.journal.flush()
        self.acknowledge()

    # --- what happens to them --------------------------------------------------------------------

    def time_passes(self, milliseconds: int, count: int) -> None:
        self.broker.clock.advance(milliseconds)
        for transactional_id in self.broker.machine.upkeep.due(self.broker.now):
            if transactional_id not in self.running:
                steps = self.broker.expire(transactional_id)
                self.run(transactional_id, None, steps, lambda _: None, count)

    def lose_power(self, seed: int, repair_steps: list[int]) -> None:
        """Cut the power, and again after each of these numbers of steps of the repair."""
        rng = random.Random(seed)
        self.running.clear()
        for producer in self.producers:
            for item in producer.unanswered:
                item.written = None
        for count in repair_steps:
            self.broker.fs.power_cut(rng)
            self.broker.start(rng)
            for _, _ in zip(self.broker.repair(), range(count), strict=False):
                pass
        self.broker.fs.power_cut(rng)
        self.broker.start(rng)
        for _ in self.broker.repair():
            pass

    def hurry(self, number: int, tp: TopicPartition) -> None:
        """The next transaction's first write is on disk before the end of the one before, and its
        own beginning, are."""
        self.end(number, True, ALL)
        self.write(number, tp)
        self.broker.logs[tp].flush()
        self.lose_power(number, [])

    def settle(self) -> None:
        """Everything under way is done and durable: no transaction may be there in part."""
        while self.running:
            self.step(next(iter(self.running)), ALL)
        self.broker.journal.flush()
        for log in self.broker.logs.values():
            log.flush()
        self.acknowledge()
        committed = {tp: [value for _, value in self.broker.scan(tp)[0]] for tp in PARTITIONS}
        expected: set[bytes] = set()
        for txn in self.txns:
            whole = list(txn.values.items())
            there = [(tp, [v for v in committed[tp] if v in values]) for tp, values in whole]
            if txn.fate is Fate.COMMITTED:
                assert there == whole  # in order, too
            elif txn.fate is Fate.ASKED and any(values for _, values in there):
                assert there == whole
            elif txn.fate is Fate.OPEN:
                assert not any(values for _, values in there)
            expected.update(value for _, values in there for value in values)
        for values in committed.values():
            assert len(set(values)) == len(values)
            assert expected.issuperset(values)

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            return
        self.settle()
        self.broker.clock.advance(TIMEOUT_MS)
        for transactional_id in self.broker.machine.upkeep.due(self.broker.now):
            for _ in self.broker.expire(transactional_id):
                pass
        self.settle()
        for log in self.broker.logs.values():
            assert log.open_transactions() == []
            assert log.last_stable_offset == log.high_watermark == log.log_end_offset

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def readers_see_what_the_log_says_and_keep_it(self) -> None:
        for tp in PARTITIONS:
            committed, stable = self.broker.scan(tp)
            values = [value for at, value in committed if at < stable]
            assert self.broker.logs[tp].last_stable_offset == stable
            assert self.broker.read_committed(tp) == values
            assert values[: len(self.seen[tp])] == self.seen[tp]
            self.seen[tp] = values


TestTransactions = pytest.mark.slow(TransactionSimulation.TestCase)
TestTransactions.settings = settings(
    max_examples=examples(30), stateful_step_count=60, deadline=None
)


@pytest.mark.parametrize("seed", range(8))
def test_random_runs(seed: int) -> None:
    """The same by plain chance, which goes further astray than Hypothesis does."""
    for run in range(8):
        rng = random.Random(100 * seed + run)
        simulation = TransactionSimulation()
        simulation.start()
        for _ in range(60):
            what, tp = rng.choice(WEIGHTS), rng.choice(PARTITIONS)
            version = rng.choice(list(TransactionVersion))
            simulation.act(what, rng.randrange(2**16), tp, version, rng.choice(COUNTS))
            simulation.readers_see_what_the_log_says_and_keep_it()
        simulation.teardown()
