"""Records what a broker has synced of its segments and of its journal, as ``recorder.c`` sees it.

The broker is the ordinary one, with its native code and native threads. ``recorder.c`` has the
format of the lines.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("recorder.c")

Entry = tuple[str, int, int]
"""The path of a file of the journal, a position in it, and a length."""


def recording(folder: Path, lines: Path) -> dict[str, str]:
    """Return the environment of a program whose syncs are recorded.

    Args:
        folder: gets the compiled recorder.
        lines: the file that gets the lines.
    """
    if sys.platform != "linux":
        pytest.skip("the recorder of syncs needs Linux")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler for the recorder of syncs")
    library = folder / "recorder.so"
    command = [*compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    preloaded = [str(library), *os.environ.get("LD_PRELOAD", "").split(":")]
    return {"CRASH_SYNCED": str(lines), "LD_PRELOAD": ":".join(filter(None, preloaded))}


def synced_sizes(lines: Iterable[str]) -> dict[str, int]:
    """Return the synced bytes of each segment, by its path."""
    sizes: dict[str, int] = {}
    for line in lines:
        kind, size, path = line.rstrip("\n").split(" ", 2)
        if kind not in ("synced", "cut"):
            continue
        known = sizes.get(path, 0)
        sizes[path] = max(known, int(size)) if kind == "synced" else min(known, int(size))
    return sizes


def unsynced_entries(lines: Iterable[str]) -> list[Entry]:
    """Return the writes to the journal that were begun and not synced."""
    begun: dict[str, list[Entry]] = {}
    for line in lines:
        kind, place, path = line.rstrip("\n").split(" ", 2)
        if kind == "begun":
            position, length = map(int, place.split("+"))
            begun.setdefault(path, []).append((path, position, length))
        elif kind == "stored":
            begun.pop(path, None)
    return [entry for entries in begun.values() for entry in entries]
