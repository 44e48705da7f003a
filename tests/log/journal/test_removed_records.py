"""Records that were removed after the journal had them do not return, and leave no damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.log.journal.test_journal_recovery import FIRST, NOW, A, B, C, World
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


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["start lost", "start stored"])
@pytest.mark.parametrize("remove", [by_retention, by_request, by_request_after_a_roll])
def test_a_start_after_removed_records_finds_no_damage(
    remove: Callable[[World], PartitionLog], is_stored: bool, is_power_cut: bool
) -> None:
    world = World.promised(A, B, C, retention_ms=str(DAY_MS))
    log = remove(world)
    start, end = log.log_start_offset, log.log_end_offset
    if is_stored:
        world.store.checkpoint()
    world.power_cut() if is_power_cut else world.kill()
    assert not world.store.offline
    log = world.log()
    # A new start that was not stored yet can be lost, but never a record at or above it.
    assert log.log_start_offset == start if is_stored else log.log_start_offset <= start
    assert log.log_end_offset == end
    expected = [FIRST, A, B, C, b"later"][:end][log.log_start_offset :]
    assert world.values() == expected
    world.promise(b"next")
    world.power_cut()
    assert world.values() == [*expected, b"next"]


def test_a_removed_segment_whose_old_name_returns_is_whole() -> None:
    """Only the journal had its end, and does not have it any more."""
    world = World.promised(A, partitions=2, retention_ms=str(DAY_MS))
    log = world.log()
    assert log.delete_old_segments(NOW + 2 * DAY_MS)
    store_segments(world.store, log)
    for _ in range(40):  # the journal has 16 blocks
        world.promise(b"other", partition=1)
        store_segments(world.store, world.log(1))
    world.power_cut()
    assert not world.store.offline
    assert world.values() == [FIRST, A]
