"""Where the tests have their files: in memory only if there is space, and if programs run there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import memory

LARGE = f"MemTotal: 99999999 kB\nMemAvailable: {memory.LEAST_FREE >> 10} kB\n"


def usable(tmp_path: Path, meminfo: str = LARGE) -> bool:
    (tmp_path / "meminfo").write_text(meminfo)
    return memory.is_usable(tmp_path, tmp_path / "meminfo")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the system says of a folder, to be changed."""
    values = {"f_bavail": memory.LEAST_FREE >> 12, "f_frsize": 1 << 12, "f_flag": 0}

    class Found:
        def __getattr__(self, name: str) -> int:
            return values[name]

    monkeypatch.setattr(os, "statvfs", lambda _: Found())
    return values


def test_a_large_folder_where_programs_run_is_used(tmp_path: Path, folder: dict[str, int]) -> None:
    assert usable(tmp_path)


@pytest.mark.parametrize("change", [{"f_bavail": 1000}, {"f_flag": os.ST_NOEXEC}])
def test_a_container_s_small_folder_is_not_used(
    tmp_path: Path, folder: dict[str, int], change: dict[str, int]
) -> None:
    folder.update(change)
    assert not usable(tmp_path)


def test_a_machine_with_little_memory_keeps_its_files_on_the_disk(
    tmp_path: Path, folder: dict[str, int]
) -> None:
    assert not usable(tmp_path, "MemTotal: 99999999 kB\nMemAvailable: 4000000 kB\n")
    assert not memory.is_usable(tmp_path, tmp_path / "missing")


@pytest.mark.disk
def test_a_test_about_a_disk_has_its_files_there(tmp_path: Path) -> None:
    assert tmp_path.parent == memory.disk()
