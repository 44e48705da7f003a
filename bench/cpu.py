"""Measures the processor time of processes. Linux only. Must not know: what they do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def tree_seconds(pid: int | None = None) -> float:
    """Return the processor seconds of a process and of all that it started, the ended ones too.

    A process that has ended counts in the one that waited for it.

    Args:
        pid: The process; default: this one.
    """
    root = psutil.Process(os.getpid() if pid is None else pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def ended_children_seconds() -> float:
    """Return the processor seconds of the programs that this process started and waited for."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def idle_seconds() -> float:
    """Return for how long the processors had nothing to do, also while the disk was waited for."""
    times = psutil.cpu_times()
    return float(times.idle + times.iowait)


def seconds(pid: int) -> float:
    """Return the processor seconds of one process."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Meter:
    """Measures the processor time of one process from now on.

    Linux counts the time of a thread in nanoseconds, and that of a process in hundredths of a
    second. So the threads are added up, unless one of them has ended meanwhile.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before, self._of_threads = seconds(pid), _thread_seconds(pid)

    def spent(self) -> float:
        """Return the processor seconds since the beginning."""
        now = _thread_seconds(self._pid)
        if not self._of_threads or not self._of_threads.keys() <= now.keys():
            return seconds(self._pid) - self._before
        return sum(now.values()) - sum(self._of_threads.values())


def _thread_seconds(pid: int) -> dict[str, float]:
    """Return the seconds of each thread; empty where the system can't say."""
    found = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found
