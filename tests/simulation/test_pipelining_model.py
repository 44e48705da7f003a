"""Simulation of producers with several batches in flight, on a partition that sometimes fails.

The client follows librdkafka's rules: up to five batches are in flight, answers arrive in order,
batches that are to be retried are sent again in order, and an answer that a batch is a duplicate
counts as delivered. Sometimes the disk is full, the coordinator is busy, the broker is killed or
forgets its producers. Each record that was reported as delivered is in the log once, and in order.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.effort import examples
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, open_log, open_store, read_bytes
from tidemill.clock import ManualClock
from tidemill.engine.api import Durability, PartitionWrite, ProducerIdentity, TransactionVersion
from tidemill.engine.error_log import StorageErrorLog
from tidemill.engine.flusher import Flusher
from tidemill.engine.records.append import Admission, Appender
from tidemill.engine.records.checks import Checks
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.records.slices import Slices
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import DuplicateSequenceError, OutOfOrderSequenceError, StorageError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.markers import Marker
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.errors import ConcurrentTransactionsError, CoordinatorNotAvailableError

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
IN_FLIGHT = 5
EXPIRY_MS = 86_400_000
AGAIN = (StorageError, ConcurrentTransactionsError, CoordinatorNotAvailableError)
KINDS: list[tuple[bool, TransactionVersion]] = [(False, V1), (True, V1), (True, V2)]
ACTIONS = [
    *["send"] * 8,
    *["arrive"] * 8,
    *["answer"] * 5,
    *["disk", "coordinator", "ghosts"] * 2,
    *["reconnect", "kill", "restart", "day", "end"],
]


class NoFlusher:
    """A flusher that does nothing."""

    def written(self, log: PartitionLog) -> None: ...

    def appended(self, size: int) -> None: ...

    def request(self, log: PartitionLog) -> None: ...


class Client:
    """One producer. A batch is one record; its sequence is its place in its epoch."""

    def __init__(self, producer_id: int, transactional: bool, version: TransactionVersion) -> None:
        self.producer_id = producer_id
        self.transactional = transactional
        self.version = version
        self.epoch = 0
        self.next = 0
        self.waiting: deque[tuple[int, bytes]] = deque()
        """(sequence, value) of what has to be sent, or sent again."""
        self.wire: deque[tuple[int, bytes]] = deque()
        """On its way to the broker, which takes it in order."""
        self.ghosts: deque[tuple[int, bytes]] = deque()
        """On its way over a connection that the client has given up."""
        self.answers: deque[tuple[int, bytes, TidemillError | None]] = deque()
        self.delivered: list[bytes] = []
        self.acknowledged = 0
        """Sequences of this epoch below it were answered for."""
        self.is_lost = False
        """The broker said that the first batch it waits for is out of order: a fatal error."""

    @property
    def in_flight(self) -> int:
        return len(self.wire) + len(self.answers)

    def take_answer(self) -> None:
        sequence, value, error = self.answers.popleft()
        if error is None or isinstance(error, DuplicateSequenceError):
            self.delivered.append(value)
            self.acknowledged = max(self.acknowledged, sequence + 1)
        elif isinstance(error, OutOfOrderSequenceError) and sequence <= self.acknowledged:
            self.is_lost = True
        else:
            assert isinstance(error, (*AGAIN, OutOfOrderSequenceError)), error
            self.waiting = deque(sorted([*self.waiting, (sequence, value)]))

    def disconnected(self) -> None:
        """Send all batches without an answer again, in order. Some were possibly written."""
        open_ones = [*self.waiting, *self.wire, *((seq, value) for seq, value, _ in self.answers)]
        self.ghosts.extend(self.wire)
        self.wire.clear()
        self.answers.clear()
        self.waiting = deque(sorted(open_ones))


class PipeliningSimulation(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.serial = 0
        self.busy = 0
        """Times that the coordinator still refuses."""
        self.clients = [Client(7 + number, *kind) for number, kind in enumerate(KINDS)]
        self.open()
        self.log.flush()

    def open(self) -> None:
        self.store = open_store("/data", self.clock, self.fs)
        self.log = open_log(self.store, {})
        journal = TopicPartition("journal", 0)
        if journal not in self.store.partitions:
            self.store.create(journal, parse_config({}), UUID(int=2))
        partitions = Partitions(self.store)
        self.appender = Appender(
            partitions,
            cast(Flusher, NoFlusher()),
            Waiters(),
            self.clock,
            StorageErrorLog(self.clock),
            Checks(partitions, Slices(), self.clock),
            self.admit,
        )

    def admit(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        version: TransactionVersion,
        also: Sequence[TopicPartition],
    ) -> Admission:
        if self.busy:
            self.busy -= 1
            if version is V2:
                raise ConcurrentTransactionsError("the previous transaction is still being ended")
            raise CoordinatorNotAvailableError("the disk refuses")
        return None

    # --- what happens ----------------------------------------------------------------------------

    @rule(what=st.sampled_from(ACTIONS), number=st.integers(0, 2), times=st.integers(1, 6))
    def act(self, what: str, number: int, times: int) -> None:
        client = self.clients[number]
        match what:
            case "send":
                self.send(client, times)
            case "arrive":
                self.arrive(client, times)
            case "answer":
                for _ in range(min(times, len(client.answers))):
                    client.take_answer()
            case "disk":
                self.fs.fail("write", errno.ENOSPC, times=times // 2 + 1, path=f"/{TP}/")
            case "coordinator":
                self.busy = times
            case "reconnect":
                client.disconnected()
            case "ghosts":
                for _ in range(min(times, len(client.ghosts))):
                    self.produce(client, *client.ghosts.popleft())
            case "kill" | "restart":
                self.start_again(clean=what == "restart")
            case "day":
                self.let_a_day_pass()
            case "end":
                self.end_transaction(client)

    def send(self, client: Client, times: int) -> None:
        for _ in range(times):
            self.serial += 1
            client.waiting.append((client.next, b"%d" % self.serial))
            client.next += 1
        self.fill(client)

    @staticmethod
    def fill(client: Client) -> None:
        while client.waiting and client.in_flight < IN_FLIGHT and not client.is_lost:
            client.wire.append(client.waiting.popleft())

    def arrive(self, client: Client, times: int) -> None:
        self.fill(client)
        for _ in range(min(times, len(client.wire))):
            sequence, value = client.wire.popleft()
            client.answers.append((sequence, value, self.produce(client, sequence, value)))

    def produce(self, client: Client, sequence: int, value: bytes) -> TidemillError | None:
        batch = encode_batch(
            [NewRecord(b"k", value)],
            timestamp_ms=self.clock.now_ms(),
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            base_sequence=sequence,
            transactional=client.transactional,
        )
        transactional_id = "x" if client.transactional else None
        write = PartitionWrite(*TP, memoryview(batch))
        results = self.appender.append(
            [write], Durability.WRITTEN, transactional_id, client.version
        )
        assert isinstance(results, list)
        return results[0] if isinstance(results[0], TidemillError) else None

    def start_again(self, clean: bool) -> None:
        self.fs.clear_faults()
        self.log.flush()
        if clean:
            self.store.close()
        else:
            self.fs.kill()
        self.open()
        for client in self.clients:
            client.disconnected()
            client.ghosts.clear()

    def let_a_day_pass(self) -> None:
        """Let the partition forget all producers, which send nothing for so long.

        The sequence numbers continue if the epoch stays.
        """
        for client in self.clients:
            self.end_transaction(client)
        self.clock.advance(EXPIRY_MS)
        self.log.expire_producers(self.clock.now_ms(), EXPIRY_MS)

    def end_transaction(self, client: Client) -> None:
        """End the transaction after all answers. With V2 the next one has the next epoch."""
        self.drain(client)
        client.ghosts.clear()
        if not client.transactional or client.is_lost:
            return
        marker = Marker(client.producer_id, client.epoch, commit=True)
        self.log.append_marker(marker, now_ms=self.clock.now_ms())
        if client.version is V2:
            client.epoch += 1
            client.next = client.acknowledged = 0

    # --- what must hold --------------------------------------------------------------------------

    def drain(self, client: Client) -> None:
        self.fs.clear_faults()
        self.busy = 0
        for _ in range(1000):
            while client.answers and not client.is_lost:
                client.take_answer()
            if client.is_lost or not (client.waiting or client.wire):
                return
            self.arrive(client, IN_FLIGHT)
        raise AssertionError("a healthy broker never took everything")

    def check(self) -> None:
        for client in self.clients:
            self.drain(client)
            assert not client.is_lost, f"producer {client.producer_id} can't continue"
        self.log.flush()
        data = read_bytes(self.log)
        for client in self.clients:
            there = [
                record.value
                for position, header in iter_headers(data)
                if header.producer_id == client.producer_id and not header.is_control
                for record in decode_records(data, position)
            ]
            assert there == sorted(client.delivered, key=int)  # values rise as sequences do

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.check()


TestPipelining = PipeliningSimulation.TestCase
TestPipelining.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(4))
def test_random_runs(seed: int) -> None:
    """The same by plain chance."""
    for run in range(40):
        rng = random.Random(100 * seed + run)
        simulation = PipeliningSimulation()
        simulation.start()
        for _ in range(rng.choice((5, 20, 60))):
            simulation.act(rng.choice(ACTIONS), rng.randrange(3), rng.randint(1, 6))
        simulation.check()
