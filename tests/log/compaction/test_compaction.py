"""Compaction of a partition: which records and segments it keeps, and that it survives crashes."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator

import pytest

from tests.log.format.batches import batch_around
from tests.log.partition.one_partition import batch_from
from tests.support.crashfs import CrashingFileSystem
from tests.support.effort import in_nightly_runs
from tests.support.faultyfs import CrashError, Unlucky
from tests.support.logs import TP, find_slice, open_log, open_store, read_bytes, read_records, write
from tidemill.clock import ManualClock
from tidemill.log.compaction.run import Cleanable, Steps, cleanable, compact
from tidemill.log.disk.log_file import LogFile
from tidemill.log.errors import (
    CorruptLogError,
    DiskFullError,
    InvalidRecordError,
    StorageError,
    SyncFailedError,
)
from tidemill.log.format.batch import HEADER_SIZE, iter_headers
from tidemill.log.format.markers import Marker
from tidemill.log.format.records import Record
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.steps import Work, run_steps
from tidemill.log.store import LogStore

CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "400",
    "index.interval.bytes": "100",
    "min.cleanable.dirty.ratio": "0.5",
    "delete.retention.ms": "10000",
    "file.delete.delay.ms": "0",
}


class Place:
    """A store that can be killed and opened again."""

    def __init__(self) -> None:
        self.fs = CrashingFileSystem()
        self.clock = ManualClock()
        self.configs = dict(CONFIGS)
        self.open()

    def open(self) -> PartitionLog:
        self.store: LogStore = open_store("/data", self.clock, self.fs)
        self.log: PartitionLog = open_log(self.store, self.configs)
        return self.log

    def configure(self, **configs: str) -> None:
        """Change configs of the partition."""
        self.configs |= {name.replace("_", "."): value for name, value in configs.items()}
        self.log = open_log(self.store, self.configs)

    def write(self, *records: tuple[str, str | None], codec: int = 0) -> None:
        """Append a batch of (key, value), one second later than the last one."""
        write(
            self.log,
            [(key.encode(), None if v is None else v.encode()) for key, v in records],
            self.clock.now_ms(),
            codec=codec,
        )
        self.clock.advance(1000)

    def fill(self, rounds: int = 6, codec: int = 0) -> None:
        """Write three keys repeatedly, then roll."""
        for number in range(rounds):
            self.write(*((key, f"{key}{number}" + "." * 40) for key in "abc"), codec=codec)
        self.roll()

    def roll(self) -> None:
        self.log.roll(self.clock.now_ms())
        self.log.flush()

    def compact(self) -> None:
        run_steps(compact(self.log, self.clock.now_ms()))

    def begin(self, steps: int) -> Steps:
        """Compact for so many steps; return the rest."""
        rest = compact(self.log, self.clock.now_ms())
        for _ in range(steps):
            next(rest, None)
        return rest

    def due(self) -> Cleanable:
        return cleanable(self.log, self.clock.now_ms())

    def leftovers(self) -> list[str]:
        """Return the names of files that a compaction needs only while it runs."""
        names = self.fs.files("/data/t-0")
        return [name for name in names if name.endswith((".cleaned", ".swap"))]

    def latest(self) -> dict[bytes, bytes]:
        """Return the last value of each key, as a reader sees it."""
        out: dict[bytes, bytes] = {}
        for record in read_records(self.log):
            assert record.key is not None
            if record.value is None:
                out.pop(record.key, None)
            else:
                out[record.key] = record.value
        return out

    def offsets(self) -> list[int]:
        return [record.offset for record in read_records(self.log)]


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.store.close(clean=False)


# --- what stays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_the_last_record_of_each_key_is_kept_at_its_offset(place: Place, codec: int) -> None:
    place.fill(codec=codec)
    place.write(("z", "active"))
    before = {record.offset: record for record in read_records(place.log)}
    latest, size = place.latest(), place.log.size_bytes
    place.compact()
    after = read_records(place.log)
    assert [record.offset for record in after] == [15, 16, 17, 18]
    assert all(before[record.offset] == record for record in after)
    assert place.latest() == latest
    assert place.log.size_bytes < size
    headers = [header for _, header in iter_headers(read_bytes(place.log))]
    assert {header.codec for header in headers if header.record_count > 1} == {codec}


def test_a_reader_can_start_at_a_removed_offset(place: Place) -> None:
    place.fill()
    place.compact()
    for offset in range(18):
        found = find_slice(place.log, offset, 10_000)
        headers = [header for _, header in iter_headers(found.load())]
        assert headers[0].last_offset >= offset


def test_a_second_run_finds_nothing_to_do(place: Place) -> None:
    place.fill()
    place.compact()
    assert place.due().dirty_bytes == 0
    segments, stored = list(place.log.segments), read_bytes(place.log)
    assert not list(compact(place.log, place.clock.now_ms()))
    assert place.log.segments == segments
    assert read_bytes(place.log) == stored
    place.fill(2)  # supersedes what was cleaned
    place.compact()
    assert place.offsets() == [21, 22, 23]


def test_segments_are_joined_up_to_their_size(place: Place) -> None:
    for number in range(30):
        place.write((f"key{number}", "x"), (f"dup{number % 2}", "." * 60))
    place.roll()
    before = len(place.log.segments)
    place.compact()
    place.write(("more", "x"))
    place.roll()
    place.compact()
    assert len(place.log.segments) < before
    assert all(segment.size <= 400 for segment in place.log.segments)
    bases = [segment.base_offset for segment in place.log.segments]
    assert bases == sorted(set(bases))


def test_a_batch_of_more_keys_than_the_map_holds_is_passed_behind_an_aborted_one(
    place: Place,
) -> None:
    aborted = batch_from(0, producer=7, transactional=True)
    place.log.append(aborted, now_ms=place.clock.now_ms())
    place.write(("b", "1"), ("c", "1"))
    place.roll()
    # The marker is in the next segment. A pass that begins there reads it again.
    place.log.append_marker(Marker(7, 0, commit=False), now_ms=place.clock.now_ms())
    place.log.flush()
    for step, _ in enumerate(compact(place.log, place.clock.now_ms(), max_keys=1)):
        assert step < 1000, "it does the same again and again"
    assert place.log.first_dirty_offset == place.log.chain.active.base_offset
    assert [record.offset for record in read_records(place.log)][:2] == [1, 2]


@pytest.mark.parametrize("unsynced", [1, 4, 5])  # of five, its window
def test_a_producer_is_known_after_a_power_cut_takes_what_was_not_synced(
    place: Place, unsynced: int
) -> None:
    now = place.clock.now_ms()
    mine = [(b"a", b"mine")]
    write(place.log, mine, now, producer=(1, 0, 0))
    write(place.log, [(b"a", b"newer, another's")], now)
    place.roll()
    for sequence in range(1, unsynced + 1):
        write(place.log, [(b"b", b"x")], now, producer=(1, 0, sequence), sync=False)
    place.compact()
    place.fs.power_cut(Unlucky())
    place.open()
    assert write(place.log, mine, now, producer=(1, 0, 0)) == 0  # known: a repetition
    assert place.latest() == {b"a": b"newer, another's"}


def answers(log: PartitionLog) -> list[int]:
    """Return the number of records in each answer to a consumer that reads from start to end."""
    found, offset = [], log.log_start_offset
    while offset < log.high_watermark:
        piece = find_slice(log, offset, 1 << 20)
        headers = [header for _, header in iter_headers(piece.load())]
        found.append(sum(header.record_count for header in headers))
        assert headers[-1].last_offset >= offset
        offset = headers[-1].last_offset + 1
    return found


@pytest.mark.parametrize("producers", [0, 40, 300])
def test_every_answer_has_a_record_even_if_segments_are_empty(place: Place, producers: int) -> None:
    place.configure(internal_segment_bytes=str(400 + 80 * producers))
    for number in range(16):
        place.fill()
        for producer in range(producers):  # the last batch of each stays, without its records
            identity = (number * producers + producer, 0, 0)
            write(place.log, [(b"a", b".")], place.clock.now_ms(), producer=identity)
        place.roll()
    place.write(("z", "active"))
    place.compact()
    empty = [
        segment
        for segment in place.log.segments
        if not any(header.record_count for _, header in segment.batches())
    ]
    assert len(empty) > 10  # as many make librdkafka believe that a record is too large
    assert 0 not in answers(place.log)


def test_a_log_without_a_record_is_read_to_its_end(place: Place) -> None:
    place.write(("a", "1"), ("a", None))
    place.roll()
    place.compact()
    place.clock.advance(place.log.config.delete_retention_ms)
    place.fs.kill()  # what was cleaned is forgotten, so that it is cleaned again
    place.open()
    place.compact()
    assert [segment.size for segment in place.log.segments] == [HEADER_SIZE, 0]
    assert place.offsets() == []


def test_segments_still_join_without_a_gap(place: Place) -> None:
    # Recovery sees by this that no segment is missing.
    for number in range(12):
        place.write(("only", "." * 300 + str(number)))
    place.roll()
    place.compact()
    for segment, following in zip(place.log.segments, place.log.segments[1:], strict=False):
        last = [header for _, header in segment.batches()][-1]
        assert last.last_offset + 1 == following.base_offset


def test_a_small_map_takes_several_passes_to_the_same_end(place: Place) -> None:
    for number in range(40):
        place.write((f"k{number % 10}", str(number)))
    place.roll()
    latest = place.latest()
    steps = compact(place.log, place.clock.now_ms(), max_keys=3)
    assert len({place.log.first_dirty_offset for _ in steps}) > 1
    assert place.latest() == latest
    assert place.offsets() == list(range(30, 40))
    assert place.log.first_dirty_offset == place.log.segments[-1].base_offset


def test_records_without_key_from_an_earlier_policy_are_dropped(place: Place) -> None:
    place.configure(cleanup_policy="delete")
    write(place.log, [(None, b"x"), (b"a", b"1")], place.clock.now_ms())
    place.roll()
    place.configure(cleanup_policy="compact")
    place.compact()
    assert place.offsets() == [1]


def test_tombstones_are_kept_for_delete_retention(place: Place) -> None:
    place.write(("a", "1"), ("b", "1"))
    place.write(("a", None))
    place.roll()
    place.compact()
    assert place.offsets() == [1, 2]  # the deleted value goes at once, the tombstone stays
    cleaned_at = place.clock.now_ms()
    place.write(("x", "1"))
    place.roll()
    place.clock.advance(cleaned_at + 9999 - place.clock.now_ms())
    place.compact()
    assert place.offsets() == [1, 2, 3]
    place.write(("x", "2"))
    place.roll()
    assert place.clock.now_ms() >= cleaned_at + 10_000
    place.compact()
    assert place.offsets() == [1, 4]


@pytest.mark.parametrize("with_snapshots", [True, False])
def test_an_idempotent_producer_continues_after_its_records_are_removed(
    place: Place, with_snapshots: bool
) -> None:
    for sequence in range(3):
        write(place.log, [(b"a", b"p")], place.clock.now_ms(), producer=(7, 0, sequence))
    place.fill()
    place.write(("a", "later"))
    place.roll()
    place.compact()
    assert b"p" not in place.latest().values()
    place.store.checkpoint()
    place.store.close(clean=with_snapshots)
    place.fs.kill()
    if not with_snapshots:
        for name in place.fs.files("/data/t-0"):
            if name.endswith(".snapshot"):
                place.fs.remove(f"/data/t-0/{name}")
        place.fs.remove("/data/recovery-point-offset-checkpoint")
    place.open()
    end = place.log.log_end_offset
    assert write(place.log, [(b"a", b"p")], 0, producer=(7, 0, 2)) == 2  # known: a repetition
    assert place.log.log_end_offset == end
    assert write(place.log, [(b"a", b"p")], 0, producer=(7, 0, 3)) == end


# --- what it may touch, and when -----------------------------------------------------------------


def test_the_active_segment_is_never_touched(place: Place) -> None:
    place.write(("a", "1"))
    place.write(("a", "2"))
    assert len(place.log.segments) == 1
    assert place.due().segments == ()
    place.compact()
    assert place.offsets() == [0, 1]


def test_segments_that_reach_the_high_watermark_are_not_touched(place: Place) -> None:
    place.fill()
    dirty = place.due().end_offset
    for number in range(6):
        write(place.log, [(b"a", b"." * 200 + b"%d" % number)], 0, sync=False)
    assert len(place.log.segments) > 4
    assert place.due().end_offset == dirty
    place.compact()
    place.log.flush()
    assert place.offsets()[-6:] == list(range(18, 24))


def test_segments_wait_for_the_minimum_lag(place: Place) -> None:
    place.fill()
    place.configure(min_compaction_lag_ms="3500")
    now = place.clock.now_ms()
    found = place.due()
    assert found.segments
    assert all(segment.max_timestamp <= now - 3500 for segment in found.segments)
    assert len(found.segments) < len(place.log.segments) - 1
    before = place.offsets()
    place.compact()
    young = [offset for offset in before if offset >= found.end_offset]
    assert place.offsets()[-len(young) :] == young
    place.clock.advance(3500)
    place.compact()
    assert place.offsets() == [15, 16, 17]


def test_due_by_the_dirty_share(place: Place) -> None:
    place.fill(8)
    found = place.due()
    assert found.dirty_ratio == 1.0
    assert found.is_due
    place.compact()
    assert not place.due().is_due
    place.write(*((f"new{number}", "." * 100) for number in range(3)))
    place.roll()
    found = place.due()
    expected = found.dirty_bytes / (found.clean_bytes + found.dirty_bytes)
    assert found.dirty_ratio == expected
    for ratio, due in ((expected + 0.01, False), (expected - 0.01, True)):
        place.configure(min_cleanable_dirty_ratio=str(ratio))
        assert place.due().is_due is due


def test_due_by_the_maximum_lag(place: Place) -> None:
    place.configure(min_cleanable_dirty_ratio="1.0", max_compaction_lag_ms="60000")
    begin = place.clock.now_ms()
    place.fill()
    assert not cleanable(place.log, begin + 60_000).is_due
    assert cleanable(place.log, begin + 60_001).is_due


def test_never_due_without_the_policy(place: Place) -> None:
    place.fill()
    place.configure(cleanup_policy="delete")
    assert not place.due().is_due
    stored = read_bytes(place.log)
    place.compact()
    assert read_bytes(place.log) == stored


def test_the_first_dirty_offset_survives_a_restart_in_its_checkpoint(place: Place) -> None:
    place.fill()
    place.compact()
    place.store.checkpoint()
    assert place.fs.read_bytes("/data/cleaner-offset-checkpoint").startswith(b"1\n1\nt 0 18\n")
    for clean in (True, False):
        place.store.close(clean=clean)
        place.open()
        assert place.log.first_dirty_offset == 18
        assert place.due().dirty_bytes == 0


def test_a_first_dirty_offset_outside_of_the_log_is_ignored(place: Place) -> None:
    place.fill()
    for wrong in (99, -1):
        place.log.first_dirty_offset = wrong
        assert place.due().first_dirty_offset == 0


# --- in slices, while the log lives --------------------------------------------------------------


def test_work_is_cut_into_small_steps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.configure(internal_segment_bytes="1000000")
    for number in range(40):
        place.write(*((f"k{number % 7}-{index}", "." * 100) for index in range(100)))
    place.roll()
    reads = [0]
    pread = LogFile.pread

    def counted(file: LogFile, length: int, position: int) -> bytes:
        reads[-1] += length
        return pread(file, length, position)

    monkeypatch.setattr(LogFile, "pread", counted)
    for _ in compact(place.log, place.clock.now_ms()):
        reads += [0]
    assert sum(reads) > 400_000
    assert max(reads) <= 64 * 1024 + 12_000  # one read, or up to the end of a batch


def test_syncs_can_run_in_another_thread(place: Place) -> None:
    place.fill()
    syncs = 0
    for work in compact(place.log, place.clock.now_ms()):
        if work is not None:
            assert isinstance(work, Work)
            thread = threading.Thread(target=work.run)
            thread.start()
            thread.join()
            assert work.done
            syncs += 1
    assert syncs >= 2
    assert place.offsets() == [15, 16, 17]


def test_appends_and_reads_continue_between_the_steps(place: Place) -> None:
    place.fill()
    appended = []
    for _ in compact(place.log, place.clock.now_ms()):
        found = find_slice(place.log, 0, 200)
        found.load()
        appended.append(place.log.log_end_offset)
        place.write(("a", "more"))
        if len(appended) % 3 == 0:
            place.roll()
    assert place.offsets() == [16, 17, *appended] or place.offsets() == [15, 16, 17, *appended]
    assert place.latest()[b"a"] == b"more"


def test_a_slice_that_was_found_before_the_swap_can_still_be_read(place: Place) -> None:
    place.fill()
    found = find_slice(place.log, 4, 10_000)
    expected = bytes(found.load())
    place.compact()
    assert bytes(found.load()) == expected


@pytest.mark.parametrize("stop_after", range(14))
def test_a_closed_run_leaves_a_valid_log_and_no_files(place: Place, stop_after: int) -> None:
    place.fill()
    latest = place.latest()
    place.begin(stop_after).close()
    assert place.latest() == latest
    assert not place.leftovers()
    place.compact()
    assert place.offsets() == [15, 16, 17]


@pytest.mark.parametrize("stop_after", range(1, 12))
def test_segments_that_are_deleted_meanwhile_do_not_come_back(
    place: Place, stop_after: int
) -> None:
    place.fill()
    rest = place.begin(stop_after)
    start = place.log.segments[1].base_offset
    place.log.delete_records_before(start)
    for _ in rest:
        pass
    assert place.log.log_start_offset == start
    assert place.log.segments[0].base_offset >= min(start, 15)
    assert not place.leftovers()
    latest = {key: value[:2] for key, value in place.latest().items()}
    assert latest == {b"a": b"a5", b"b": b"b5", b"c": b"c5"}


@pytest.mark.parametrize("stop_after", range(1, 12))
@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_meanwhile_stays_deleted(
    place: Place, stop_after: int, again: bool
) -> None:
    place.fill()
    rest = place.begin(stop_after)
    place.store.delete(TP)
    if again:
        place.log = open_log(place.store, CONFIGS)
        place.write(("n", "new"))
    for _ in rest:
        pass
    place.store.purge_deleted()
    assert place.store.environment.pool.sync_failure is None
    if again:
        assert place.offsets() == [0]
        place.store.close()
        place.open()
        assert place.latest() == {b"n": b"new"}
    else:
        assert place.fs.folders("/data") == []


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_damaged_batch_stops_it_and_names_the_place(place: Place) -> None:
    place.fill()
    place.store.close()
    place.open()
    path = place.log.segments[1].path()
    place.fs.content(path)[70] ^= 1
    stored = [bytes(place.fs.content(s.path())) for s in place.log.segments]
    with pytest.raises(CorruptLogError) as caught:
        place.compact()
    assert (caught.value.path, caught.value.position) == (path, 0)
    assert caught.value.offset == place.log.segments[1].base_offset
    assert [bytes(place.fs.content(s.path())) for s in place.log.segments] == stored


def test_a_batch_that_can_not_be_decoded_stops_it(place: Place) -> None:
    place.configure(cleanup_policy="delete")
    batch = batch_around(b"not gzip", 1, attributes=1)
    place.log.append(batch, now_ms=place.clock.now_ms(), from_client=False)
    place.roll()
    place.configure(cleanup_policy="compact")
    with pytest.raises(InvalidRecordError):
        place.compact()
    assert place.log.log_end_offset == 1


def test_a_full_disk_stops_it_and_changes_nothing(place: Place) -> None:
    place.fill()
    stored = read_bytes(place.log)
    place.fs.capacity = place.fs.used() + 40
    with pytest.raises(DiskFullError):
        place.compact()
    place.fs.capacity = None
    assert read_bytes(place.log) == stored
    assert not place.leftovers()
    place.compact()
    assert place.offsets() == [15, 16, 17]


def test_a_sync_that_fails_is_passed_on(place: Place) -> None:
    place.fill()
    place.fs.fail("sync", errno.EIO, path=".log.cleaned")
    with pytest.raises(SyncFailedError):
        place.compact()


def test_a_rename_that_fails_after_the_commit_takes_the_partition_offline_until_reopened(
    place: Place,
) -> None:
    place.fill()
    latest = place.latest()
    place.fs.fail("rename", errno.EIO, path=".log.swap")
    with pytest.raises(StorageError):
        place.compact()
    assert TP in place.store.offline
    with pytest.raises(StorageError):
        place.log.read(0, 100, limit_offset=10)
    place.store.close(clean=False)
    place.open()
    assert place.latest() == latest


# --- crashes -------------------------------------------------------------------------------------


def _history(place: Place) -> dict[int, Record]:
    for number in range(3):  # small segments: they are joined
        place.write(("a", str(number)), ("b", "1"), ("d", "1"))
        place.roll()
    place.fill(3, codec=4)
    place.write(("d", None), ("e", "1"))
    place.fill(2)
    place.write(("a", "active"))
    place.store.checkpoint()
    return {record.offset: record for record in read_records(place.log)}


def crashed(place: Place, call: int) -> bool:
    """Compact, and let the process end at a call; return whether there was such a call."""
    place.fs.arm(call)
    try:
        place.compact()
    except CrashError:
        return True
    return False


def _calls_of_a_run() -> int:
    place = Place()
    _history(place)
    place.fs.arm(None)
    place.compact()
    return place.fs.calls


CALLS = _calls_of_a_run()


@pytest.mark.parametrize("call", range(CALLS + 1))
@pytest.mark.parametrize(
    "cut", [None, 1, *in_nightly_runs(2, 3)], ids=lambda cut: f"cut {cut}" if cut else "killed"
)
def test_a_crash_at_any_call_loses_nothing(place: Place, call: int, cut: int | None) -> None:
    before = _history(place)
    latest, end = place.latest(), place.log.log_end_offset
    assert crashed(place, call) == (call < CALLS)
    if cut:
        place.fs.power_cut(random.Random(cut * 1000 + call))
    else:
        place.fs.kill()
    place.open()
    assert not place.store.offline
    assert place.latest() == latest
    assert place.log.log_end_offset == end
    assert all(before[record.offset] == record for record in read_records(place.log))
    assert not place.leftovers()
    place.compact()
    assert place.latest() == latest
    keys = [record.key for record in read_records(place.log)[:-1]]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("call", range(0, CALLS + 1, 3))
@pytest.mark.parametrize("second", range(8))
def test_a_crash_while_a_crash_is_recovered_loses_nothing(
    place: Place, call: int, second: int
) -> None:
    _history(place)
    latest = place.latest()
    rng = random.Random(call * 100 + second)
    place.fs.power_cut(rng) if crashed(place, call) else place.fs.kill()
    place.fs.arm(second)
    try:
        place.open()
    except CrashError:
        place.fs.power_cut(rng)
        place.open()
    assert not place.store.offline
    assert place.latest() == latest


def test_a_new_topic_of_the_same_name_inherits_no_checkpoint(place: Place) -> None:
    place.fill()
    place.compact()
    place.store.checkpoint()
    place.store.delete(TP)
    place.log = open_log(place.store, CONFIGS)
    place.write(("n", "1"), ("n", "2"))
    place.roll()
    place.fs.kill()
    place.open()
    assert not place.store.offline
    assert place.log.first_dirty_offset == 0
    place.compact()
    assert place.offsets() == [1]
