"""Append-only files: writes that fail halfway, renames, and what a sync covers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.log.disk.pooled import new_file
from tests.support.faultyfs import FaultyFileSystem
from tidemill import system
from tidemill.log.disk.files import Buffer, RealFileSystem
from tidemill.log.disk.log_file import HandlePool, LogFile
from tidemill.log.errors import DiskFullError, StorageError, SyncFailedError


@pytest.fixture
def file(fs: FaultyFileSystem) -> LogFile:
    """An empty file ``/d/a`` of a simulated file system."""
    return new_file(HandlePool(fs, 4), "a")


def test_a_full_disk_leaves_the_file_as_it_was(fs: FaultyFileSystem, file: LogFile) -> None:
    file.append(b"0123456789")
    fs.capacity = 15
    with pytest.raises(DiskFullError):
        file.append(b"0123456789")
    assert file.size == 10
    assert fs.content("/d/a") == b"0123456789"
    fs.clear_faults()
    file.append(b"!")
    assert fs.content("/d/a") == b"0123456789!"


def test_after_a_write_that_cannot_be_undone_all_writes_fail(
    fs: FaultyFileSystem, file: LogFile
) -> None:
    file.append(b"good")
    fs.capacity = 6
    fs.fail("truncate")
    with pytest.raises(StorageError, match="could not be undone"):
        file.append(b"bad!")
    assert file.broken
    fs.clear_faults()
    with pytest.raises(StorageError, match="offline"):
        file.append(b"more")


def test_an_append_waits_while_the_blocks_behind_the_end_are_freed(tmp_path: Path) -> None:
    pool = HandlePool(RealFileSystem(), 4)
    file = LogFile(pool, str(tmp_path / "a"), 0, creating=True)
    file.append(b"0123456789")
    work = file.begin_release()
    appending = threading.Thread(target=file.append, args=(b"!",))
    appending.start()
    appending.join(0.05)
    assert appending.is_alive()
    assert file.size == 10
    work()
    appending.join(10)
    assert not file.releasing
    file.begin_release()()
    file.append(b"?")
    assert (tmp_path / "a").read_bytes() == b"0123456789!?"
    pool.close_all()


def test_an_error_while_blocks_are_freed_does_not_hold_appends(
    fs: FaultyFileSystem, file: LogFile
) -> None:
    fs.fail("truncate")
    with pytest.raises(StorageError, match="truncating"):
        file.begin_release()()
    file.append(b"0123456789")
    assert fs.content("/d/a") == b"0123456789"


def test_an_error_that_is_not_about_space_is_not_a_disk_full_error(
    fs: FaultyFileSystem, file: LogFile
) -> None:
    fs.fail("write", errno.EIO)
    with pytest.raises(StorageError) as caught:
        file.append(b"x")
    assert not isinstance(caught.value, DiskFullError)
    assert not file.broken


def test_a_renamed_file_is_found_again_after_its_handle_was_closed(file: LogFile) -> None:
    file.append(b"abc")
    file.rename("/d/a.deleted")
    file.close()
    assert file.pread(3, 0) == b"abc"


def test_bytes_that_are_written_while_a_sync_begins_stay_unsynced(
    file: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = file._pool.pin(file)
    write = raw.pwrite

    def overtaken(buffers: Sequence[Buffer], position: int) -> int:
        file.datasync()  # in another thread, just before the bytes are there
        return write(buffers, position)

    monkeypatch.setattr(raw, "pwrite", overtaken)
    file.append(b"abc")
    assert file.dirty


# --- syncs without Python -------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> LogFile:
    """A file of the system with bytes that are not synced."""
    file = LogFile(HandlePool(RealFileSystem(), 4), str(tmp_path / "a"), 0, creating=True)
    file.create()
    file.append(b"abc")
    return file


def refers_to(fd: int, file: LogFile) -> bool:
    """Whether a descriptor is that of a file. Another thread can get the number of a closed one."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(file.path))
    except OSError:
        return False


def test_a_file_stays_open_for_a_sync_without_python(real: LogFile) -> None:
    fd = real.begin_datasync()
    assert fd is not None
    real.close()
    assert refers_to(fd, real)
    assert not real.dirty
    real.end_datasync(0)
    assert (real.pins, real.dirty) == (0, False)
    real.close()
    assert not refers_to(fd, real)


def test_bytes_that_are_appended_during_a_sync_without_python_stay_unsynced(real: LogFile) -> None:
    assert real.begin_datasync() is not None
    real.append(b"d")
    real.end_datasync(0)
    assert real.dirty


def test_a_sync_that_was_not_tried_leaves_the_bytes_unsynced(real: LogFile) -> None:
    assert real.begin_datasync() is not None
    real.end_datasync(None)
    assert (real.pins, real.dirty) == (0, True)


def test_after_a_failed_sync_without_python_no_other_begins(real: LogFile) -> None:
    assert real.begin_datasync() is not None
    with pytest.raises(SyncFailedError, match="Input/output error"):
        real.end_datasync(errno.EIO)
    assert (real.pins, real.dirty) == (0, True)
    assert real.begin_datasync() is None


def test_only_an_open_file_of_the_system_is_synced_without_python(
    file: LogFile, real: LogFile
) -> None:
    file.append(b"abc")
    assert file.begin_datasync() is None
    assert (file.pins, file.dirty) == (0, True)
    real.close()
    assert real.begin_datasync() is None
    assert (real.pins, real.dirty) == (0, True)


# --- write-back -----------------------------------------------------------------------------------


def test_a_range_that_can_not_be_written_back_is_an_error_with_its_path(
    real: LogFile, file: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, position: int, length: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(system, "start_writeback", refuse)
    with pytest.raises(StorageError, match=real.path):
        real.write_back(0, 3)
    assert real.pins == 0
    file.write_back(0, 3)  # it is not in a file of the system
