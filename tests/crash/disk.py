"""A disk that records what a broker has synced, and that fails as a test says (``disk.c``).

The broker is the ordinary one, with its native code and native threads.
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

SOURCE = Path(__file__).with_name("disk.c")

Entry = tuple[str, int, int]
"""The path of a file of the journal, a position in it, and a length."""


def disk(
    folder: Path, *, synced: Path | None = None, faults: Path | None = None, refused: str = ""
) -> dict[str, str]:
    """Return the environment of a program that uses the disk.

    A broker with it must be ``fresh``: one that is forked has loaded the C library already.

    Args:
        folder: gets the compiled library.
        synced: gets a line for each sync.
        faults: while this file exists, it says what fails.
        refused: a partition, and the numbers of the writes to it that fail.
    """
    if sys.platform != "linux":
        pytest.skip("the disk of crash tests needs Linux")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler for the disk of crash tests")
    library = folder / "disk.so"
    if not library.exists():
        command = [*compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
        subprocess.run([*command, str(SOURCE), "-ldl", "-lpthread"], check=True)
    preloaded = [str(library), *os.environ.get("LD_PRELOAD", "").split(":")]
    options = {"CRASH_SYNCED": synced, "CRASH_FAULTS": faults, "CRASH_REFUSED": refused or None}
    return {
        "LD_PRELOAD": ":".join(filter(None, preloaded)),
        **{name: str(value) for name, value in options.items() if value is not None},
    }


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
