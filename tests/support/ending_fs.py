"""The real file system, on which the process ends at a chosen call that changes something."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.faultyfs import CrashError
from tidemill.log.disk.files import Buffer, RawFile, RealFileSystem


class EndingFileSystem(RealFileSystem):
    """The process ends at the call number ``last``, counted from 0."""

    def __init__(self, last: int) -> None:
        self.left = last

    def count(self) -> None:
        """Count one call.

        Raises:
            CrashError: it is the last one.
        """
        if self.left == 0:
            raise CrashError
        self.left -= 1

    def open(self, path: str, *, create: bool = False) -> RawFile:
        return _File(self, super().open(path, create=create))

    def write_atomic(self, path: str, data: Buffer) -> None:
        self.count()
        super().write_atomic(path, data)

    def mkdir(self, path: str) -> None:
        self.count()
        super().mkdir(path)

    def rename(self, old: str, new: str) -> None:
        self.count()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.count()
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self.count()
        super().sync_dir(path)


class _File:
    """A file whose changes are counted."""

    def __init__(self, fs: EndingFileSystem, raw: RawFile) -> None:
        self._fs = fs
        self.pread = raw.pread
        self.pread_nowait = raw.pread_nowait
        self.fileno = raw.fileno
        self.datasync = raw.datasync
        self.size = raw.size
        self.close = raw.close
        self._raw = raw

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        self._fs.count()
        return self._raw.pwrite(buffers, position)

    def truncate(self, size: int) -> None:
        self._fs.count()
        self._raw.truncate(size)
