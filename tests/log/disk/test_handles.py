"""Open files: the limit on their number."""

from __future__ import annotations

import errno

import pytest

from tests.log.disk.pooled import new_file
from tests.support.faultyfs import FaultyFileSystem
from tidemill.log.disk.log_file import HandlePool, LogFile
from tidemill.log.errors import SyncFailedError, TooManyOpenFilesError


def dirty_files(pool: HandlePool, count: int) -> list[LogFile]:
    """Create files with three bytes each that are not synced."""
    files = [new_file(pool, str(number)) for number in range(count)]
    for file in files:
        file.append(b"abc")
    return files


def test_no_more_handles_than_the_limit_are_open(fs: FaultyFileSystem) -> None:
    pool = HandlePool(fs, 4)
    files = dirty_files(pool, 20)
    assert len(pool) == fs.open_handles == 4
    assert [file.pread(3, 0) for file in files] == [b"abc"] * 20
    pool.close_all()
    assert fs.open_handles == 0


def test_a_file_in_use_is_not_closed(fs: FaultyFileSystem) -> None:
    pool = HandlePool(fs, 4)
    used = new_file(pool, "used")
    raw = pool.pin(used)
    dirty_files(pool, 10)
    assert pool.pin(used) is raw


def test_unsynced_bytes_are_synced_before_their_handle_is_closed(fs: FaultyFileSystem) -> None:
    pool = HandlePool(fs, 4)
    first = new_file(pool, "first")
    first.append(b"precious")
    before = fs.syncs
    dirty_files(pool, 8)
    assert fs.syncs > before
    assert not first.dirty


class Crowded:
    """A pool of eight handles that reports when it is crowded."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.calls = 0
        self.pool = HandlePool(fs, 8)
        self.pool.on_crowded = self.count

    def count(self) -> None:
        self.calls += 1


def test_no_caller_waits_for_a_sync_while_another_thread_makes_space(fs: FaultyFileSystem) -> None:
    crowded = Crowded(fs)
    files = dirty_files(crowded.pool, 10)
    assert (fs.syncs, crowded.calls, len(crowded.pool)) == (0, 1, 10)
    crowded.pool.relieve()
    assert (fs.syncs, len(crowded.pool)) == (3, 7)
    assert [file.dirty for file in files] == [False] * 3 + [True] * 7
    dirty_files(crowded.pool, 2)
    assert crowded.calls == 2
    assert [file.pread(3, 0) for file in files[2:]] == [b"abc"] * 8


def test_the_limit_is_exceeded_by_a_quarter_at_most(fs: FaultyFileSystem) -> None:
    crowded = Crowded(fs)
    dirty_files(crowded.pool, 30)
    assert len(crowded.pool) == fs.open_handles == 10
    assert fs.syncs > 0


def test_a_file_in_use_or_written_meanwhile_stays_open(fs: FaultyFileSystem) -> None:
    crowded = Crowded(fs)
    files = dirty_files(crowded.pool, 10)
    raw = crowded.pool.pin(files[0])
    crowded.pool.relieve()
    assert files[0].dirty
    assert crowded.pool.pin(files[0]) is raw
    assert not files[1].dirty


def test_a_failed_sync_of_crowded_files_is_reported(fs: FaultyFileSystem) -> None:
    crowded = Crowded(fs)
    files = dirty_files(crowded.pool, 10)
    reported: list[SyncFailedError] = []
    crowded.pool.on_sync_failure = reported.append
    fs.fail("sync")
    with pytest.raises(SyncFailedError):
        crowded.pool.relieve()
    assert len(reported) == 1
    assert files[0].dirty
    assert len(crowded.pool) == 10


def test_a_failed_sync_makes_every_later_sync_fail(fs: FaultyFileSystem) -> None:
    pool = HandlePool(fs, 4)
    file, other = new_file(pool, "a"), new_file(pool, "b")
    file.append(b"x")
    fs.fail("sync")
    with pytest.raises(SyncFailedError, match="/d/a"):
        file.datasync()
    with pytest.raises(SyncFailedError):
        other.datasync()


def test_the_handle_of_a_deleted_file_is_closed_after_its_last_use(fs: FaultyFileSystem) -> None:
    pool = HandlePool(fs, 4)
    file = new_file(pool, "a")
    file.append(b"abc")
    pool.pin(file)  # a sync in another thread
    file.retire()
    assert fs.open_handles == 1
    pool.unpin(file)
    assert fs.open_handles == 0
    assert file.pread(3, 0) == b"abc"  # a reader that had found its place before
    assert fs.open_handles == 0


# --- too many open files -------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_file_is_opened_after_others_were_closed_if_the_system_allows_no_more(
    fs: FaultyFileSystem, code: int
) -> None:
    pool = HandlePool(fs, 100)
    files = dirty_files(pool, 20)
    for file in files[:-1]:
        file.datasync()
    fs.fail("open", code)
    new_file(pool, "last").append(b"x")
    assert len(pool) < 20
    assert files[-1].dirty  # its handle is open, and would report a failed write-back


def test_a_file_that_can_not_be_opened_is_a_typed_error_and_not_a_failed_sync(
    fs: FaultyFileSystem,
) -> None:
    pool = HandlePool(fs, 100)
    file = new_file(pool, "file")
    file.append(b"x")
    file.datasync()
    file.close()
    fs.fail("open", errno.EMFILE, times=-1)
    with pytest.raises(TooManyOpenFilesError) as caught:
        file.datasync()
    assert "ulimit" in caught.value.hint
    assert pool.sync_failure is None
    fs.clear_faults()
    file.datasync()


def test_a_folder_that_can_not_be_opened_is_not_a_failed_sync(fs: FaultyFileSystem) -> None:
    pool = HandlePool(fs, 100)
    fs.fail("sync", errno.EMFILE)
    with pytest.raises(TooManyOpenFilesError), pool.sync_errors("/d"):
        fs.sync_dir("/d")
    with pool.sync_errors("/d"):
        fs.sync_dir("/d")
    assert pool.sync_failure is None
