"""Compare the log with a small model: a list of values, and how many of them are synced.

The steps run in any order: append, read, roll, delete records, apply retention, checkpoint, kill
(also in the middle of a write), cut the power, and open the log again. All synced records must be
there, no record must change its offset, and each readable record must be the one that was appended.
Transactions of several producers begin, write and end in between. The last stable offset and the
aborted transactions must always be those of the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.effort import examples
from tests.support.faultyfs import CrashError, FaultyFileSystem
from tests.support.journaled import commit, open_journaled, store_segments
from tests.support.logs import TP, open_log, read_records
from tidemill.clock import ManualClock
from tidemill.log.disk.aborted_index import ENTRY_SIZE, decode_aborted
from tidemill.log.errors import DiskFullError, OffsetOutOfRangeError, StorageError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.markers import Marker, encode_marker
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.names import TXN_INDEX
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.transactions import OpenTransaction
from tidemill.log.steps import run_steps
from tidemill.log.store import LogStore

CONFIGS = {
    "internal.segment.bytes": "900",
    "index.interval.bytes": "100",
    "retention.ms": "20000",
    "file.delete.delay.ms": "1000",
}
PRODUCER = 7
WRITERS = (11, 12, 13)


@dataclass
class Transaction:
    """A transaction of a writer."""

    producer_id: int
    first: int
    marker: int | None = None
    commit: bool = False


@dataclass
class Model:
    """The expected content of the log."""

    values: list[bytes] = field(default_factory=list)
    """The value at each offset from 0 on, including deleted records."""
    timestamps: list[int] = field(default_factory=list)
    start: int = 0
    synced: int = 0
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    """(first offset, sequence, count) of each batch of the idempotent producer."""

    writes: list[tuple[int, int, int]] = field(default_factory=list)
    """(first offset, producer, count) of each batch of the writers."""
    transactions: list[Transaction] = field(default_factory=list)
    """Ordered by first offset."""

    def lose_from(self, end: int) -> None:
        self.writes = [each for each in self.writes if each[0] < end]
        self.transactions = [each for each in self.transactions if each.first < end]
        for each in self.transactions:
            if each.marker is not None and each.marker >= end:
                each.marker = None
        del self.values[end:]
        del self.timestamps[end:]
        self.sent = [each for each in self.sent if each[0] < end]
        self.synced = end

    def open_of(self, producer_id: int) -> Transaction | None:
        for each in self.transactions:
            if each.producer_id == producer_id and each.marker is None:
                return each
        return None

    @property
    def stable(self) -> int:
        held = [t.first for t in self.transactions if t.marker is None or t.marker >= self.synced]
        return max(min([*held, self.synced]), min(self.start, self.synced))

    @property
    def next_sequence(self) -> int:
        return self.sent[-1][1] + self.sent[-1][2] if self.sent else 0


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.model = Model()
        self.least_start = 0
        self.serial = 0
        self.open()
        self.log.flush()

    def open(self) -> None:
        self.store = self.open_store()
        self.log: PartitionLog = open_log(self.store, CONFIGS)

    def open_store(self) -> LogStore:
        return LogStore.open("/data", clock=self.clock, fs=self.fs, max_open_files=4)

    def batch(
        self, count: int, size: int, codec: int, sequence: int = -1, writer: int = -1
    ) -> bytearray:
        self.serial += 1
        values = [b"%d.%d" % (self.serial, i) + bytes(size) for i in range(count)]
        self.pending = values
        return encode_batch(
            [NewRecord(b"k", value) for value in values],
            timestamp_ms=self.clock.now_ms(),
            codec=codec,
            producer_id=writer if writer >= 0 else PRODUCER if sequence >= 0 else -1,
            transactional=writer >= 0,
            producer_epoch=0 if sequence >= 0 else -1,
            base_sequence=sequence,
        )

    def accept(self) -> None:
        self.model.values += self.pending
        self.model.timestamps += [self.clock.now_ms()] * len(self.pending)

    # --- operations of a broker ------------------------------------------------------------------

    @rule(count=st.integers(1, 4), size=st.integers(0, 150), codec=st.sampled_from([0, 1, 4]))
    def append(self, count: int, size: int, codec: int) -> None:
        info = self.log.append(self.batch(count, size, codec), now_ms=self.clock.now_ms())
        assert info.first_offset == len(self.model.values)
        assert info.last_offset == info.first_offset + count - 1
        self.accept()

    @rule(count=st.integers(1, 3))
    def append_idempotent(self, count: int) -> None:
        sequence = self.model.next_sequence
        batch = self.batch(count, 10, 0, sequence)
        info = self.log.append(batch, now_ms=self.clock.now_ms())
        assert not info.duplicate
        self.accept()
        self.model.sent.append((info.first_offset, sequence, count))

    @precondition(lambda self: self.model.sent)
    @rule(back=st.integers(1, 5))
    def append_again(self, back: int) -> None:
        offset, sequence, count = self.model.sent[-min(back, len(self.model.sent))]
        batch = self.batch(count, 10, 0, sequence)
        info = self.log.append(batch, now_ms=self.clock.now_ms())
        assert info.duplicate
        assert info.first_offset == offset

    # --- transactions ----------------------------------------------------------------------------

    @rule(producer=st.sampled_from(WRITERS), count=st.integers(1, 3))
    def write_in_transaction(self, producer: int, count: int) -> None:
        model = self.model
        sequence = sum(each[2] for each in model.writes if each[1] == producer)
        batch = self.batch(count, 20, 0, sequence, producer)
        info = self.log.append(batch, now_ms=self.clock.now_ms())
        assert not info.duplicate
        assert info.first_offset == len(model.values)
        if model.open_of(producer) is None:
            model.transactions.append(Transaction(producer, info.first_offset))
        model.writes.append((info.first_offset, producer, count))
        self.accept()

    @precondition(lambda self: self.model.writes)
    @rule()
    def write_again(self) -> None:
        offset, producer, count = self.model.writes[-1]
        sequence = sum(each[2] for each in self.model.writes if each[1] == producer) - count
        batch = self.batch(count, 20, 0, sequence, producer)
        info = self.log.append(batch, now_ms=self.clock.now_ms())
        assert (info.duplicate, info.first_offset) == (True, offset)

    @rule(producer=st.sampled_from(WRITERS), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        marker = Marker(producer, 0, commit, 3)
        info = self.log.append_marker(marker, now_ms=self.clock.now_ms())
        transaction = self.model.open_of(producer)
        if transaction is None:
            assert info is None
            return
        assert info is not None
        assert info.first_offset == len(self.model.values)
        transaction.marker, transaction.commit = info.first_offset, commit
        self.accept_marker(marker)

    def accept_marker(self, marker: Marker) -> None:
        record = decode_records(encode_marker(marker, timestamp_ms=0))[0]
        assert record.value is not None
        self.model.values.append(record.value)
        self.model.timestamps.append(self.clock.now_ms())

    @rule(producer=st.sampled_from(WRITERS), after=st.integers(0, 130))
    def kill_in_abort(self, producer: int, after: int) -> None:
        if self.model.open_of(producer) is None:
            return
        marker = Marker(producer, 0, False, 3)
        self.fs.tear_next_write(after)
        try:
            info = self.log.append_marker(marker, now_ms=self.clock.now_ms())
        except CrashError:
            info = None
        self.fs.kill()
        transaction = self.model.open_of(producer)
        assert transaction is not None
        before = len(self.model.values)
        transaction.marker = before
        self.accept_marker(marker)
        self.reopen(least=before if info is None else before + 1)

    @rule(producer=st.sampled_from(WRITERS))
    def no_space_for_an_abort(self, producer: int) -> None:
        if self.model.open_of(producer) is None:
            return
        marker = Marker(producer, 0, False, 3)
        for space in (5, 50):
            self.fs.capacity = self.fs.used() + space
            with pytest.raises(DiskFullError):
                self.log.append_marker(marker, now_ms=self.clock.now_ms())
            self.fs.clear_faults()

    @rule(between=st.booleans())
    def sync(self, between: bool) -> None:
        ticket = self.log.begin_sync()
        end = len(self.model.values)
        if between:
            self.append(1, 5, 0)
        if ticket is not None:
            ticket.run()
            self.log.finish_sync(ticket)
            self.model.synced = end

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock.now_ms())

    @rule(milliseconds=st.integers(1, 8000))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def retain(self) -> None:
        self.log.delete_old_segments(self.clock.now_ms())
        assert self.log.log_start_offset >= self.model.start
        assert self.log.log_start_offset <= max(self.model.start, self.model.stable)
        limit = self.clock.now_ms() - 20000
        assert all(t < limit for t in self.model.timestamps[: self.log.log_start_offset][-1:]) or (
            self.log.log_start_offset == self.model.start
        )
        self.model.start = self.log.log_start_offset
        self.store.purge_deleted()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = int(self.model.start + share * (self.model.synced - self.model.start))
        if offset >= self.model.start:
            assert self.log.delete_records_before(offset) == offset
            self.model.start = offset

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        self.least_start = self.model.start
        assert self.log.recovery_point <= self.model.synced

    # --- failures --------------------------------------------------------------------------------

    @rule()
    def refuse_when_disk_is_full(self) -> None:
        self.fs.capacity = self.fs.used() + 30
        with pytest.raises(DiskFullError):
            self.log.append(self.batch(2, 100, 0), now_ms=self.clock.now_ms())
        self.fs.clear_faults()
        assert self.log.log_end_offset == len(self.model.values)

    @rule()
    def restart_clean(self) -> None:
        self.store.close()
        self.model.synced = len(self.model.values)
        self.least_start = self.model.start
        self.open()
        assert self.store.clean_start
        assert self.store.reports == []
        assert self.log.log_start_offset == self.model.start

    @rule()
    def kill(self) -> None:
        self.fs.kill()
        self.reopen(least=len(self.model.values))
        assert self.store.reports == []

    @rule(after=st.integers(0, 200))
    def kill_in_append(self, after: int) -> None:
        batch = self.batch(2, 80, 0)
        whole = after >= len(batch)
        self.fs.tear_next_write(after)
        with pytest.raises(CrashError):
            self.log.append(batch, now_ms=self.clock.now_ms())
        self.fs.kill()
        before = len(self.model.values)
        self.accept()
        self.reopen(least=before)
        # If the append had to roll first, the torn write was that of an index.
        assert len(self.model.values) in ((before, before + 2) if whole else (before,))

    @rule(seed=st.integers(0, 1 << 30))
    def cut_power(self, seed: int) -> None:
        self.fs.power_cut(random.Random(seed))
        self.reopen(least=self.model.synced)

    def reopen(self, least: int) -> None:
        self.store = self.open_store()
        assert not self.store.clean_start
        if TP in self.store.offline:
            raise self.store.offline[TP]
        self.log = open_log(self.store, CONFIGS)
        end = self.log.log_end_offset
        assert least <= end <= len(self.model.values)
        if end < len(self.model.values):
            self.model.lose_from(end)
        self.model.synced = end
        assert self.least_start <= self.log.log_start_offset <= max(self.model.start, 0)
        self.model.start = self.log.log_start_offset

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def offsets_agree(self) -> None:
        assert self.log.log_start_offset == self.model.start
        assert self.log.high_watermark == self.model.synced
        assert self.log.log_end_offset == len(self.model.values)

    @invariant()
    def readers_see_what_was_appended(self) -> None:
        records = read_records(self.log)
        inside = [each for each in records if each.offset >= self.model.start]
        assert [(each.offset, each.value) for each in inside] == list(
            enumerate(self.model.values[: self.model.synced])
        )[self.model.start :]

    @invariant()
    def transactions_agree(self) -> None:
        model, log = self.model, self.log
        assert log.last_stable_offset == model.stable
        open_ones = [
            OpenTransaction(each.producer_id, 0, each.first)
            for each in model.transactions
            if each.marker is None
        ]
        assert log.open_transactions() == open_ones
        assert log.has_open_transactions == bool(open_ones)

    @invariant()
    def entries_of_synced_markers_are_on_disk(self) -> None:
        folder = self.fs._folder(self.log.chain.folder)
        for segment in self.log.segments:
            if segment.aborted is None:
                continue
            path = segment.path(TXN_INDEX)
            node = self.fs._file(path)
            entries = decode_aborted(bytes(node.data[: segment.aborted.size]))
            stored = min(self.model.synced, self.log.stored_offset)
            synced = sum(entry.last_offset < stored for entry in entries)
            assert len(node.durable) >= synced * ENTRY_SIZE
            assert not synced or folder.durable.get(path.rpartition("/")[2]) is node

    @invariant()
    def aborted_ones_are_told(self) -> None:
        model, log = self.model, self.log
        stable = model.stable
        middle = (model.start + stable) // 2
        for first, end in ((model.start, stable), (model.start, middle), (middle, stable)):
            wanted = [
                (each.producer_id, each.first)
                for each in model.transactions
                if first < end
                and each.marker is not None
                and not each.commit
                and each.first < end
                and each.marker >= first
            ]
            assert log.aborted_transactions(first, end) == wanted

    @rule(share=st.floats(0, 1), max_bytes=st.integers(0, 500), min_one=st.booleans())
    def read(self, share: float, max_bytes: int, min_one: bool) -> None:
        offset = int(self.model.start + share * (len(self.model.values) - self.model.start))
        limit = self.model.synced
        found = self.log.read(offset, max_bytes, limit_offset=limit, min_one=min_one)
        if offset >= limit:
            assert found is None
            return
        assert found is not None
        data = bytes(found.load())
        headers = list(iter_headers(data))
        if not headers:
            assert not min_one
            return
        assert headers[0][1].base_offset <= offset <= headers[0][1].last_offset
        assert len(data) <= max(max_bytes, headers[0][1].size)
        for position, header in headers:
            assert header.last_offset < limit
            for record in decode_records(data, position):
                assert record.value == self.model.values[record.offset]

    @rule()
    def read_outside(self) -> None:
        for offset in (self.model.start - 1, len(self.model.values) + 1):
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset, 100, limit_offset=self.model.synced)

    @rule(share=st.floats(0, 1), shift=st.integers(-1, 1))
    def find_timestamp(self, share: float, shift: int) -> None:
        readable = range(self.model.start, self.model.synced)
        times = self.model.timestamps
        if readable:
            wanted = times[readable[int(share * (len(readable) - 1))]] + shift
            expected = next(((at, times[at]) for at in readable if times[at] >= wanted), None)
            assert run_steps(self.log.find_timestamp(wanted)) == expected
            latest = max(times[at] for at in readable)
            first = next((at, times[at]) for at in readable if times[at] == latest)
            assert run_steps(self.log.find_max_timestamp()) == first

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                self.store.close()
            except StorageError as error:
                raise AssertionError(error) from error
            assert self.fs.open_handles == 0


LogMachine.TestCase.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLogModel = LogMachine.TestCase


class JournaledLogMachine(LogMachine):
    """The same with a journal, and a disk that can keep any page of a file without the others."""

    @initialize()
    def start(self) -> None:
        super().start()
        self.fs.page = 64

    def open_store(self) -> LogStore:
        return open_journaled("/data", self.clock, self.fs, max_open_files=4)

    @rule()
    def write_to_the_journal(self) -> None:
        end = len(self.model.values)
        if commit(self.store, [self.log]) == []:
            self.model.synced = end

    @rule()
    def sync_segments_behind(self) -> None:
        end = len(self.model.values)
        store_segments(self.store, self.log)
        assert self.log.stored_offset == end
        self.model.synced = end

    @rule()
    def give_up_the_journal(self) -> None:
        self.store.journal.give_up()

    @precondition(lambda self: not (self.store.journal.is_open or self.store.journal.is_needed))
    @rule()
    def discard_the_journal(self) -> None:
        self.store.journal.discard()


JournaledLogMachine.TestCase.settings = LogMachine.TestCase.settings
TestJournaledLogModel = JournaledLogMachine.TestCase


@pytest.mark.parametrize("ordered", [True, False], ids=["a journal", "as POSIX"])
def test_a_power_cut_behind_a_roll_takes_no_partition_offline(ordered: bool) -> None:
    """The new segment can be on disk before the end, or the folder entry, of the previous one."""
    for seed in range(60):  # one of 24, and one of 3, found it
        machine = LogMachine()
        machine.start()
        machine.fs.ordered = ordered
        machine.log.append(machine.batch(2, 80, 0), now_ms=machine.clock.now_ms())
        machine.log.flush()
        synced = machine.log.high_watermark
        for _ in range(2):
            for _ in range(3):
                machine.log.append(machine.batch(2, 80, 0), now_ms=machine.clock.now_ms())
            machine.log.roll(machine.clock.now_ms())
        machine.log.append(machine.batch(2, 80, 0), now_ms=machine.clock.now_ms())
        machine.fs.power_cut(random.Random(seed))
        store = LogStore.open("/data", clock=machine.clock, fs=machine.fs, max_open_files=4)
        assert not store.offline
        assert open_log(store, CONFIGS).log_end_offset >= synced > 0
        store.close(clean=False)
