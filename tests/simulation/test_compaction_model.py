"""Compare compaction with a small model: the last value of each key.

The steps run in any order: keyed writes with all codecs and tombstones, rolls, clean restarts,
passing time, and compactions. A compaction runs completely, is closed in the middle, is interleaved
with writes, is killed at any call, or loses power. Readers must then get ``dict(last value per
key)``. No record must change its offset or content, records outside of the cleaned part must all be
there, and tombstones must stay for ``delete.retention.ms`` and then be removed.

Transactions write the same keys. A ``read_committed`` reader must never see an aborted record and
always see a committed one. The state of producers must not be lost, and a log that is replayed from
its start must not have an open transaction that has ended.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.crashfs import CrashingFileSystem
from tests.support.effort import examples
from tests.support.faultyfs import CrashError
from tests.support.logs import TP, open_log, open_store, read_bytes
from tidemill.clock import ManualClock
from tidemill.log.compaction.run import cleanable, compact
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.markers import Marker
from tidemill.log.format.records import NewRecord, Record, decode_records, encode_batch
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.snapshots import replay_segment
from tidemill.log.partition.transactions import find_aborted
from tidemill.log.steps import run_steps
from tidemill.log.store import LogStore

RETENTION_MS = 20_000
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "350",
    "index.interval.bytes": "80",
    "delete.retention.ms": str(RETENTION_MS),
    "file.delete.delay.ms": "500",
}
PRODUCER = 5
WRITERS = (11, 12)

keys = st.sampled_from([b"a", b"b", b"c", b"d", b""])
values = st.none() | st.binary(max_size=40)
batches = st.lists(st.tuples(keys, values), min_size=1, max_size=5)


@dataclass
class Model:
    """The written records, and what readers must get."""

    history: dict[int, Record] = field(default_factory=dict)
    latest: dict[bytes, bytes] = field(default_factory=dict)
    tried: dict[int, int] = field(default_factory=dict)
    """The earliest time when a compaction can have reached a tombstone."""
    reached: dict[int, int] = field(default_factory=dict)
    """The time when a compaction had certainly reached a tombstone."""

    markers: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    """The offsets of records whose transaction was aborted."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """The offsets of records by the producer of their transaction."""

    @property
    def end(self) -> int:
        return len(self.history) + len(self.markers)

    def committed(self) -> list[Record]:
        """Return what ``read_committed`` gets from an uncompacted log, without a limit."""
        pending = {offset for offsets in self.open.values() for offset in offsets}
        return [r for r in self.history.values() if r.offset not in self.aborted | pending]

    def end_transaction(self, producer_id: int, offset: int, commit: bool) -> None:
        offsets = self.open.pop(producer_id)
        self.markers.add(offset)
        if not commit:
            self.aborted.update(offsets)
        self.settle()

    def settle(self) -> None:
        self.latest = {}
        for record in self.committed():
            self.apply(record)

    def write(self, record: Record) -> None:
        self.history[record.offset] = record
        self.apply(record)

    def apply(self, record: Record) -> None:
        assert record.key is not None
        if record.value is None:
            self.latest.pop(record.key, None)
        else:
            self.latest[record.key] = record.value

    def last_offsets(self) -> dict[bytes, int]:
        return {r.key: r.offset for r in self.committed() if r.key is not None}


class CompactionMachine(RuleBasedStateMachine):
    @initialize(lag=st.sampled_from([0, 0, 3000]))
    def start(self, lag: int) -> None:
        self.fs = CrashingFileSystem()
        self.clock = ManualClock()
        self.configs = {**CONFIGS, "min.compaction.lag.ms": str(lag)}
        self.model = Model()
        self.sequence = 0
        self.sequences = dict.fromkeys(WRITERS, 0)
        self.epochs = dict.fromkeys(WRITERS, 0)
        self.open()
        self.log.flush()

    def open(self) -> None:
        self.store: LogStore = open_store("/data", self.clock, self.fs)
        self.log: PartitionLog = open_log(self.store, self.configs)
        assert not self.store.offline

    # --- operations ------------------------------------------------------------------------------

    @rule(
        records=batches,
        codec=st.integers(0, 4),
        idempotent=st.booleans(),
        step=st.integers(0, 2000),
    )
    def write(
        self, records: list[tuple[bytes, bytes | None]], codec: int, idempotent: bool, step: int
    ) -> None:
        self.clock.advance(step)
        now = self.clock.now_ms()
        producer = (PRODUCER, 0, self.sequence) if idempotent else (-1, -1, -1)
        batch = encode_batch(
            [NewRecord(key, value) for key, value in records],
            timestamp_ms=now,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        info = self.log.append(memoryview(batch), now_ms=now)
        self.log.flush()
        assert not info.duplicate
        self.sequence += len(records) if idempotent else 0
        for index, (key, value) in enumerate(records):
            self.model.write(Record(info.first_offset + index, now, key, value))

    @rule(records=batches, codec=st.integers(0, 4), writer=st.sampled_from(WRITERS))
    def write_in_transaction(
        self, records: list[tuple[bytes, bytes | None]], codec: int, writer: int
    ) -> None:
        now = self.clock.now_ms()
        batch = encode_batch(
            [NewRecord(key, value) for key, value in records],
            timestamp_ms=now,
            codec=codec,
            producer_id=writer,
            producer_epoch=self.epochs[writer],
            base_sequence=self.sequences[writer],
            transactional=True,
        )
        info = self.log.append(memoryview(batch), now_ms=now)
        self.log.flush()
        self.sequences[writer] += len(records)
        offsets = self.model.open.setdefault(writer, [])
        for index, (key, value) in enumerate(records):
            offset = info.first_offset + index
            offsets.append(offset)
            self.model.history[offset] = Record(offset, now, key, value)

    @rule(writer=st.sampled_from(WRITERS), commit=st.booleans(), bump=st.booleans())
    def end_transaction(self, writer: int, commit: bool, bump: bool) -> None:
        if writer not in self.model.open:
            return
        if bump:  # as KIP-890 does; the new epoch starts with sequence 0
            self.epochs[writer] += 1
            self.sequences[writer] = 0
        marker = Marker(writer, self.epochs[writer], commit)
        info = self.log.append_marker(marker, now_ms=self.clock.now_ms())
        assert info is not None
        self.log.flush()
        self.model.end_transaction(writer, info.first_offset, commit)

    def committed_records(self) -> list[Record]:
        """Return what a ``read_committed`` consumer gets: it drops aborted records."""
        log = self.log
        stable = log.last_stable_offset
        aborted = {
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for entry in find_aborted(log.chain, log.log_start_offset, stable)
        }
        data = read_bytes(log)
        out = []
        for position, header in iter_headers(data):
            if header.is_control or header.base_offset >= stable:
                continue
            if header.is_transactional and any(
                producer == header.producer_id and first <= header.base_offset < last
                for producer, first, last in aborted
            ):
                continue
            out += decode_records(data, position)
        return out

    @rule(milliseconds=st.sampled_from([1, 1000, 3000, RETENTION_MS // 2, RETENTION_MS]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.store.purge_deleted()

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock.now_ms())
        self.log.flush()

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @rule(power=st.booleans(), seed=st.integers(0, 1000))
    def crash(self, power: bool, seed: int) -> None:
        if power:
            self.fs.power_cut(random.Random(seed))
        else:
            self.fs.kill()
        self.open()

    # --- compaction ------------------------------------------------------------------------------

    def try_compaction(self) -> int:
        """Record that a compaction can reach tombstones from now on; return its end."""
        end = cleanable(self.log, self.clock.now_ms()).end_offset
        for record in self.model.committed():
            if record.value is None and record.offset < end:
                self.model.tried.setdefault(record.offset, self.clock.now_ms())
        return end

    @rule(max_keys=st.sampled_from([1, 2, 3, 1000]))
    def compact(self, max_keys: int) -> None:
        now = self.clock.now_ms()
        end = self.try_compaction()
        dirty = cleanable(self.log, now).dirty_bytes
        run_steps(compact(self.log, now, max_keys=max_keys))
        if not dirty:
            return
        # The cleaned part has each key once, and only tombstones that are not expired.
        last = self.model.last_offsets()
        cleaned = [record for record in self.data_records() if record.offset < end]
        newest = {
            record.key: record.offset for record in self.model.committed() if record.offset < end
        }
        assert not {record.offset for record in cleaned} & self.model.aborted
        assert all(newest[record.key] == record.offset for record in cleaned)
        for offset, since in self.model.reached.items():
            if since + RETENTION_MS <= now:
                assert offset not in {record.offset for record in cleaned}
        for record in self.model.committed():
            if record.value is None and record.offset < end:
                self.model.reached.setdefault(record.offset, now)
        assert last.keys() >= self.model.latest.keys()

    @rule(milliseconds=st.sampled_from([RETENTION_MS - 1, RETENTION_MS]))
    def compact_again_after_the_retention(self, milliseconds: int) -> None:
        """Compact a tombstone twice: random steps alone hardly ever do so at the right time."""
        lag = self.log.config.min_compaction_lag_ms
        for key, pause in ((b"a", lag), (b"b", milliseconds - lag)):
            self.wait(pause)
            self.write([(key, None)], 0, False, 0)
            self.roll()
            self.wait(lag)
            self.compact(1000)

    @rule(steps=st.integers(0, 40), max_keys=st.sampled_from([2, 1000]))
    def drop_a_compaction(self, steps: int, max_keys: int) -> None:
        self.try_compaction()
        run = compact(self.log, self.clock.now_ms(), max_keys=max_keys)
        for _ in range(steps):
            next(run, None)
        run.close()

    @rule(records=batches, every=st.integers(1, 6))
    def compact_while_writing(self, records: list[tuple[bytes, bytes | None]], every: int) -> None:
        self.try_compaction()
        run = compact(self.log, self.clock.now_ms())
        for step, _ in enumerate(run):
            if step % every == 0 and step < 4 * every:
                self.write(records, step % 5, False, 0)
                self.reads_are_right()

    @rule(
        call=st.integers(0, 60),
        power=st.booleans(),
        seed=st.integers(0, 1000),
        again=st.integers(0, 12),
        max_keys=st.sampled_from([2, 1000]),
    )
    def crash_in_a_compaction(
        self, call: int, power: bool, seed: int, again: int, max_keys: int
    ) -> None:
        self.try_compaction()
        self.fs.arm(call)
        with suppress(CrashError):
            run_steps(compact(self.log, self.clock.now_ms(), max_keys=max_keys))
        rng = random.Random(seed)
        self.fs.power_cut(rng) if power else self.fs.kill()
        self.fs.arm(again)
        try:
            self.open()
        except CrashError:  # and once more, while it is recovered
            self.fs.power_cut(rng) if power else self.fs.kill()
            self.open()
        self.fs.arm(None)
        names = self.fs.files(f"/data/{TP}")
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def reads_are_right(self) -> None:
        model = self.model
        records = self.data_records()
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert all(model.history[record.offset] == record for record in records)
        latest: dict[bytes, bytes] = {}
        stable = self.log.last_stable_offset
        for record in self.committed_records():
            assert record.offset not in model.aborted
            assert record.key is not None
            if record.value is None:
                latest.pop(record.key, None)
            else:
                latest[record.key] = record.value
        wanted: dict[bytes, bytes] = {}
        for record in model.committed():
            if record.offset < stable and record.key is not None:
                wanted.pop(record.key, None)
                if record.value is not None:
                    wanted[record.key] = record.value
        assert latest == wanted
        assert self.log.log_end_offset == model.end
        firsts = [offsets[0] for offsets in model.open.values()]
        assert stable == min([*firsts, model.end])

    def data_records(self) -> list[Record]:
        data = read_bytes(self.log)
        return [
            record
            for position, header in iter_headers(data)
            if not header.is_control
            for record in decode_records(data, position)
        ]

    @invariant()
    def a_log_that_is_read_again_has_the_same_transactions_open(self) -> None:
        states = ProducerStates()
        for segment in self.log.segments:
            replay_segment(states, segment, 0)
        assert states.open_transactions() == self.log.open_transactions()

    @invariant()
    def what_may_not_be_cleaned_is_all_there(self) -> None:
        active = self.log.chain.active.base_offset
        lag = self.log.config.min_compaction_lag_ms
        young = self.clock.now_ms() - lag if lag else self.clock.now_ms() + 1
        offsets = {record.offset for record in self.data_records()}
        active = min(active, self.log.last_stable_offset)
        for record in self.model.history.values():
            if record.offset >= self.log.chain.active.base_offset or (
                record.offset >= self.log.last_stable_offset
            ):
                assert record.offset in offsets
            if record.offset in self.model.aborted:
                continue
            if record.offset >= active or record.timestamp > young:
                assert record.offset in offsets

    @invariant()
    def tombstones_stay_for_their_time(self) -> None:
        offsets = {record.offset for record in self.data_records()}
        now = self.clock.now_ms()
        last = self.model.last_offsets()
        for record in self.model.committed():
            if (
                record.value is None
                and record.key is not None
                and last[record.key] == record.offset
            ):
                since = self.model.tried.get(record.offset)
                if since is None or now < since + RETENTION_MS:
                    assert record.offset in offsets

    @invariant()
    def the_producer_is_still_known(self) -> None:
        entry = self.log.producers.get(PRODUCER)
        assert (entry.last_sequence if entry else -1) == self.sequence - 1
        for writer, sequence in self.sequences.items():
            entry = self.log.producers.get(writer)
            assert (entry.last_sequence if entry else -1) == sequence - 1
            assert (entry.epoch if entry else 0) == self.epochs[writer]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestCompactionModel = CompactionMachine.TestCase
TestCompactionModel.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
