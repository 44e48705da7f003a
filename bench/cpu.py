"""Measures the processor time of processes. Linux only. Must not know: what they do."""

from __future__ import annotations

import contextlib
import os

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
