"""Crashes that once took a partition offline, although nothing that was promised was missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.log.journal.test_journal_recovery import NOW, World
from tests.support.logs import advance, write
from tidemill.log.compaction.run import compact
from tidemill.log.config.parse import parse_config
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.names import TopicPartition


def test_a_closed_segment_whose_records_have_no_timestamps_is_no_damage() -> None:
    world = World()
    log = world.log()
    log.roll(NOW)
    batch = encode_batch([NewRecord(b"k", b"a"), NewRecord(b"k", b"b")], timestamp_ms=-1)
    log.append(memoryview(batch), now_ms=NOW, from_client=True)
    log.flush()
    log.roll(NOW)
    log.flush()
    advance(world.store)
    world.kill()
    assert world.values() == [b"first", b"a", b"b"]


def test_a_log_whose_change_to_compaction_failed_is_not_compacted() -> None:
    """The files would not say that batches can be missing in it."""
    world = World()
    log = world.log()
    world.append(0, b"second", sync=True)
    # What a change leaves if the flush raises StorageError.
    log.appender.use_config(parse_config({"cleanup.policy": "compact"}))
    log.roll(NOW)
    world.append(0, b"third", sync=True)
    for work in compact(log, NOW):
        if work is not None:
            work.run()
    world.store.checkpoint()
    world.kill()
    assert world.values() == [b"first", b"second", b"third"]


def test_a_journal_that_was_given_up_is_needed_until_closed_segments_are_synced() -> None:
    """It proves that what a power cut takes from their ends was not promised."""
    world = World()
    world.append(0, b"x" * 100)
    world.log().roll(NOW)
    world.append(0, b"y" * 100)
    journal = world.store.journal
    journal.give_up()
    assert journal.is_needed
    # The kernel has written the new segment, and not the end of the old one.
    world.fs.settle(world.segment())
    world.fs.sync_dir("/data/t-0")
    world.power_cut()
    assert not world.store.offline
    assert world.values() == [b"first"]


def test_a_journal_that_was_given_up_is_not_needed_when_they_are_synced_or_deleted() -> None:
    world = World(2)
    for log in (world.log(0), world.log(1)):
        world.append(log.tp.partition, b"x")
        log.roll(NOW)
    journal = world.store.journal
    journal.give_up()
    world.log(0).flush()
    assert journal.is_needed
    world.store.delete(world.log(1).tp)
    assert not journal.is_needed


# --- a file system that keeps changes of a folder in any order, as POSIX allows ------------------


def deleted(world: World) -> None:
    """Delete all records right after a roll."""
    world.promise(b"a")
    world.log().roll(NOW)
    world.log().delete_records_before(world.log().high_watermark)


def retained(world: World) -> None:
    """Delete a segment because of its size right after a roll."""
    world.promise(b"a")
    log = world.log()
    log.config = parse_config({"retention.bytes": "1"})
    log.roll(NOW)
    world.append(0, b"unsynced")
    log.delete_old_segments(NOW)


def rolled_twice(world: World) -> None:
    """Roll a new partition before its first sync, and write to the next segment."""
    log = world.store.create(TopicPartition("n", 0), parse_config({}), UUID(int=2))
    world.fs.sync_dir("/data")
    world.fs.sync_file("/data/n-0/partition.metadata")
    for _ in range(2):
        write(log, [(b"k", b"v")], NOW, sync=False)
        log.roll(NOW)


@pytest.mark.parametrize("change", [deleted, retained, rolled_twice])
def test_names_of_segments_that_a_power_cut_takes_leave_no_gap(
    change: Callable[[World], None],
) -> None:
    for seed in range(60):
        world = World()
        world.fs.ordered = False
        change(world)
        world.fs.power_cut(random.Random(seed))
        world.fs.ordered = True
        world.reopen()
        assert not world.store.offline, seed
