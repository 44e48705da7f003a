"""The recorder sees what native threads and Python write and sync, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.recording import recording, synced_sizes, unsynced_entries
from tidemill import native

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
from tidemill import native, system
folder = sys.argv[1]
def finish(thread, start):
    start()
    while (result := thread.result()) is None:
        select.select([signal], [], [])
    assert result[1] == 0, result
    thread.close()
signal = system.new_signal()
segment = os.open(folder + "/a.log", os.O_CREAT | os.O_RDWR)
os.write(segment, b"12345")
thread = native.load().SyncThread(signal)
finish(thread, lambda: thread.start([segment]))
os.write(segment, b"6")
entry = os.open(folder + "/1.journal", os.O_CREAT | os.O_RDWR)
thread = native.load().EntryThread(signal)
finish(thread, lambda: thread.start(entry, bytearray(16), [b"12", bytes(8)], 0))
os.pwrite(entry, b"345", 2)
"""


@pytest.mark.parametrize("program", [PYTHON, NATIVE], ids=["python", "native"])
def test_synced_segments_and_unsynced_writes_to_the_journal(program: str, tmp_path: Path) -> None:
    if program is NATIVE and native.load() is None:
        pytest.skip("the extension was not built")
    lines = tmp_path / "lines"
    environment = {**os.environ, **recording(tmp_path, lines)}
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
    environment = {**os.environ, **recording(tmp_path, lines)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    sizes = synced_sizes(lines.read_text().splitlines())
    assert sizes == {f"{tmp_path}/cut.log": 3, f"{tmp_path}/gone.log": 0}
