"""``tidemill`` with a file system whose faults other processes switch on.

``python -m tests.crash.faulty_serve serve ...`` works like ``python -m tidemill serve ...``; while
the file named by ``CRASH_FAULTS`` exists, it says what fails: a line ``enospc`` lets every write
to a log fail half way with ENOSPC, ``fsync`` lets every fdatasync of a log fail with EIO.
``CRASH_REFUSED`` (``b-0 1 7``) names a partition, and which of the writes to its data fail so.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence

from tidemill.cli.main import main
from tidemill.log import store
from tidemill.log.disk.files import Buffer, RawFile, RealFile, RealFileSystem

FAULTS = os.environ.get("CRASH_FAULTS", "")
_PARTITION, *_NUMBERS = os.environ.get("CRASH_REFUSED", "-").split()
_writes = itertools.count(1)


def active(fault: str) -> bool:
    """Return whether a fault is switched on."""
    if not os.path.exists(FAULTS):
        return False
    with open(FAULTS) as file:
        return fault in file.read().split()


def is_refused(path: str) -> bool:
    """Return whether the present write to the data of a log must fail."""
    if not path.endswith(".log") or f"/{_PARTITION}/" not in path:
        return False
    return str(next(_writes)) in _NUMBERS


class FaultyFile(RealFile):
    """A file that fails while a fault is switched on."""

    __slots__ = ("_path",)

    def __init__(self, fd: int, path: str) -> None:
        super().__init__(fd)
        self._path = path

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        if active("enospc") or is_refused(self._path):
            # A disk that becomes full stores a part of the data first.
            data = b"".join(buffers)
            super().pwrite([data[: len(data) // 2]], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(buffers, position)

    def datasync(self) -> None:
        if active("fsync"):
            raise OSError(errno.EIO, "Input/output error")
        super().datasync()


class FaultyFileSystem(RealFileSystem):
    """The real file system, except for logs."""

    def open(self, path: str, *, create: bool = False) -> RawFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return FaultyFile(os.open(path, flags, 0o644), path)


if __name__ == "__main__":
    store.RealFileSystem = FaultyFileSystem  # type: ignore[attr-defined]
    main()
