"""Retention: which segments are removed by age, by size and below the log's start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import find_slice, open_log, open_store, read_records, write
from tidemill.clock import ManualClock
from tidemill.log.errors import DiskFullError, OffsetOutOfRangeError
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore

DAY = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[LogStore]:
    store = open_store(tmp_path, clock)
    yield store
    store.close()


def _configs(**more: str) -> dict[str, str]:
    return {"internal.segment.bytes": "300", "retention.ms": "-1"} | {
        name.replace("_", "."): value for name, value in more.items()
    }


def _fill(log: PartitionLog, clock: ManualClock, batches: int, step_ms: int = 1000) -> None:
    for number in range(batches):
        write(log, [(b"k%d" % number, bytes(100))], clock.now_ms())
        clock.advance(step_ms)


def test_without_limits_nothing_is_removed(store: LogStore, clock: ManualClock) -> None:
    log = open_log(store, _configs())
    _fill(log, clock, 10)
    clock.advance(1000 * DAY)
    assert log.delete_old_segments(clock.now_ms()) == []


def test_segments_are_removed_when_their_latest_record_is_too_old(
    store: LogStore, clock: ManualClock
) -> None:
    log = open_log(store, _configs(retention_ms="5000"))
    _fill(log, clock, 10)  # one batch a second; the last one is one second old now
    before = list(log.segments)
    gone = log.delete_old_segments(clock.now_ms())
    assert gone == before[: len(gone)]
    assert gone
    assert all(clock.now_ms() - segment.max_timestamp > 5000 for segment in gone)
    assert clock.now_ms() - log.segments[0].max_timestamp <= 5000
    assert log.log_start_offset == log.segments[0].base_offset
    assert [r.offset for r in read_records(log)] == list(range(log.log_start_offset, 10))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(log.log_start_offset - 1, 100, limit_offset=log.high_watermark)


def test_a_segment_as_old_as_the_limit_stays(store: LogStore, clock: ManualClock) -> None:
    log = open_log(store, _configs(retention_ms="5000"))
    write(log, [(b"k", b"v")], clock.now_ms())
    clock.advance(5000)
    assert log.delete_old_segments(clock.now_ms()) == []
    clock.advance(1)
    assert len(log.delete_old_segments(clock.now_ms())) == 1


def test_an_expired_active_segment_is_rolled_so_that_an_idle_partition_becomes_empty(
    store: LogStore, clock: ManualClock
) -> None:
    log = open_log(store, _configs(retention_ms="5000"))
    _fill(log, clock, 3)
    clock.advance(DAY)
    log.delete_old_segments(clock.now_ms())
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    assert len(log.segments) == 1
    assert read_records(log) == []
    assert log.delete_old_segments(clock.now_ms()) == []
    assert write(log, [(b"k", b"v")], clock.now_ms()) == 3
    assert [r.offset for r in read_records(log)] == [3]


def test_a_record_from_the_future_keeps_its_segment_and_those_behind(
    store: LogStore, clock: ManualClock
) -> None:
    log = open_log(
        store, _configs(retention_ms="5000", message_timestamp_after_max_ms=str(100 * DAY))
    )
    write(log, [(b"k", bytes(200))], clock.now_ms() + 50 * DAY)
    _fill(log, clock, 5)
    clock.advance(DAY)
    assert log.delete_old_segments(clock.now_ms()) == []


def test_the_oldest_segments_are_removed_while_the_rest_is_large_enough(
    store: LogStore, clock: ManualClock
) -> None:
    log = open_log(store, _configs(retention_bytes="700"))
    _fill(log, clock, 10)
    total = log.size_bytes
    sizes = [segment.size for segment in log.segments]
    gone = log.delete_old_segments(clock.now_ms())
    assert gone
    assert log.size_bytes == total - sum(sizes[: len(gone)]) >= 700
    assert log.size_bytes - log.segments[0].size < 700


def test_retention_of_no_bytes_empties_the_log(store: LogStore, clock: ManualClock) -> None:
    log = open_log(store, _configs(retention_bytes="0"))
    _fill(log, clock, 4)
    log.delete_old_segments(clock.now_ms())
    assert (log.log_start_offset, log.size_bytes) == (4, 0)


def test_unsynced_segments_are_never_removed(store: LogStore, clock: ManualClock) -> None:
    log = open_log(store, _configs(retention_bytes="0"))
    for number in range(6):
        write(log, [(b"k", bytes(100))], clock.now_ms(), sync=number < 3)
    assert log.high_watermark == 3
    gone = log.delete_old_segments(clock.now_ms())
    assert all(segment.base_offset < 3 for segment in gone)
    assert log.log_start_offset <= 3
    log.flush()
    assert [r.offset for r in read_records(log)] == list(range(log.log_start_offset, 6))


@pytest.mark.parametrize("policy", ["compact", ""])
def test_without_the_delete_policy_only_segments_below_the_start_are_removed(
    store: LogStore, clock: ManualClock, policy: str
) -> None:
    log = open_log(store, _configs(cleanup_policy=policy, retention_ms="1", retention_bytes="1"))
    _fill(log, clock, 10)
    clock.advance(DAY)
    assert log.delete_old_segments(clock.now_ms()) == []
    log.chain.head.start_offset = 5
    gone = log.delete_old_segments(clock.now_ms())
    assert gone
    assert log.log_start_offset == 5
    assert log.segments[0].base_offset <= 5 < log.segments[1].base_offset


def test_compact_and_delete_together(store: LogStore, clock: ManualClock) -> None:
    log = open_log(store, _configs(cleanup_policy="compact,delete", retention_ms="5000"))
    _fill(log, clock, 10)
    assert log.delete_old_segments(clock.now_ms())


def test_files_are_deleted_after_the_delay_and_not_before(
    store: LogStore, clock: ManualClock, tmp_path: Path
) -> None:
    log = open_log(store, _configs(retention_bytes="0", file_delete_delay_ms="60000"))
    _fill(log, clock, 4, step_ms=0)
    store.purge_deleted()
    log.delete_old_segments(clock.now_ms())
    folder = tmp_path / "t-0"
    assert [path.name for path in folder.glob("*.log")] == [f"{4:020d}.log"]
    deleted = list(folder.glob("*.deleted"))
    assert deleted
    clock.advance(59_999)
    store.purge_deleted()
    assert list(folder.glob("*.deleted")) == deleted
    clock.advance(1)
    store.purge_deleted()
    assert not list(folder.glob("*.deleted"))


def test_a_slice_of_a_removed_segment_is_readable(store: LogStore, clock: ManualClock) -> None:
    log = open_log(store, _configs(retention_bytes="0"))
    _fill(log, clock, 4)
    found = find_slice(log, 0, 1000)
    log.delete_old_segments(clock.now_ms())
    assert bytes(found.load())[:8] == bytes(8)


def test_the_start_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path / "d", clock)
    log = open_log(store, _configs(retention_ms="5000"))
    _fill(log, clock, 10)
    log.delete_old_segments(clock.now_ms())
    start, records = log.log_start_offset, read_records(log)
    store.checkpoint()
    store.close(clean=False)
    again = open_store(tmp_path / "d", clock)
    log = open_log(again, _configs())
    assert (log.log_start_offset, log.log_end_offset) == (start, 10)
    assert read_records(log) == records
    again.close()


def test_on_a_full_disk_closed_segments_are_removed_even_if_none_can_be_created(
    clock: ManualClock,
) -> None:
    fs = FaultyFileSystem()
    store = open_store("/data", clock, fs)
    log = open_log(store, _configs(retention_ms="5000"))
    _fill(log, clock, 6)
    clock.advance(DAY)
    active = log.chain.active
    fs.capacity = fs.used()
    with pytest.raises(DiskFullError):
        log.delete_old_segments(clock.now_ms())
    assert log.segments == [active]
    fs.clear_faults()
    log.delete_old_segments(clock.now_ms())
    assert read_records(log) == []
    store.close()


def test_records_after_a_complete_deletion_survive_a_power_cut(clock: ManualClock) -> None:
    for seed in range(20):
        fs = FaultyFileSystem()
        log = open_log(open_store("/data", clock, fs), _configs(retention_ms="5000"))
        _fill(log, clock, 3)
        clock.advance(DAY)
        log.delete_old_segments(clock.now_ms())
        write(log, [(b"k", b"acknowledged")], clock.now_ms())
        fs.power_cut(random.Random(seed))
        after = open_log(open_store("/data", clock, fs), _configs(retention_ms="5000"))
        assert [record.value for record in read_records(after)][-1:] == [b"acknowledged"]
