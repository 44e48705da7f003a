"""Checks of a data folder, and the reading of every batch of a stopped one. Changes nothing.

Damage is named by file, byte and offset, as the broker itself would name it. What recovery repairs
(a torn tail that nobody was promised) is a warning; what it can't repair is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

from tidemill.cli import output
from tidemill.cli.doctor import Finding
from tidemill.log.format import FORMAT_FILE, FORMAT_VERSION
from tidemill.log.names import parse_folder_name
from tidemill.log.scan import BatchScanner, find_batch
from tidemill.log.store import LOCK_FILE

if TYPE_CHECKING:
    from tidemill.log.handles import LogFile


def check(data_dir: Path, *, verify: bool) -> Iterator[Finding]:
    """Findings about the folder; with ``verify`` also about each segment in it."""
    if not data_dir.exists():
        yield _not_there(data_dir)
        return
    if not data_dir.is_dir():
        yield Finding("fail", "data", f"{data_dir} is not a folder")
        return
    if not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("fail", "data", f"no permission to read and write {data_dir}")
        return
    partitions = sorted(p for p in data_dir.iterdir() if p.is_dir() and parse_folder_name(p.name))
    yield Finding("ok", "data", f"{data_dir}: {output.plural(len(partitions), 'partition')}")
    yield from _format(data_dir, partitions)
    in_use = is_in_use(data_dir)
    yield Finding("ok", "lock", "a broker is using the folder" if in_use else "no broker uses it")
    if not verify:
        return
    if in_use:
        yield Finding("fail", "verify", "a broker is using the folder", "Stop it first.")
        return
    yield from _verify(partitions)


def _not_there(data_dir: Path) -> Finding:
    parent = data_dir.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if os.access(parent, os.W_OK | os.X_OK):
        return Finding("ok", "data", f"{data_dir} will be made")
    return Finding("fail", "data", f"{data_dir} can't be made: {parent} can't be written")


def _format(data_dir: Path, partitions: list[Path]) -> Iterator[Finding]:
    try:
        text = (data_dir / FORMAT_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        if partitions:
            text = f"{data_dir} holds logs, but no {FORMAT_FILE}: it is not tidemill's"
            yield Finding("fail", "format", text, "Choose an empty --data-dir.")
        return
    if text != str(FORMAT_VERSION):
        text = f"{data_dir} has format version {text!r}; this tidemill reads {FORMAT_VERSION}"
        yield Finding("fail", "format", text, "Use the tidemill version that wrote it.")
        return
    yield Finding("ok", "format", f"version {text}")


def is_in_use(data_dir: Path) -> bool:
    """Whether another process holds the folder's lock; asks without taking it for longer."""
    import fcntl

    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except OSError:  # no folder, or none of ours: other checks say what it is
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


def _verify(partitions: list[Path]) -> Iterator[Finding]:
    batches = size = damaged = 0
    for folder in partitions:
        segments = sorted(folder.glob("[0-9]*.log"))
        next_offset = 0
        for segment in segments:
            finding, count, next_offset = _verify_segment(
                segment, next_offset, last=segment == segments[-1]
            )
            batches += count
            size += segment.stat().st_size
            if finding is not None:
                damaged += 1
                yield finding
    if not damaged:
        text = f"{output.plural(batches, 'batch').replace('batchs', 'batches')} whole"
        yield Finding("ok", "verify", f"{text}, {output.size_text(size)}")


def _verify_segment(
    segment: Path, next_offset: int, *, last: bool
) -> tuple[Finding | None, int, int]:
    """Read one segment; (damage, good batches, offset after it)."""
    base = int(segment.stem)
    if base < next_offset:
        text = f"{segment}: starts at offset {base}, but its predecessor ends at {next_offset - 1}"
        return Finding("fail", "verify", text), 0, next_offset
    end = segment.stat().st_size
    with _ReadOnlyFile(segment) as reader:
        file = cast("LogFile", reader)
        scanner = BatchScanner(file, 0, end, base)
        count = sum(1 for _ in scanner)
        if scanner.damage is None:
            return None, count, scanner.next_offset
        where = f"{segment}: byte {scanner.position}, offset {scanner.next_offset}"
        behind = find_batch(file, scanner.position + 1, end, scanner.next_offset)
    if last and behind is None:
        text = f"{where}: {output.size_text(end - scanner.position)} of an unfinished write"
        hint = "The broker cuts it off when it starts."
        return Finding("warn", "verify", text, hint), count, scanner.next_offset
    text = f"{where}: {scanner.damage}"
    hint = "The partition will be offline from there; restore the file from a copy."
    if behind is not None:
        hint += f" The next whole batch is at byte {behind[0]}, offset {behind[1].base_offset}."
    return Finding("fail", "verify", text, hint), count, scanner.next_offset


class _ReadOnlyFile:
    """A segment opened for reading only: the doctor never takes a handle that could write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def __enter__(self) -> _ReadOnlyFile:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self._descriptor, length, position)
