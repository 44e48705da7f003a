"""Which segments are removed: by age, by size and below the log's start."""

from __future__ import annotations

import random

import pytest

from tests.log.partition.one_partition import NOW, OnePartition, batch_of
from tests.support.logs import TP, read_records, write
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import DiskFullError, OffsetOutOfRangeError
from tidemill.log.partition.partition import PartitionLog

DAY = 86_400_000


class Retained(OnePartition):
    """A partition with small segments, and no limits by default."""

    def log(self, **configs: str) -> PartitionLog:
        return super().log(**{"internal_segment_bytes": "300", "retention_ms": "-1"} | configs)

    def written(self, batches: int, *, step_ms: int = 1000, **configs: str) -> PartitionLog:
        """Return the partition with synced batches, ``step_ms`` apart and before now."""
        log = self.log(**configs)
        for number in range(batches):
            self.write(b"k%d" % number, size=100)
            self.clock.advance(step_ms)
        return log

    def write(self, key: bytes = b"k", size: int = 0, *, sync: bool = True) -> int:
        log = self.store.get(TP)
        return write(log, [(key, bytes(size))], self.clock.now_ms(), sync=sync)

    def retain(self) -> list[Segment]:
        return self.store.get(TP).delete_old_segments(self.clock.now_ms())


@pytest.fixture
def partition() -> Retained:
    return Retained()


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_records(log)]


def test_without_limits_nothing_is_removed(partition: Retained) -> None:
    partition.written(10)
    partition.clock.advance(1000 * DAY)
    assert partition.retain() == []


def test_segments_are_removed_when_their_latest_record_is_too_old(partition: Retained) -> None:
    log = partition.written(10, retention_ms="5000")  # the last one is one second old now
    before = list(log.segments)
    gone = partition.retain()
    assert gone == before[: len(gone)]
    assert gone
    now = partition.clock.now_ms()
    assert all(now - segment.max_timestamp > 5000 for segment in gone)
    assert now - log.segments[0].max_timestamp <= 5000
    assert log.log_start_offset == log.segments[0].base_offset
    assert offsets(log) == list(range(log.log_start_offset, 10))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(log.log_start_offset - 1, 100, limit_offset=log.high_watermark)


def test_a_segment_as_old_as_the_limit_stays(partition: Retained) -> None:
    partition.written(1, step_ms=5000, retention_ms="5000")
    assert partition.retain() == []
    partition.clock.advance(1)
    assert len(partition.retain()) == 1


def test_an_expired_active_segment_is_rolled_so_that_an_idle_partition_becomes_empty(
    partition: Retained,
) -> None:
    log = partition.written(3, retention_ms="5000")
    partition.clock.advance(DAY)
    partition.retain()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    assert len(log.segments) == 1
    assert offsets(log) == []
    assert partition.retain() == []
    assert partition.write() == 3
    assert offsets(log) == [3]


def test_a_record_from_the_future_keeps_its_segment_and_those_behind(partition: Retained) -> None:
    log = partition.log(retention_ms="5000", message_timestamp_after_max_ms=str(100 * DAY))
    write(log, [(b"k", bytes(200))], NOW + 50 * DAY)
    for _ in range(5):
        partition.write(size=100)
    partition.clock.advance(DAY)
    assert partition.retain() == []


def test_the_oldest_segments_are_removed_while_the_rest_is_large_enough(
    partition: Retained,
) -> None:
    log = partition.written(10, retention_bytes="700")
    total = log.size_bytes
    sizes = [segment.size for segment in log.segments]
    gone = partition.retain()
    assert gone
    assert log.size_bytes == total - sum(sizes[: len(gone)]) >= 700
    assert log.size_bytes - log.segments[0].size < 700


def test_retention_of_no_bytes_empties_the_log(partition: Retained) -> None:
    log = partition.written(4, retention_bytes="0")
    partition.retain()
    assert (log.log_start_offset, log.size_bytes) == (4, 0)


def test_unsynced_segments_are_never_removed(partition: Retained) -> None:
    log = partition.log(retention_bytes="0")
    for number in range(6):
        partition.write(size=100, sync=number < 3)
    assert log.high_watermark == 3
    assert all(segment.base_offset < 3 for segment in partition.retain())
    assert log.log_start_offset <= 3
    log.flush()
    assert offsets(log) == list(range(log.log_start_offset, 6))


@pytest.mark.parametrize("policy", ["compact", ""])
def test_without_the_delete_policy_only_segments_below_the_start_are_removed(
    partition: Retained, policy: str
) -> None:
    log = partition.written(10, cleanup_policy=policy, retention_ms="1", retention_bytes="1")
    partition.clock.advance(DAY)
    assert partition.retain() == []
    log.chain.head.start_offset = 5
    assert partition.retain()
    assert log.log_start_offset == 5
    assert log.segments[0].base_offset <= 5 < log.segments[1].base_offset


def test_compact_and_delete_together(partition: Retained) -> None:
    partition.written(10, cleanup_policy="compact,delete", retention_ms="5000")
    assert partition.retain()


def test_files_are_deleted_after_the_delay_and_not_before(partition: Retained) -> None:
    def files(suffix: str) -> list[str]:
        return [name for name in partition.fs.files("/data/t-0") if name.endswith(suffix)]

    partition.written(4, step_ms=0, retention_bytes="0", file_delete_delay_ms="60000")
    partition.store.purge_deleted()
    partition.retain()
    assert files(".log") == [f"{4:020d}.log"]
    deleted = files(".deleted")
    assert deleted
    partition.clock.advance(59_999)
    assert partition.store.purge_deleted() == 0
    assert files(".deleted") == deleted
    partition.clock.advance(1)
    assert partition.store.purge_deleted() > 0
    assert not files(".deleted")


def test_the_start_survives_a_restart(partition: Retained) -> None:
    log = partition.written(10, retention_ms="5000")
    partition.retain()
    start, records = log.log_start_offset, read_records(log)
    partition.store.checkpoint()
    partition.kill()
    log = partition.log()
    assert (log.log_start_offset, log.log_end_offset) == (start, 10)
    assert read_records(log) == records


def test_on_a_full_disk_closed_segments_are_removed_even_if_none_can_be_created(
    partition: Retained,
) -> None:
    log = partition.written(6, retention_ms="5000")
    partition.clock.advance(DAY)
    active = log.chain.active
    partition.fs.capacity = partition.fs.used()
    with pytest.raises(DiskFullError):
        partition.retain()
    assert log.segments == [active]
    partition.fs.clear_faults()
    partition.retain()
    assert offsets(log) == []


def test_records_after_a_complete_deletion_survive_a_power_cut() -> None:
    for seed in range(20):
        partition = Retained()
        partition.written(3, retention_ms="5000")
        partition.clock.advance(DAY)
        partition.retain()
        last = partition.write(b"acknowledged")
        partition.fs.power_cut(random.Random(seed))
        partition.open()
        after = read_records(partition.log(retention_ms="5000"))
        assert [(each.offset, each.key) for each in after][-1:] == [(last, b"acknowledged")]


# --- on request ----------------------------------------------------------------------------------


def test_records_below_an_offset_are_deleted(partition: Retained) -> None:
    log = partition.filled(9)
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(3) == 5
    assert log.segments[0].base_offset <= 5
    assert len(log.segments) < 5
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, 100, limit_offset=9)
    partition.store.checkpoint()
    partition.kill()
    assert partition.log().log_start_offset == 5


def test_records_above_the_high_watermark_can_not_be_deleted(partition: Retained) -> None:
    log = partition.log()
    log.append(batch_of(), now_ms=NOW)
    with pytest.raises(OffsetOutOfRangeError, match="the high watermark is 0"):
        log.delete_records_before(1)


def test_an_emptied_log_continues_at_its_offset(partition: Retained) -> None:
    partition.filled(3).delete_records_before(3)
    partition.reopen()
    log = partition.log()
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.append(batch_of(), now_ms=NOW).first_offset == 3
