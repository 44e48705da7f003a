"""Measures the processor time of a JVM by what its threads do. Linux only. Knows no queries."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

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


def seconds(pid: int) -> dict[str, float]:
    """Return the processor seconds of a process by group; threads that have ended are ``other``."""
    total: dict[str, float] = defaultdict(float)
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name, used = _parse((folder / "stat").read_text())
            total[group_of(name)] += used
    times = psutil.Process(pid).cpu_times()
    total[OTHER] += max(0.0, times.user + times.system - sum(total.values()))
    return dict(total)


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return what was used between two calls of ``seconds``, for every group."""
    return {each: max(0.0, after.get(each, 0.0) - before.get(each, 0.0)) for each in GROUPS}


def _parse(stat: str) -> tuple[str, float]:
    """Return the name and the seconds of a thread, given its ``stat`` of proc(5)."""
    before, _, after = stat.rpartition(")")
    user, system = after.split()[11:13]
    return before.partition("(")[2], (int(user) + int(system)) / _TICKS_PER_S
