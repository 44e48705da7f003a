"""``python -m tests.soak.inspected``: the ``tidemill`` command, which reports about its memory.

It reports after a SIGUSR1, into the file that INSPECTED_REPORT names: how many objects of each type
there are, what malloc holds, and how much of it the system gets back from ``malloc_trim``. With
INSPECTED_TRACE it also says which lines allocated the memory that Python holds; that makes the
broker slow and larger, so no figure of such a run counts.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

REPORT, TRACE = "INSPECTED_REPORT", "INSPECTED_TRACE"
MOST_TYPES, MOST_LINES = 150, 60


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def malloc() -> dict[str, int]:
    """Return what malloc has from the system, and how much of it is used and free; trim it."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if not hasattr(libc, "mallinfo2"):
        return {}
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    before = resident()
    libc.malloc_trim(0)
    return {
        "heap": info.arena,
        "mapped": info.hblkhd,
        "used": info.uordblks,
        "free": info.fordblks,
        "trimmed": before - resident(),
    }


def mapped() -> dict[str, int]:
    """Return the resident bytes of each kind of mapping: heap, anonymous, kinds of files."""
    sizes: Counter[str] = Counter()
    kind = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            name = fields[5] if len(fields) > 5 else "anonymous"
            kind = name if name.startswith(("[", "anon")) else Path(name).suffix or name
        elif fields[0] == "Rss:":
            sizes[kind] += int(fields[1]) * 1024
    return dict(sizes.most_common(12))


def pymalloc() -> dict[str, int]:
    """Return what Python's allocator of small objects has, as it describes itself on stderr."""
    found = {}
    with tempfile.TemporaryFile() as out:
        stderr = os.dup(2)
        os.dup2(out.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        out.seek(0)
        for line in out.read().decode().splitlines():
            name, _, value = line.partition("=")
            if value.strip().replace(",", "").isdigit():
                found[name.strip(" #")] = int(value.strip().replace(",", ""))
    return found


def garbage() -> dict[str, int]:
    """Collect all garbage in circles, and return how many objects of each type it had.

    What is garbage in circles was not freed when it was dropped, and waits for a full collection.
    The broker makes them rare.
    """
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(type(each).__qualname__ for each in gc.garbage)
    gc.garbage.clear()
    return dict(found.most_common(MOST_TYPES))


def report(*_: object) -> None:
    """Write the report; the file appears when it is complete."""
    rss = resident()
    found = garbage()
    objects = gc.get_objects()
    types = Counter(type(each).__qualname__ for each in objects)
    sizes: Counter[str] = Counter()
    for each in objects:
        if isinstance(each, dict | list | set):
            sizes[type(each).__qualname__] += len(each)
    del objects
    out: dict[str, Any] = {
        "rss": rss,
        "types": dict(types.most_common(MOST_TYPES)),
        "elements": dict(sizes),
        "garbage": found,
        "mapped": mapped(),
        "pymalloc": pymalloc(),
        "threads": Counter(each.name for each in threading.enumerate()),
        "malloc": malloc(),
    }
    if tracemalloc.is_tracing():
        lines = tracemalloc.take_snapshot().statistics("lineno")[:MOST_LINES]
        out["lines"] = {str(each.traceback): (each.size, each.count) for each in lines}
        out["traced"] = tracemalloc.get_traced_memory()[0]
    path = Path(os.environ[REPORT])
    part = path.with_suffix(".part")
    part.write_text(json.dumps(out, indent=1))
    part.replace(path)


if __name__ == "__main__":
    if os.environ.get(TRACE):
        tracemalloc.start(1)
    signal.signal(signal.SIGUSR1, report)
    from tidemill.cli.main import main

    main()
