"""The implementation of the file system for Linux, on a disk and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.log.disk.files import RealFileSystem
from tidemill.log.errors import DataDirLockedError


@pytest.fixture(autouse=True, params=[pytest.param("disk", marks=pytest.mark.disk), "memory"])
def place(request: pytest.FixtureRequest) -> str:
    """Where ``tmp_path`` is. A file system in memory can't tell what is in the page cache."""
    return str(request.param)


@pytest.fixture
def fs() -> RealFileSystem:
    return RealFileSystem()


def test_writes_several_buffers_at_a_position_and_reads_them(
    fs: RealFileSystem, tmp_path: Path
) -> None:
    file = fs.open(f"{tmp_path}/f", create=True)
    assert file.pwrite((b"abc", bytearray(b"def"), memoryview(b"ghi")), 2) == 9
    assert file.pread(100, 0) == b"\0\0abcdefghi"
    assert bytes(file.pread_nowait(3, 2) or b"abc") == b"abc"
    assert file.pread_nowait(100, 0) is None  # shorter than asked: never cut in silence
    file.truncate(4)
    assert file.size() == 4
    file.datasync()
    file.close()


def test_an_atomic_write_replaces_and_leaves_nothing_else(
    fs: RealFileSystem, tmp_path: Path
) -> None:
    fs.write_atomic(f"{tmp_path}/f", b"one")
    fs.write_atomic(f"{tmp_path}/f", b"two")
    assert fs.read_bytes(f"{tmp_path}/f") == b"two"
    assert fs.files(str(tmp_path)) == {"f": 3}


def test_an_empty_file_can_be_mapped(fs: RealFileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert bytes(fs.map_bytes(f"{tmp_path}/f")) == b""
    (tmp_path / "g").write_bytes(b"abc")
    assert bytes(fs.map_bytes(f"{tmp_path}/g")) == b"abc"


def test_files_and_folders_are_listed_apart(fs: RealFileSystem, tmp_path: Path) -> None:
    fs.mkdir(f"{tmp_path}/d")
    fs.write_bytes(f"{tmp_path}/f", b"1234")
    assert fs.files(str(tmp_path)) == {"f": 4}
    assert fs.folders(str(tmp_path)) == ["d"]
    fs.sync_file(f"{tmp_path}/f")
    fs.sync_dir(str(tmp_path))


def test_a_lock_is_held_once(fs: RealFileSystem, tmp_path: Path) -> None:
    lock = fs.lock(f"{tmp_path}/.lock")
    with pytest.raises(DataDirLockedError, match="in use"):
        fs.lock(f"{tmp_path}/.lock")
    lock.close()
    fs.lock(f"{tmp_path}/.lock").close()
