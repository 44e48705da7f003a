"""Space behind the ends of segments: when it is allocated, how much, and when it is released."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.log.journal.test_journal_recovery import NOW, World
from tests.support.logs import TP, open_log, open_store, read_bytes, ticket_of
from tidemill import system
from tidemill.clock import ManualClock
from tidemill.log.disk import preallocation
from tidemill.log.disk.preallocation import (
    FROM_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    NOTHING,
    SEGMENT_BYTES,
    TIMES,
    Preallocation,
)
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore

MIB = 1 << 20


class Growing:
    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.synced_size = 0
        self.owner: Preallocation | None = None

    def release_allocated(self) -> None:
        assert self.owner is not None
        self.owner.forget(self)

    def begin_release(self) -> Callable[[], None]:
        return self.release_allocated


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preallocation:
    monkeypatch.setattr(system, "can_allocate", lambda folder: True)
    monkeypatch.setattr(preallocation, "FREE_SHARE", 1)
    made = Preallocation()
    made.open(str(tmp_path))
    return made


# --- the rule ------------------------------------------------------------------------------------


def test_nothing_is_allocated_before_it_is_opened_or_where_there_is_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Preallocation()
    assert space.plan(Growing(MIB), SEGMENT_BYTES) == NOTHING
    monkeypatch.setattr(system, "can_allocate", lambda folder: False)
    space.open(str(tmp_path))
    assert space.plan(Growing(MIB), SEGMENT_BYTES) == NOTHING


@pytest.mark.parametrize(
    ("unsynced", "length"),
    [
        (FROM_BYTES - 1, 0),
        (FROM_BYTES, LEAST_BYTES),
        (5 * MIB, 5 * MIB * TIMES),
        (500 * MIB, MOST_BYTES),
    ],
)
def test_the_space_depends_on_what_is_unsynced(
    space: Preallocation, unsynced: int, length: int
) -> None:
    segment = Growing(unsynced + 7 * MIB)
    segment.synced_size = 7 * MIB
    expected = (segment.size, length) if length else NOTHING
    assert space.plan(segment, SEGMENT_BYTES) == expected


def test_the_space_ends_where_the_segment_is_expected_to_end(space: Preallocation) -> None:
    assert space.plan(Growing(5 * MIB), 12 * MIB) == (5 * MIB, 7 * MIB)
    assert space.plan(Growing(5 * MIB), 6 * MIB) == NOTHING  # too little to be worth it
    assert space.plan(Growing(5 * MIB), MIB) == NOTHING  # larger than the one before


def test_more_is_allocated_when_half_of_the_space_is_used(space: Preallocation) -> None:
    segment = Growing(2 * MIB)
    assert space.plan(segment, SEGMENT_BYTES) == (2 * MIB, 6 * MIB)
    assert space.plan(segment, SEGMENT_BYTES) == NOTHING
    segment.synced_size, segment.size = 3 * MIB, 5 * MIB
    assert space.plan(segment, SEGMENT_BYTES) == (8 * MIB, 3 * MIB)
    segment.size = 30 * MIB  # it has grown beyond its space
    segment.synced_size = 28 * MIB
    assert space.plan(segment, SEGMENT_BYTES) == (30 * MIB, 6 * MIB)


def test_all_space_is_bounded(space: Preallocation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preallocation, "TOTAL_BYTES", 2 * MOST_BYTES)
    segments = [Growing(100 * MIB) for _ in range(3)]
    plans = [space.plan(segment, SEGMENT_BYTES) for segment in segments]
    assert [length for _, length in plans] == [MOST_BYTES, MOST_BYTES, 0]
    segments[0].size += MOST_BYTES  # its space is used
    # The space that is left is counted now and then.
    assert (100 * MIB, MOST_BYTES) in [space.plan(segments[2], SEGMENT_BYTES) for _ in segments]
    space.forget(segments[1])
    assert (100 * MIB, MOST_BYTES) in [space.plan(segments[1], SEGMENT_BYTES) for _ in segments]


def test_a_disk_with_little_space_gets_no_space(
    space: Preallocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preallocation, "FREE_SHARE", 1 << 60)
    assert space.plan(Growing(5 * MIB), SEGMENT_BYTES) == NOTHING


def test_segments_that_are_synced_and_do_not_grow_are_idle(space: Preallocation) -> None:
    growing, unsynced, still = (Growing(5 * MIB) for _ in range(3))
    for segment in (growing, unsynced, still):
        space.plan(segment, SEGMENT_BYTES)
    growing.synced_size = still.synced_size = 5 * MIB
    assert space.idle() == []
    growing.size = growing.synced_size = 6 * MIB
    assert space.idle() == [still]
    assert space.forget(still)
    assert not space.forget(still)
    assert space.idle() == [growing]


def test_closing_releases_all_space_and_allocates_nothing_more(space: Preallocation) -> None:
    segments = [Growing(5 * MIB) for _ in range(3)]
    for segment in segments:
        segment.owner = space
        space.plan(segment, SEGMENT_BYTES)
    space.close()
    assert not any(space.forget(segment) for segment in segments)
    assert space.plan(segments[0], SEGMENT_BYTES) == NOTHING


@pytest.mark.parametrize("work", ["count", "list"])
def test_the_thread_of_a_sync_can_forget_a_segment_meanwhile(
    space: Preallocation, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    class Counted(Growing):
        """Whoever asks for its size is interrupted by the other thread."""

        @property
        def size(self) -> int:
            space.forget(last)
            return MIB

        @size.setter
        def size(self, value: int) -> None:
            pass

    first, last = Counted(), Growing(MIB)
    space.plan(first, SEGMENT_BYTES * 100)
    space.plan(last, SEGMENT_BYTES * 100)
    if work == "count":
        monkeypatch.setattr(preallocation, "TOTAL_BYTES", 0)
        for _ in range(3):
            assert space.plan(Growing(MIB), SEGMENT_BYTES * 100) == NOTHING
    else:
        space.idle()


def test_free_space_that_can_not_be_read_gives_no_space(
    space: Preallocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> os.statvfs_result:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(os, "statvfs", refuse)
    assert space.plan(Growing(MIB), SEGMENT_BYTES * 100) == NOTHING


# --- space that can't be allocated or released ----------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_a_sync_succeeds_although_space_can_not_be_released(code: int) -> None:
    world = World()
    world.log().roll(NOW)
    world.append(0, b"second")
    ticket = ticket_of(world.log())
    world.fs.fail("truncate", code)
    ticket.run()
    world.log().finish_sync(ticket)
    assert world.log().high_watermark == 2


def test_a_stop_is_clean_although_space_can_not_be_released() -> None:
    world = World()
    world.append(0, b"second", sync=True)
    world.store.environment.preallocation._ends[world.log().chain.active] = 1 << 22
    world.fs.fail("truncate", errno.ENOSPC)
    world.store.close()
    world.reopen()
    assert world.store.clean_start


def test_the_removal_of_a_file_before_its_space_is_allocated_is_no_error() -> None:
    world = World(file_delete_delay_ms="0")
    world.append(0, b"second")
    log = world.log()
    log.roll(NOW)
    world.append(0, b"third")
    ticket = ticket_of(log)
    ticket.allocated = 1 << 20, 1 << 22
    world.store.delete(log.tp)
    world.store.purge_deleted()
    ticket.run()


def test_an_append_does_not_wait_for_the_release_of_space_that_no_thread_takes() -> None:
    world = World()
    world.append(0, b"second", sync=True)
    release = world.log().chain.active.file.begin_release()
    release()
    world.append(0, b"third", sync=True)
    release()  # by an executor that had kept it
    assert world.values() == [b"first", b"second", b"third"]


# --- on a disk -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not system.can_allocate(str(tmp_path)):
        pytest.skip("the temporary folder is not on a disk")
    monkeypatch.setattr(preallocation, "FREE_SHARE", 1)
    return tmp_path / "data"


@pytest.fixture
def store(folder: Path) -> Iterator[LogStore]:
    opened = open_store(folder, ManualClock())
    yield opened
    opened.close(clean=False)


def grow(log: PartitionLog, *, is_awaited: bool = False) -> None:
    """Append half a megabyte, and sync it."""
    for _ in range(8):
        batch = encode_batch([NewRecord(None, os.urandom(1 << 16))], timestamp_ms=0)
        log.append(batch, now_ms=0)
    ticket = log.begin_sync(is_awaited=is_awaited)
    assert ticket is not None
    ticket.run()
    log.finish_sync(ticket)


def allocated(log: PartitionLog, index: int = -1) -> int:
    """Return the bytes that a segment takes on the disk beyond its size."""
    segment = log.segments[index]
    found = os.stat(segment.path())
    assert found.st_size == segment.size
    return found.st_blocks * 512 - segment.size


@pytest.mark.disk
def test_a_sync_allocates_space_and_the_file_keeps_its_size(store: LogStore) -> None:
    log = open_log(store, {})
    grow(log)
    assert LEAST_BYTES - MIB < allocated(log) < 2 * LEAST_BYTES
    expected = b""
    for _ in range(20):
        grow(log)
        assert allocated(log) > 0
        expected = read_bytes(log)
    assert len(expected) == log.segments[-1].size


@pytest.mark.disk
def test_a_sync_for_which_a_request_waits_allocates_nothing(store: LogStore) -> None:
    log = open_log(store, {})
    grow(log, is_awaited=True)
    assert allocated(log) < MIB


@pytest.mark.disk
@pytest.mark.parametrize("clean", [True, False])
def test_neither_a_stop_nor_the_start_after_a_crash_leaves_space(clean: bool, folder: Path) -> None:
    store = open_store(folder, ManualClock())
    log = open_log(store, {})
    grow(log)
    before = read_bytes(log)
    assert allocated(log) > MIB
    store.close(clean=clean)
    assert (allocated(log) > MIB) == (not clean)
    again = open_store(folder, ManualClock())
    try:
        assert allocated(again.get(TP)) < MIB
        assert read_bytes(again.get(TP)) == before
    finally:
        again.close()


@pytest.mark.disk
@pytest.mark.parametrize("is_known", [True, False], ids=["its own", "of a process before"])
def test_a_closed_segment_has_no_space(store: LogStore, is_known: bool) -> None:
    log = open_log(store, {})
    grow(log)
    if not is_known:
        store.environment.preallocation.forget(log.segments[-1])
    assert allocated(log) > MIB
    log.roll(0)
    grow(log)
    assert allocated(log, 0) < MIB
    assert 0 < allocated(log) < MIB  # it is expected to become as large as the one before
    assert len(read_bytes(log)) == log.size_bytes


@pytest.mark.disk
def test_the_sync_of_a_deleted_partition_releases_nothing(store: LogStore) -> None:
    log = open_log(store, {})
    grow(log)
    log.roll(0)
    ticket = ticket_of(log)
    segment = log.segments[0]
    store.delete(TP)
    store.purge_deleted(10)
    assert not os.path.exists(segment.path())
    ticket.run()
    assert segment.begin_release() is None


@pytest.mark.disk
def test_a_deleted_partition_is_forgotten(store: LogStore) -> None:
    log = open_log(store, {})
    grow(log)
    active = log.segments[-1]
    store.delete(TP)
    assert not store.environment.preallocation.forget(active)
