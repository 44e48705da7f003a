"""Puts the files of tests into memory, where a sync costs nothing.

Half of the time of the tests that write logs was the disk's. Tests that are about a disk have the
marker ``disk``, and get a folder on one. Knows nothing of what the tests test.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST_FREE = 6 << 30
"""Bytes that must be there. A run needs two or three GB: data of brokers and of databases."""
SWITCH = "TESTS_IN_MEMORY"
"""Set to 0, it leaves all files where Python puts temporary ones."""
_DISK = "TESTS_ON_DISK"
"""The folder for temporary files on a disk. The processes of a run inherit it."""


def use() -> None:
    """Put temporary files of this process, and of those that it starts, into memory if it is large.

    A folder that the user has chosen (TMPDIR) stays.
    """
    if _DISK in os.environ:  # inherited, as TMPDIR
        return
    os.environ[_DISK] = tempfile.gettempdir()
    if os.environ.get(SWITCH) == "0" or "TMPDIR" in os.environ or not is_usable():
        return
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # it is asked for again


def is_usable(folder: Path = MEMORY, memory_info: Path = Path("/proc/meminfo")) -> bool:
    """Return whether a folder in memory has space and runs programs: containers can forbid both."""
    try:
        found = os.statvfs(folder)
        lines = memory_info.read_text().splitlines()
    except OSError:
        return False
    [available] = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
    space = min(found.f_bavail * found.f_frsize, available)
    runs_programs = not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return runs_programs and space >= LEAST_FREE and os.access(folder, os.W_OK | os.X_OK)


def disk() -> Path:
    """Return the folder for temporary files on a disk, or where they are if that is not known."""
    return Path(os.environ.get(_DISK, tempfile.gettempdir()))


def new_folder_on_disk(name: str) -> Path:
    """Return a new folder on the disk. The caller removes it."""
    return Path(tempfile.mkdtemp(prefix=f"tidemill-{name}-", dir=disk()))
