"""When a partition starts a new segment."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.log.partition.one_partition import HOUR, NOW, OnePartition, base_offsets, batch_of
from tests.support.logs import read_records
from tidemill.log.errors import StorageError


def test_a_segment_rolls_before_it_would_pass_its_size(partition: OnePartition) -> None:
    size = len(batch_of())
    log = partition.log(internal_segment_bytes=str(3 * size))
    for _ in range(7):
        log.append(batch_of(), now_ms=NOW)
    assert base_offsets(log) == [0, 3, 6]


def test_a_segment_rolls_by_record_time(partition: OnePartition) -> None:
    log = partition.log(segment_ms="1000")
    for at in (0, 1000, 1001, 500):
        log.append(batch_of(at=NOW - HOUR + at), now_ms=NOW)
    assert base_offsets(log) == [0, 2]


def test_a_segment_rolls_by_record_time_after_a_restart_too(partition: OnePartition) -> None:
    partition.log(segment_ms="1000").append(batch_of(at=NOW - HOUR), now_ms=NOW)
    partition.reopen()
    log = partition.log(segment_ms="1000")
    log.append(batch_of(at=NOW - HOUR + 1001), now_ms=NOW)
    assert base_offsets(log) == [0, 1]


def test_records_without_time_roll_by_the_segments_age(partition: OnePartition) -> None:
    log = partition.log(segment_ms="1000")
    log.append(batch_of(at=-1), now_ms=NOW)
    log.append(batch_of(at=-1), now_ms=NOW + 1000)
    log.append(batch_of(at=-1), now_ms=NOW + 1001)
    assert base_offsets(log) == [0, 2]


def test_a_segment_rolls_when_its_index_is_full(partition: OnePartition) -> None:
    log = partition.log(segment_index_bytes="64", index_interval_bytes="0")
    for number in range(20):
        log.append(batch_of(at=NOW + number), now_ms=NOW)
    assert len(log.segments) > 2
    for segment in log.segments:
        assert max(segment.index_sizes()) <= 64
    log.flush()
    assert [record.offset for record in read_records(log)] == list(range(20))


def test_a_segment_rolls_before_relative_offsets_overflow(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_of(), now_ms=NOW)
    log.chain.head.end_offset = 0x80000000
    log.append(batch_of(), now_ms=NOW)
    assert base_offsets(log) == [0, 0x80000000]


def test_an_empty_segment_does_not_roll(partition: OnePartition) -> None:
    log = partition.log()
    assert log.roll(NOW) is log.chain.active
    assert len(log.segments) == 1


def test_a_segment_that_could_not_be_opened_leaves_no_file(partition: OnePartition) -> None:
    """A smaller batch still goes to the segment before it, and must not be behind its end."""
    log = partition.log(internal_segment_bytes="500")
    log.append(batch_of(), now_ms=NOW)
    partition.fs.fail("open", path=f"{1:020d}.log")
    with pytest.raises(StorageError):
        log.append(batch_of(size=400), now_ms=NOW)
    for number in range(8):
        log.append(batch_of(at=NOW + number), now_ms=NOW)
    assert base_offsets(log)[1] > 1
    partition.store.close(clean=False)
    partition.fs.kill()
    partition.reopen()
    log = partition.log(internal_segment_bytes="500")
    assert (log.failure, log.log_end_offset) == (None, 9)


def test_jitter_varies_the_age_of_segments_and_survives_restarts() -> None:
    found = []
    for interrupted in (False, True):
        partition = OnePartition()
        configs = {"segment_ms": "10000", "segment_jitter_ms": "9000"}
        log = partition.log(**configs)
        for number in range(60):
            if interrupted and number % 7 == 0:
                partition.log(segment_ms="10000")  # without jitter, until the next change
                log = partition.log(**configs)
            if interrupted and number % 11 == 0:
                partition.reopen()
                log = partition.log(**configs)
            log.append(batch_of(at=NOW + 1000 * number), now_ms=NOW)
        found.append(base_offsets(log))
        partition.store.close()
    assert found[0] == found[1]
    ages = [after - before for before, after in pairwise(found[0])]
    assert len(set(ages)) > 2
    assert 1 <= min(ages) < max(ages) <= 11
