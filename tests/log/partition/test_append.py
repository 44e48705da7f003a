"""Appends to a partition: accepted and refused batches, and failing writes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.log.partition.one_partition import (
    HOUR,
    NOW,
    OnePartition,
    base_offsets,
    batch_from,
    batch_of,
)
from tests.support.logs import TP, find_slice, read_records
from tidemill.log.errors import (
    CorruptBatchError,
    DiskFullError,
    InvalidRecordError,
    InvalidTimestampError,
    StorageError,
)
from tidemill.log.format.batch import parse_header
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.steps import run_steps


def test_stored_bytes_are_the_producers_but_for_offset_and_epoch(partition: OnePartition) -> None:
    log = partition.log()
    sent = batch_of(3, codec=4)
    original = bytes(sent)
    log.append(batch_of(), now_ms=NOW)
    log.append(sent, now_ms=NOW)
    log.flush()
    found = find_slice(log, 1, 10_000, limit_offset=4)
    stored = bytes(found.load())
    assert stored[16:] == original[16:]
    assert stored[8:12] == original[8:12]


def test_a_read_only_buffer_is_accepted(partition: OnePartition) -> None:
    assert partition.log().append(bytes(batch_of()), now_ms=NOW).first_offset == 0


def test_a_client_sends_one_batch_and_the_broker_can_append_several(
    partition: OnePartition,
) -> None:
    log = partition.log()
    with pytest.raises(InvalidRecordError, match="one record batch"):
        log.append(batch_of(2) + batch_of(3), now_ms=NOW)
    assert log.log_end_offset == 0
    assert log.append(batch_of(2) + batch_of(3), now_ms=NOW, from_client=False)[:2] == (0, 4)
    with pytest.raises(CorruptBatchError):
        log.append(batch_of(2) + batch_of(3)[:-1], now_ms=NOW, from_client=False)
    assert log.log_end_offset == 5


def test_a_batch_with_a_wrong_crc_is_refused(partition: OnePartition) -> None:
    log = partition.log()
    bad = batch_of()
    bad[70] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        log.append(bad, now_ms=NOW)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


def test_a_timestamp_can_be_old_unless_the_topic_limits_it(partition: OnePartition) -> None:
    assert partition.log().append(batch_of(at=0), now_ms=NOW).first_offset == 0
    with pytest.raises(InvalidTimestampError, match="behind"):
        partition.log(message_timestamp_before_max_ms="1000").append(
            batch_of(at=NOW - 2000), now_ms=NOW
        )


def test_log_append_time_is_the_brokers(partition: OnePartition) -> None:
    log = partition.log(message_timestamp_type="LogAppendTime")
    info = log.append(batch_of(2, at=NOW + 5 * HOUR), now_ms=NOW)
    assert info.log_append_time_ms == NOW
    log.flush()
    assert [record.timestamp for record in read_records(log)] == [NOW, NOW]
    assert run_steps(log.find_timestamp(NOW)) == (0, NOW)


def test_a_compacted_topic_requires_keys(partition: OnePartition) -> None:
    log = partition.log(cleanup_policy="compact")
    with pytest.raises(InvalidRecordError, match="key"):
        log.append(encode_batch([NewRecord(None, b"v")], timestamp_ms=NOW), now_ms=NOW)


@pytest.mark.parametrize("codec", range(5))
def test_the_broker_recompresses_if_the_topic_has_a_codec(
    partition: OnePartition, codec: int
) -> None:
    log = partition.log(compression_type="zstd")
    batch = batch_from(0, 3, producer=5, size=500, codec=codec)
    assert log.append(batch, now_ms=NOW)[:2] == (0, 2)
    log.flush()
    found = find_slice(log, 0, 10_000, limit_offset=3)
    header = parse_header(found.load())
    assert (header.codec, header.producer_id, header.base_sequence) == (4, 5, 0)
    assert [record.value for record in read_records(log)] == [bytes(500)] * 3


def test_a_repeated_batch_is_answered_with_its_first_offset(partition: OnePartition) -> None:
    log = partition.filled(1)
    first, again = (log.append(batch_from(0, 3), now_ms=NOW) for _ in range(2))
    assert again[:2] == first[:2] == (1, 3)
    assert (first.duplicate, again.duplicate, log.log_end_offset) == (False, True, 4)


@pytest.mark.parametrize("clean", [True, False])
def test_the_five_batch_window_survives_a_restart(partition: OnePartition, clean: bool) -> None:
    log = partition.log()
    for sequence in range(7):
        log.append(batch_from(sequence), now_ms=NOW)
    partition.reopen() if clean else partition.kill()
    for sequence in range(2, 7):
        info = partition.log().append(batch_from(sequence), now_ms=NOW)
        assert (info.duplicate, info.first_offset) == (True, sequence)


def test_inactive_producers_expire(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_from(0), now_ms=NOW)
    assert log.expire_producers(NOW + 999, 1000) == 0
    assert log.expire_producers(NOW + 1000, 1000) == 1
    partition.reopen()
    assert partition.log().expire_producers(NOW + 9999, 1000) == 0  # none were read for it


# --- a failing disk ------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_write_and_keeps_the_log(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_of(), now_ms=NOW)
    partition.fs.capacity = partition.fs.used() + 50
    with pytest.raises(DiskFullError):
        log.append(batch_of(size=100), now_ms=NOW)
    assert log.log_end_offset == 1
    partition.fs.clear_faults()
    assert log.append(batch_of(), now_ms=NOW).first_offset == 1
    log.flush()
    assert [record.offset for record in read_records(log)] == [0, 1]


def test_a_disk_that_fills_up_while_rolling_leaves_the_segment_in_use(
    partition: OnePartition,
) -> None:
    log = partition.filled(2, internal_segment_bytes="300")
    partition.fs.capacity = partition.fs.used()
    with pytest.raises(DiskFullError):
        log.append(batch_of(size=50), now_ms=NOW)
    assert base_offsets(log) == [0]
    partition.fs.clear_faults()
    log.append(batch_of(size=50), now_ms=NOW)
    assert base_offsets(log) == [0, 2]
    log.flush()
    assert [record.offset for record in read_records(log)] == [0, 1, 2]


def test_a_refused_sequence_can_be_sent_again(partition: OnePartition) -> None:
    log = partition.log()
    partition.fs.fail("write", path=".log")
    with pytest.raises(StorageError):
        log.append(batch_from(0), now_ms=NOW)
    info = log.append(batch_from(0), now_ms=NOW)
    assert (info.first_offset, info.duplicate) == (0, False)


def test_a_write_that_cannot_be_undone_takes_the_partition_offline(partition: OnePartition) -> None:
    log = partition.filled(1)
    partition.fs.capacity = partition.fs.used() + 30
    partition.fs.fail("truncate")
    with pytest.raises(StorageError):
        log.append(batch_of(), now_ms=NOW)
    partition.fs.clear_faults()
    assert TP in partition.store.offline
    with pytest.raises(StorageError):
        log.append(batch_of(), now_ms=NOW)
    with pytest.raises(StorageError):
        log.read(0, 100, limit_offset=1)
    partition.reopen()
    assert [record.offset for record in read_records(partition.log())] == [0]
    assert partition.store.reports == []  # the stop has cut off the 30 bytes


def fail_behind_a_whole_batch(partition: OnePartition, *, zeros: bool) -> PartitionLog:
    """Let the write of two batches end in the second one, and the truncation behind it fail.

    Args:
        zeros: whether the file can be overwritten then.
    """
    log = partition.filled(1)
    fs, one = partition.fs, batch_of()
    fs.capacity = fs.used() + len(one) + 30
    fs.fail("truncate", path=".log", times=-1)
    write = fs.write_into

    def write_once(*args: Any) -> int:
        written = write(*args)
        fs.fail("write", path=".log", times=-1)
        return written

    with pytest.MonkeyPatch.context() as patched:
        if not zeros:
            patched.setattr(fs, "write_into", write_once)
        with pytest.raises(StorageError, match="could not be undone"):
            log.append(one + batch_of(), now_ms=NOW, from_client=False)
    return log


def test_a_kill_does_not_bring_back_what_was_refused(partition: OnePartition) -> None:
    fail_behind_a_whole_batch(partition, zeros=True)
    partition.kill()
    assert [record.offset for record in read_records(partition.log())] == [0]


def test_a_checkpoint_cuts_off_what_was_refused(partition: OnePartition) -> None:
    log = fail_behind_a_whole_batch(partition, zeros=False)
    with pytest.raises(StorageError):
        partition.store.checkpoint()
    partition.fs.clear_faults()
    partition.store.checkpoint()
    active = log.segments[-1]
    assert len(partition.fs.content(active.path())) == active.size
    partition.kill()
    assert [record.offset for record in read_records(partition.log())] == [0]


def test_a_stop_cuts_off_what_was_refused(partition: OnePartition) -> None:
    fail_behind_a_whole_batch(partition, zeros=False)
    partition.fs.clear_faults()
    partition.reopen()
    assert [record.offset for record in read_records(partition.log())] == [0]
