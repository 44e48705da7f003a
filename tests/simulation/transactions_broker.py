"""A small broker for the simulation of transactions, with real logs and the real coordinator.

Each operation is a generator that stops after each step, so that the power can be cut, or other
operations can run, between any two steps.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeVar
from uuid import UUID

from tests.state.driver import compacted
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import read_bytes, read_records
from tidemill.clock import ManualClock
from tidemill.log.config.parse import parse_config
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.markers import Marker, decode_marker
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.state.internal_topics import TRANSACTIONS_TOPIC
from tidemill.state.outcome import Outcome, StateRecord
from tidemill.state.transactions.machine import Transactions
from tidemill.state.transactions.types import InitProducer
from tidemill.state.transactions.upkeep import StartAction
from tidemill.state.types import ProducerIdentity, TransactionVersion

JOURNAL = TopicPartition(TRANSACTIONS_TOPIC, 0)
PARTITIONS = (TopicPartition("p", 0), TopicPartition("q", 0), TopicPartition("q", 1))
CONFIG = parse_config({"internal.segment.bytes": "2000", "index.interval.bytes": "200"})

R = TypeVar("R")
Steps = Generator[None, None, R]


class Written(NamedTuple):
    """A write. It may be acknowledged when both logs are durable up to these offsets."""

    tp: TopicPartition
    end_offset: int
    journal_end: int


class SmallBroker:
    """A broker with one journal and three partitions. After ``fs.power_cut``, call ``start``."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.next_id = 1000
        self.start(random.Random(0))
        for log in self.store.partitions.values():
            log.flush()

    # --- life ------------------------------------------------------------------------------------

    def start(self, rng: random.Random) -> None:
        """Open the logs and replay the journal, sometimes a compacted copy of it."""
        self.store = LogStore.open("/data", clock=self.clock, fs=self.fs)
        self.journal = self._log(JOURNAL)
        self.logs = {tp: self._log(tp) for tp in PARTITIONS}
        self.machine = Transactions()
        records = [StateRecord(each.key or b"", each.value) for each in read_records(self.journal)]
        for record in compacted(records) if rng.random() < 0.5 else records:
            assert self.machine.replay(record.key, record.value)
        self.machine.loaded(self.now)

    def _log(self, tp: TopicPartition) -> PartitionLog:
        if tp in self.store.partitions:
            return self.store.get(tp)
        return self.store.create(tp, CONFIG, UUID(int=hash(tp.partition) + len(tp.topic)))

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    # --- steps -----------------------------------------------------------------------------------

    def apply(self, outcome: Outcome[R]) -> R:
        for record in outcome.records:
            batch = encode_batch([NewRecord(record.key, record.value)], timestamp_ms=self.now)
            self.journal.append(batch, now_ms=self.now)
            assert self.machine.replay(record.key, record.value)
        return outcome.result

    def _markers(self, transactional_id: str) -> Steps[None]:
        found = self.machine.unfinished(transactional_id)
        assert found is not None
        marker, partitions = found
        for tp in partitions:
            yield
            self.logs[tp].append_marker(marker, now_ms=self.now)
        for tp in partitions:
            yield
            self.logs[tp].flush()

    def _finish(self, transactional_id: str) -> Steps[None]:
        """Complete a decision: flush it, write and flush the markers, append Complete."""
        yield
        self.journal.flush()
        yield from self._markers(transactional_id)
        yield
        self.apply(self.machine.complete(transactional_id, self.now))

    def repair(self) -> Steps[None]:
        """Repair after a start: transactions that the logs have open, then unfinished decisions."""
        for tp, log in self.logs.items():
            for found in log.open_transactions():
                yield
                action = self.machine.upkeep.start_action(tp, found)
                if action is StartAction.ADOPT:
                    transactional_id = self.machine.find(found.producer_id)
                    assert transactional_id is not None
                    self.apply(self.machine.upkeep.adopt(transactional_id, tp, self.now))
                elif action is StartAction.ABORT:
                    marker = Marker(found.producer_id, found.epoch, commit=False)
                    log.append_marker(marker, now_ms=self.now)
                    yield
                    log.flush()
        for transactional_id in self.machine.all_unfinished():
            yield from self._finish(transactional_id)

    # --- requests --------------------------------------------------------------------------------

    def _fresh(self, transactional_id: str) -> int | None:
        if not self.machine.needs_producer_id(transactional_id):
            return None
        self.next_id += 1
        return self.next_id

    def init(self, request: InitProducer) -> Steps[ProducerIdentity]:
        transactional_id = request.transactional_id
        self.apply(self.machine.fence(request, self.now))
        if self.machine.unfinished(transactional_id):
            yield from self._finish(transactional_id)
        fresh = self._fresh(transactional_id)
        answer = self.apply(self.machine.init(request, self.now, fresh))
        yield
        self.journal.flush()
        return answer

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tps: Iterable[TopicPartition],
        version: TransactionVersion,
    ) -> Steps[None]:
        outcome = self.machine.add(transactional_id, producer, list(tps), self.now, version)
        self.apply(outcome)
        yield
        self.journal.flush()

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> Steps[ProducerIdentity]:
        fresh = self._fresh(transactional_id)
        answer = self.apply(
            self.machine.end(transactional_id, producer, commit, self.now, version, fresh)
        )
        if self.machine.unfinished(transactional_id):
            yield from self._finish(transactional_id)
        return answer

    def expire(self, transactional_id: str) -> Steps[None]:
        self.apply(self.machine.upkeep.expire(transactional_id, self.now))
        if self.machine.unfinished(transactional_id):
            yield from self._finish(transactional_id)

    def produce(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        sequence: int,
        value: bytes,
        version: TransactionVersion,
    ) -> Written:
        """Not in line with the other requests of the id: writes are checked on the spot."""
        outcome = self.machine.check_write(transactional_id, producer, tp, self.now, version)
        if outcome is not None:
            self.apply(outcome)
        batch = encode_batch(
            [NewRecord(None, value)],
            timestamp_ms=self.now,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        info = self.logs[tp].append(batch, now_ms=self.now)
        journal_end = self.journal.log_end_offset if outcome is not None else 0
        return Written(tp, info.last_offset + 1, journal_end)

    def is_durable(self, written: Written) -> bool:
        log = self.logs[written.tp]
        return (
            log.high_watermark >= written.end_offset
            and self.journal.high_watermark >= written.journal_end
        )

    # --- readers ---------------------------------------------------------------------------------

    def read_committed(self, tp: TopicPartition) -> list[bytes]:
        """Return the values that a consumer reads up to the last stable offset."""
        log = self.logs[tp]
        end = log.last_stable_offset
        aborted = log.aborted_transactions(0, end)
        assert aborted == sorted(aborted, key=lambda each: each[1])
        data = read_bytes(log)
        skipping: set[int] = set()
        values = []
        for position, header in iter_headers(data):
            if header.base_offset >= end:
                break
            while aborted and aborted[0][1] <= header.last_offset:
                skipping.add(aborted.pop(0)[0])
            if header.is_control:
                skipping.discard(header.producer_id)
            elif header.producer_id not in skipping:
                values += [record.value or b"" for record in decode_records(data, position)]
        return values

    def scan(self, tp: TopicPartition) -> tuple[list[tuple[int, bytes]], int]:
        """Read the log without its indexes.

        Returns:
            The committed values with their offsets, also those after an open transaction; and the
            first offset that is open or not readable yet.
        """
        log = self.logs[tp]
        data = read_bytes(log)
        pending: dict[int, list[tuple[int, bytes]]] = {}
        committed: list[tuple[int, bytes]] = []
        for position, header in iter_headers(data):
            (record,) = decode_records(data, position)
            if not header.is_control:
                value = (header.base_offset, record.value or b"")
                pending.setdefault(header.producer_id, []).append(value)
                continue
            marker = decode_marker(data, position)
            assert marker is not None
            values = pending.pop(header.producer_id)
            committed += values if marker.commit else []
        first = [values[0][0] for values in pending.values()]
        return sorted(committed), min([*first, log.high_watermark])
