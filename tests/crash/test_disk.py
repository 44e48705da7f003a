"""The disk of crash tests sees what native threads and Python write and sync."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.disk import disk, synced_sizes, unsynced_entries

PYTHON = """
import os, sys
from tidemill.log.disk.files import RealFileSystem
folder = sys.argv[1]
segment = RealFileSystem().open(folder + "/a.log", create=True)
segment.pwrite([b"12", b"345"], 0)
segment.datasync()
segment.pwrite([b"6"], 5)
entry = RealFileSystem().open(folder + "/1.journal", create=True)
entry.pwrite([b"12"], 0)
entry.datasync()
entry.pwrite([b"34", b"5"], 2)
"""

NATIVE = """
import os, select, sys
from tidemill import system
from tidemill.native import extension
folder = sys.argv[1]
def finish(thread, expected, *entry):
    thread.start(*entry)
    while (result := thread.result()) is None:
        select.select([signal], [], [])
    assert result == expected, result
    thread.close()
signal = system.new_signal()
segment = os.open(folder + "/a.log", os.O_CREAT | os.O_RDWR)
os.write(segment, b"12345")
thread = extension.SyncThread(signal)
finish(thread, (1, 0), [(segment, 5, 1000)])
os.write(segment, b"6")
entry = os.open(folder + "/1.journal", os.O_CREAT | os.O_RDWR)
thread = extension.EntryThread(signal)
finish(thread, (0, 0), entry, bytearray(16), [b"12", bytes(8)], 0)
os.pwrite(entry, b"345", 2)
"""


@pytest.mark.parametrize("program", [PYTHON, NATIVE], ids=["python", "native"])
def test_synced_segments_and_unsynced_writes_to_the_journal(program: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    environment = {**os.environ, **disk(tmp_path, synced=lines)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    found = lines.read_text().splitlines()
    assert synced_sizes(found) == {f"{tmp_path}/a.log": 5}
    assert unsynced_entries(found) == [(f"{tmp_path}/1.journal", 2, 3)]


def test_a_segment_that_was_cut_or_removed(tmp_path: Path) -> None:
    program = """
import os, sys
for name in ("cut", "gone"):
    file = os.open(f"{sys.argv[1]}/{name}.log", os.O_CREAT | os.O_RDWR)
    os.write(file, b"12345")
    os.fsync(file)
    os.ftruncate(file, 3)
os.unlink(f"{sys.argv[1]}/gone.log")
"""
    lines = tmp_path / "lines"
    environment = {**os.environ, **disk(tmp_path, synced=lines)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    sizes = synced_sizes(lines.read_text().splitlines())
    assert sizes == {f"{tmp_path}/cut.log": 3, f"{tmp_path}/gone.log": 0}


@pytest.mark.parametrize("fault", ["fsync", "enospc", "journal"])
@pytest.mark.parametrize(
    ("program", "texts"),
    [
        (PYTHON, {"fsync": "Input/output error", "enospc": "No space left on device"}),
        (NATIVE, {"fsync": "AssertionError: (0, 5)", "enospc": "AssertionError: (28, 0)"}),
    ],
    ids=["python", "native"],
)
def test_a_fault_meets_python_and_native_threads(
    program: str, texts: dict[str, str], fault: str, tmp_path: Path
) -> None:
    faults = tmp_path / "faults"
    environment = {**os.environ, **disk(tmp_path, faults=faults)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    faults.write_text(fault)
    failed = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert failed.returncode == 1
    assert texts["fsync" if fault == "fsync" else "enospc"] in failed.stderr
    assert ("1.journal" in {each.name for each in tmp_path.iterdir()}) is (
        fault == "journal" or (fault == "enospc" and program is NATIVE)
    )
    faults.unlink()
    subprocess.run(command, env=environment, check=True, timeout=60)


def test_a_write_that_native_code_passes_to_python_is_refused_once(tmp_path: Path) -> None:
    (tmp_path / "b-0").mkdir()
    program = """
import ctypes, os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
part = (ctypes.c_void_p * 2)(ctypes.cast(b"1234", ctypes.c_void_p), 4)
libc = ctypes.CDLL(None)
libc.pwritev.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long)
def native(at): return libc.pwritev(file, part, 1, at)
def python(at):
    try:
        return os.pwrite(file, b"1234", at)
    except OSError:
        return -1
print(native(0), native(4), python(4), python(4), native(8), python(12))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "b-0" / "0.log")]
    environment = {**os.environ, **disk(tmp_path, refused="b-0 2 5")}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert found.stdout == b"4 -1 -1 4 4 -1\n"
