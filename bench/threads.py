"""Measures the processor time of a JVM by what its threads do. Linux only. Knows no queries."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

TASKS, COMPILERS, GARBAGE, ROCKSDB, OTHER = (
    "tasks",
    "Java's compilers",
    "garbage collection",
    "RocksDB",
    "other",
)
GROUPS = (TASKS, COMPILERS, GARBAGE, ROCKSDB, OTHER)
_STARTS = (
    ("Executor task", TASKS),
    ("C1 Compiler", COMPILERS),
    ("C2 Compiler", COMPILERS),
    ("GC Thread", GARBAGE),
    ("G1 ", GARBAGE),
    ("rocksdb:", ROCKSDB),
)
"""How the names of threads begin. Linux keeps 15 characters of a name."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def group_of(name: str) -> str:
    """Return the group of a thread, given its name."""
    return next((group for start, group in _STARTS if name.startswith(start)), OTHER)


def jvms() -> list[int]:
    """Return the process ids of the JVMs below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                found.append(process.pid)
    return found


class Times(NamedTuple):
    """Processor seconds of a process, in total and by thread: its id -> (group, seconds)."""

    total: float
    threads: Mapping[int, tuple[str, float]]


def times(pid: int) -> Times:
    """Return the processor seconds that a process has used until now."""
    found: dict[int, tuple[str, float]] = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name, used = _parse((folder / "stat").read_text())
            found[int(folder.name)] = group_of(name), used
    process = psutil.Process(pid).cpu_times()
    return Times(process.user + process.system, found)


def difference(after: Times, before: Times) -> dict[str, float]:
    """Return what was used between two calls of ``times``, for every group.

    What threads used that have ended meanwhile is ``other``.
    """
    used = dict.fromkeys(GROUPS, 0.0)
    for thread, (group, now) in after.threads.items():
        used[group] += max(0.0, now - before.threads.get(thread, (group, 0.0))[1])
    used[OTHER] += max(0.0, after.total - before.total - sum(used.values()))
    return used


def _parse(stat: str) -> tuple[str, float]:
    """Return the name and the seconds of a thread, given its ``stat`` of proc(5)."""
    before, _, after = stat.rpartition(")")
    user, system = after.split()[11:13]
    return before.partition("(")[2], (int(user) + int(system)) / _TICKS_PER_S
