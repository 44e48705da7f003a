"""Checks a data folder, and reads every batch of one that no broker uses.

Damage is reported with file, byte and offset, as the broker reports it. A torn tail, which
recovery cuts off because no client has an acknowledgement for it, is a warning. Other damage is a
failure. This module must not change anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidemill.cli import output
from tidemill.cli.server.finding import Finding
from tidemill.errors import TidemillError
from tidemill.log.disk.files import RealFileSystem
from tidemill.log.names import parse_folder_name
from tidemill.log.recovery.inspect import Inspection
from tidemill.log.store import LOCK_FILE
from tidemill.log.versions import FORMAT_FILE, FORMAT_VERSION, NEWER_HINT, known_version


def check(data_dir: Path, *, verify: bool) -> Iterator[Finding]:
    """Yield findings about the folder; with ``verify`` also about each segment in it."""
    if not data_dir.exists():
        yield _missing(data_dir)
        return
    if not data_dir.is_dir():
        yield Finding("fail", "data", f"{data_dir} is not a folder")
        return
    if not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("fail", "data", f"{data_dir} is not readable and writable")
        return
    partitions = sorted(p for p in data_dir.iterdir() if p.is_dir() and parse_folder_name(p.name))
    yield Finding("ok", "data", f"{data_dir}: {output.plural(len(partitions), 'partition')}")
    yield from _format(data_dir, partitions)
    in_use = is_in_use(data_dir)
    yield Finding("ok", "lock", f"{'a' if in_use else 'no'} broker is using the folder")
    if not verify:
        return
    if in_use:
        yield Finding("fail", "verify", "a broker is using the folder", "Stop it first.")
        return
    yield from _verify(data_dir)


def _missing(data_dir: Path) -> Finding:
    parent = data_dir.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if os.access(parent, os.W_OK | os.X_OK):
        return Finding("ok", "data", f"{data_dir} will be created")
    return Finding("fail", "data", f"{data_dir} can't be created: {parent} is not writable")


def _format(data_dir: Path, partitions: list[Path]) -> Iterator[Finding]:
    try:
        text = (data_dir / FORMAT_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        if partitions:
            text = f"{data_dir} contains logs but no {FORMAT_FILE}: tidemill did not create it"
            yield Finding("fail", "format", text, "Use an empty --data-dir.")
        return
    version = known_version(text)
    if version is None:
        text = f"format version {text!r} of {data_dir} is not supported, only {FORMAT_VERSION}"
        yield Finding("fail", "format", text, NEWER_HINT)
        return
    later = "" if version == FORMAT_VERSION else f"; the next start makes it {FORMAT_VERSION}"
    yield Finding("ok", "format", f"version {version}{later}")


def is_in_use(data_dir: Path) -> bool:
    """Return whether another process has locked the folder. This holds the lock only briefly."""
    import fcntl

    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except OSError:  # no folder, or not a data folder: other checks report that
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


# --- segments ------------------------------------------------------------------------------------


def _verify(data_dir: Path) -> Iterator[Finding]:
    inspection = Inspection(RealFileSystem(), str(data_dir))
    damaged = False
    try:
        for damage in inspection.run():
            damaged = True
            status = "warn" if damage.is_repaired else "fail"
            yield Finding(status, "verify", damage.text, damage.hint)
    except (OSError, TidemillError) as error:
        yield Finding("fail", "verify", f"a file can't be read: {error}")
        return
    if not damaged:
        text = output.plural(inspection.batches, "batch").replace("batchs", "batches")
        text = f"{text} without damage, {output.size_text(inspection.size)}"
        yield Finding("ok", "verify", text)
