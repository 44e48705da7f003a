"""Syncs of a partition and its high watermark."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.log.partition.one_partition import NOW, OnePartition, batch_of
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tests.support.journaled import commit, make_durable, open_journaled
from tests.support.logs import TP, ticket_of
from tidemill.clock import ManualClock
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import StorageError, SyncFailedError
from tidemill.log.journal.journal import LOG_BYTES, STREAM_BYTES
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore


def test_a_new_partition_is_synced_with_its_folder_once(partition: OnePartition) -> None:
    log = partition.log()
    ticket = ticket_of(log)
    ticket.run()
    log.finish_sync(ticket)
    assert log.begin_sync() is None


def test_appends_during_a_sync_belong_to_the_next_one(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_of(2), now_ms=NOW)
    ticket = ticket_of(log)
    log.append(batch_of(3), now_ms=NOW)
    ticket.run()
    log.finish_sync(ticket)
    assert log.high_watermark == ticket.end_offset == 2
    log.flush()
    assert log.high_watermark == 5
    assert log.begin_sync() is None


def test_rolled_segments_are_part_of_the_next_sync(partition: OnePartition) -> None:
    log = partition.log(internal_segment_bytes="300")
    log.flush()
    for _ in range(9):
        log.append(batch_of(size=50), now_ms=NOW)
    assert len(log.segments) > 2
    # Their records are synced by the roll, so that a power cut tears none in the middle; what
    # readers see and the recovery point wait for the sync that has the indexes, too.
    assert all(segment.synced_size == segment.size for segment in log.segments[:-1])
    assert log.segments[-1].synced_size == 0
    assert log.high_watermark == 0
    partition.store.checkpoint()
    assert log.recovery_point == 0
    log.flush()
    assert sum(segment.synced_size for segment in log.segments) == log.size_bytes
    assert log.high_watermark == 9
    partition.store.checkpoint()
    assert log.recovery_point > 0


def test_a_ticket_that_was_not_run_can_not_be_finished(partition: OnePartition) -> None:
    log = partition.log()
    ticket = ticket_of(log)
    with pytest.raises(RuntimeError):
        log.finish_sync(ticket)


def test_a_failing_sync_never_raises_the_high_watermark(partition: OnePartition) -> None:
    log = partition.log()
    log.flush()
    log.append(batch_of(), now_ms=NOW)
    ticket = ticket_of(log)
    partition.fs.fail("sync")
    with pytest.raises(SyncFailedError):
        ticket.run()
    assert log.high_watermark == 0
    with pytest.raises(SyncFailedError):
        log.flush()  # even though the disk would say yes now
    with pytest.raises(SyncFailedError):
        partition.store.close()
    assert not partition.fs.exists("/data/clean-stop.json")


def test_deleting_a_partition_during_a_sync_is_not_a_failed_sync(partition: OnePartition) -> None:
    log = partition.log(internal_segment_bytes="300")
    for _ in range(9):
        log.append(batch_of(size=50), now_ms=NOW)
    ticket = ticket_of(log)
    partition.store.delete(TP)
    partition.store.purge_deleted()
    ticket.run()
    log.finish_sync(ticket)


def test_a_sync_in_the_moment_of_a_deletion_is_not_a_failed_sync(
    partition: OnePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = partition.log()
    log.append(batch_of(), now_ms=NOW)
    log.roll(NOW)
    log.append(batch_of(), now_ms=NOW)
    ticket = ticket_of(log)
    rename = partition.fs.rename

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        ticket.run()  # as its thread does, before the store continues

    monkeypatch.setattr(partition.fs, "rename", renamed)
    partition.store.delete(TP)
    assert ticket.done


def test_a_deletion_that_fails_leaves_the_partition_in_use(partition: OnePartition) -> None:
    log = partition.log()
    partition.fs.fail("rename", path="/data/")
    with pytest.raises(StorageError):
        partition.store.delete(TP)
    assert not log.chain.removed
    log.append(batch_of(), now_ms=NOW)
    log.flush()
    assert log.high_watermark == 1


def test_a_segment_that_is_deleted_during_its_sync_leaves_the_name_of_the_next_one_durable(
    partition: OnePartition,
) -> None:
    """A deletion renames the indexes that the sync wants."""
    log = partition.filled(1)
    log.roll(NOW)
    log.append(batch_of(), now_ms=NOW)
    ticket = ticket_of(log)
    log.delete_records_before(log.high_watermark)
    ticket.run()
    log.finish_sync(ticket)
    end = log.high_watermark
    partition.fs.power_cut(Unlucky())
    partition.reopen()
    assert partition.store.get(TP).log_end_offset == end


# --- what goes through the journal ----------------------------------------------------------------


@pytest.fixture
def journaled() -> Iterator[tuple[LogStore, PartitionLog]]:
    """A log with a synced record, in a store with a journal."""
    store = open_journaled("/data", ManualClock(NOW), FaultyFileSystem())
    log = store.create(TP, parse_config({}), UUID(int=1))
    log.append(batch_of(), now_ms=NOW)
    make_durable(store, log)
    yield store, log
    store.close()


def test_more_than_the_journal_takes_is_synced_in_the_file(
    journaled: tuple[LogStore, PartitionLog],
) -> None:
    store, log = journaled
    log.append(batch_of(size=LOG_BYTES - 200), now_ms=NOW)
    assert log.fits_journal
    log.append(batch_of(size=200), now_ms=NOW)
    assert not log.fits_journal
    make_durable(store, log)
    assert log.stored_offset == log.high_watermark == 3


def test_a_log_with_large_syncs_returns_to_the_journal_with_a_small_one(
    journaled: tuple[LogStore, PartitionLog],
) -> None:
    store, log = journaled
    log.append(batch_of(size=LOG_BYTES), now_ms=NOW)
    make_durable(store, log)
    for _ in range(3):
        log.append(batch_of(size=STREAM_BYTES), now_ms=NOW)
        assert not log.fits_journal  # though it would have been, if there had been no larger one
        make_durable(store, log)
    log.append(batch_of(size=STREAM_BYTES // 2), now_ms=NOW)
    assert log.fits_journal
    assert commit(store, [log]) == []
    assert log.stored_offset < log.high_watermark
    log.append(batch_of(size=STREAM_BYTES), now_ms=NOW)
    assert log.fits_journal
