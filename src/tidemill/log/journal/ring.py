"""The files of the journal: a small ring of preallocated files.

A new file is written with zeros and synced, so that a later sync of an entry changes no metadata of
the file system. A file is written from its beginning to its end, and again when none of its entries
is needed. Entries of the last round have lower sequences, so a file needs no header. Knows entries
as bytes only.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.disk.files import FileSystem, RawFile, write_fully

_ZEROS = bytes(1 << 18)
"""What one write to a new file has. With short writes, the thread that creates it would take
Python's lock from the event loop two thousand times."""


@dataclass(slots=True, eq=False, repr=False)
class RingFile:
    """A preallocated file.

    Attributes:
        used: bytes that the entries of this round take.
        first, last: sequences of its first and last entry of this round; -1 if there is none.
    """

    path: str
    raw: RawFile
    used: int = 0
    first: int = -1
    last: int = -1


class Ring:
    """The files of one journal.

    Args:
        folder: the folder of the files, which exists.
        file_bytes: size of each file.
        limit: most files.

    Attributes:
        current: the file that is written to, or None.
    """

    def __init__(self, fs: FileSystem, folder: str, file_bytes: int, limit: int) -> None:
        self._fs = fs
        self._folder = folder
        self.file_bytes = file_bytes
        self.limit = limit
        self.files: list[RingFile] = []
        self.current: RingFile | None = None

    def open_files(self) -> None:
        """Open the files of the folder that can be used, or create the first one; blocks.

        Files of another size are removed: a crash has interrupted their creation, or the setting
        was changed.
        """
        self.close()  # of an attempt that failed
        for name, size in sorted(self._fs.files(self._folder).items()):
            path = f"{self._folder}/{name}"
            if size == self.file_bytes and len(self.files) < self.limit:
                self.files.append(RingFile(path, self._fs.open(path)))
            else:
                self._fs.remove(path)
        if not self.files:
            self.files.append(self.create())

    def create(self) -> RingFile:
        """Create a file and sync it; blocks. Can run in any thread."""
        taken = self._fs.files(self._folder)
        number = next(n for n in range(1, len(taken) + 2) if f"{n:08}.journal" not in taken)
        path = f"{self._folder}/{number:08}.journal"
        raw = self._fs.open(path, create=True)
        try:
            for position in range(0, self.file_bytes, len(_ZEROS)):
                part = _ZEROS[: min(len(_ZEROS), self.file_bytes - position)]
                write_fully(raw, (part,), position)
            raw.datasync()
            self._fs.sync_dir(self._folder)
        except BaseException:
            raw.close()
            self._fs.remove(path)
            raise
        return RingFile(path, raw)

    def space_for(self, size: int, head: int, written_head: int) -> RingFile | None:
        """Return the file for the next entry, or None if all of them are full.

        Args:
            head: entries below this sequence are not needed.
            written_head: the same, as the last entry says it. A crash in the next write leaves
                that one as the newest, so a file whose entries it does not need is preferred.
        """
        current = self.current
        if current is not None and self.file_bytes - current.used >= size:
            return current
        if size > self.file_bytes:
            return None
        free = [file for file in self.files if file.last < head]
        if not free:
            return None
        file = min(free, key=lambda each: (each is current, each.last >= written_head, each.last))
        file.used, file.first, file.last = 0, -1, -1
        self.current = file
        return file

    def needs_next(self, size: int) -> bool:
        """Return whether an entry of ``size`` bytes does not fit into the current file."""
        return self.current is None or self.file_bytes - self.current.used < size

    def used_bytes(self, head: int) -> int:
        """Return the bytes of the files that are needed."""
        return sum(file.used for file in self.files if file.last >= head)

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.raw.close()
        self.files.clear()
        self.current = None
