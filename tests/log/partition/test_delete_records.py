"""Deleting the records below an offset."""

from __future__ import annotations

import pytest

from tests.log.partition.one_partition import NOW, OnePartition, batch_of
from tests.support.logs import open_store
from tidemill.log.errors import (
    OffsetOutOfRangeError,
)


def test_records_below_an_offset_are_deleted(partition: OnePartition) -> None:
    log = partition.log(internal_segment_bytes="300")
    for _ in range(9):
        log.append(batch_of(size=50), now_ms=NOW)
    log.flush()
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(3) == 5
    assert log.segments[0].base_offset <= 5
    assert len(log.segments) < 5
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, 100, limit_offset=9)
    partition.store.checkpoint()
    partition.fs.kill()
    partition.store = open_store("/data", partition.clock, partition.fs)
    assert partition.log().log_start_offset == 5


def test_records_above_the_high_watermark_can_not_be_deleted(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_of(), now_ms=NOW)
    with pytest.raises(OffsetOutOfRangeError, match="the high watermark is 0"):
        log.delete_records_before(1)


def test_an_emptied_log_continues_at_its_offset(partition: OnePartition) -> None:
    log = partition.log()
    for _ in range(3):
        log.append(batch_of(), now_ms=NOW)
    log.flush()
    log.delete_records_before(3)
    partition.reopen()
    log = partition.log()
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.append(batch_of(), now_ms=NOW).first_offset == 3
