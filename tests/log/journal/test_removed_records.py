"""Records that were removed after the journal had them do not return, and leave no damage."""

from __future__ import annotations

import pytest

from tests.log.journal.test_journal_recovery import NOW, World
from tests.support.faultyfs import Unlucky
from tests.support.journaled import store_segments
from tidemill.log.partition.partition import PartitionLog

DAY_MS = 86_400_000


def by_retention(world: World) -> PartitionLog:
    """Remove all records that are older than a day, with the last segment."""
    log = world.log()
    assert log.delete_old_segments(NOW + 2 * DAY_MS)
    assert log.log_start_offset == log.log_end_offset == 4
    return log


def by_request(world: World) -> PartitionLog:
    """Remove the first three records, in the middle of a segment."""
    log = world.log()
    assert log.delete_records_before(3) == 3
    return log


def by_request_after_a_roll(world: World) -> PartitionLog:
    """Remove the first three records, with their segments."""
    log = world.log()
    log.roll(NOW)
    world.append(0, b"later", sync=True)
    assert log.delete_records_before(4) == 4
    return log


REMOVALS = [by_retention, by_request, by_request_after_a_roll]


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["start lost", "start stored"])
@pytest.mark.parametrize("remove", REMOVALS)
def test_a_start_after_removed_records_finds_no_damage(
    remove: object, is_stored: bool, is_power_cut: bool
) -> None:
    world = World(retention_ms=str(DAY_MS))
    world.promise(b"a" * 50, b"b" * 50, b"c" * 50)
    assert callable(remove)
    log: PartitionLog = remove(world)
    start, end = log.log_start_offset, log.log_end_offset
    if is_stored:
        world.store.checkpoint()
    if is_power_cut:
        world.fs.power_cut(Unlucky())
    else:
        world.fs.kill()
    world.reopen()
    assert not world.store.offline
    log = world.log()
    # A new start that was not stored yet can be lost, but never a record at or above it.
    assert log.log_start_offset == start if is_stored else log.log_start_offset <= start
    assert log.log_end_offset == end
    kept = world.values()
    expected = [b"first", b"a" * 50, b"b" * 50, b"c" * 50, b"later"][:end][log.log_start_offset :]
    assert kept == expected
    world.promise(b"next")
    world.power_cut()
    assert world.values() == [*expected, b"next"]


def test_a_removed_segment_whose_old_name_returns_is_whole() -> None:
    """Only the journal had its end, and does not have it any more."""
    world = World(2, retention_ms=str(DAY_MS))
    world.promise(b"a" * 50)
    log = world.log()
    assert log.delete_old_segments(NOW + 2 * DAY_MS)
    store_segments(world.store, log)
    for _ in range(40):  # the journal has 16 blocks
        world.promise(b"other", partition=1)
        store_segments(world.store, world.log(1))
    world.power_cut()
    assert not world.store.offline
    assert world.values() == [b"first", b"a" * 50]
