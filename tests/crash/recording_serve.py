"""``tidemill`` that records how much of each segment was synced.

``python -m tests.crash.recording_serve serve ...`` works like ``python -m tidemill serve ...``. It
appends a line to the file that ``CRASH_SYNCED`` names when an fdatasync of a segment has succeeded
(``synced <size> <path>``, with the size at the beginning of the sync) or when a segment was cut
(``cut <size> <path>``). A power cut can take what a segment has above its size there. Only segments
are wrapped: the journal writes as it does for users.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tidemill.cli.main import main
from tidemill.log import store
from tidemill.log.disk.files import RawFile, RealFile, RealFileSystem

SYNCED = os.environ.get("CRASH_SYNCED", "")


def record(path: str, kind: str, size: int) -> None:
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
        known = sizes.get(path, 0)
        sizes[path] = max(known, int(size)) if kind == "synced" else min(known, int(size))
    return sizes


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
    main()
