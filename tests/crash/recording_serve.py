"""``tidemill`` that records what was synced of each segment and of the journal.

``python -m tests.crash.recording_serve serve ...`` works like ``python -m tidemill serve ...``. It
appends a line to the file that ``CRASH_SYNCED`` names when an fdatasync of a segment has succeeded
(``synced <size> <path>``, with the size at the beginning of the sync) or when a segment was cut
(``cut <size> <path>``). A power cut can take what a segment has above its size there.

An entry of the journal has a line before it is written (``begun <position>+<length> <path>``) and
one after its sync (``stored <position>+<length> <path>``). A power cut can take the entry that was
only begun. The journal writes as it does for users: on its native thread, where that was built.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from tidemill import native
from tidemill.cli.main import main
from tidemill.engine.threads import entries
from tidemill.log import store
from tidemill.log.disk.files import Buffer, RawFile, RealFile, RealFileSystem
from tidemill.log.journal import journal, write_through

SYNCED = os.environ.get("CRASH_SYNCED", "")


def record(path: str, kind: str, size: int | str) -> None:
    """Append a line; it survives a kill of this process, and that is all that it must survive."""
    line = f"{kind} {size} {path}\n".encode()
    fd = os.open(SYNCED, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def synced_sizes(lines: Iterable[str]) -> dict[str, int]:
    """Return the synced bytes of each file, by its path, from the lines of ``CRASH_SYNCED``."""
    sizes: dict[str, int] = {}
    for line in lines:
        kind, size, path = line.rstrip("\n").split(" ", 2)
        if kind not in ("synced", "cut"):
            continue
        known = sizes.get(path, 0)
        sizes[path] = max(known, int(size)) if kind == "synced" else min(known, int(size))
    return sizes


def unsynced_entry(lines: Iterable[str]) -> tuple[str, int, int] | None:
    """Return path, position and length of the journal's entry that was begun and not synced."""
    begun = None
    for line in lines:
        kind, place, path = line.rstrip("\n").split(" ", 2)
        if kind == "begun":
            begun = (path, *map(int, place.split("+")))
        elif kind == "stored":
            begun = None
    return begun  # type: ignore[return-value]


def recorded_write_through(
    raw: RawFile, header: bytearray, buffers: list[Buffer], position: int
) -> None:
    """Write an entry of the journal and sync it, and record both."""
    path = os.readlink(f"/proc/self/fd/{raw.fileno()}")
    place = f"{position}+{len(header) + sum(map(len, buffers))}"
    record(path, "begun", place)
    write_through.write_through(raw, header, buffers, position)
    record(path, "stored", place)


class RecordedThread:
    """The native thread of the journal, whose entries are recorded."""

    def __init__(self, signal_fd: int) -> None:
        extension: Any = native.load()
        self._thread = extension.EntryThread(signal_fd)
        self._entry = ("", "")

    def start(self, fd: int, header: bytearray, buffers: list[Buffer], position: int) -> None:
        """Record that an entry is begun, and start it."""
        place = f"{position}+{len(header) + sum(map(len, buffers))}"
        self._entry = os.readlink(f"/proc/self/fd/{fd}"), place
        record(self._entry[0], "begun", place)
        self._thread.start(fd, header, buffers, position)

    def has_written(self) -> bool:
        """Return whether an entry is on disk; see the native thread."""
        return bool(self._thread.has_written())

    def result(self) -> tuple[int, int] | None:
        """Return the result; record that the entry is stored."""
        result: tuple[int, int] | None = self._thread.result()
        if result == (0, 0):
            record(self._entry[0], "stored", self._entry[1])
        return result

    def close(self) -> None:
        """End the thread."""
        self._thread.close()


class RecordedFile(RealFile):
    """A segment whose syncs are recorded."""

    __slots__ = ("_path",)

    def __init__(self, fd: int, path: str) -> None:
        super().__init__(fd)
        self._path = path

    def datasync(self) -> None:
        size = self.size()  # appends continue meanwhile, and are not in this sync for certain
        super().datasync()
        record(self._path, "synced", size)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        record(self._path, "cut", size)


class RecordedFileSystem(RealFileSystem):
    """The real file system, except for segments."""

    def open(self, path: str, *, create: bool = False) -> RawFile:
        if not path.endswith(".log"):
            return super().open(path, create=create)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RecordedFile(os.open(path, flags, 0o600), path)

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.endswith(".log"):
            record(path, "cut", 0)


if __name__ == "__main__":
    store.RealFileSystem = RecordedFileSystem  # type: ignore[attr-defined]
    journal.write_through = recorded_write_through  # type: ignore[attr-defined]
    if native.load() is not None:
        recorded = SimpleNamespace(EntryThread=RecordedThread)
        entries.native = SimpleNamespace(load=lambda: recorded)  # type: ignore
    main()
