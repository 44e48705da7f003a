"""Stored bytes that a reader asked for: read when they are wanted, and proven where they are old.

What this process wrote is trusted; what an earlier one wrote is proven by its CRC, once, when it is
read first. Knows a segment's file and batches, not which of them a reader may have.
"""

from __future__ import annotations

from tidemill.errors import CorruptLogError, TidemillError
from tidemill.log.batch import HEADER_SIZE, Buffer, check_batch, peek
from tidemill.log.segment import Segment


class Slice:
    """Stored bytes that were found and not read yet.

    Attributes:
        segment: where they were found.
        position, size: the place in its file.
    """

    __slots__ = ("_file", "position", "segment", "size")

    def __init__(self, segment: Segment, position: int, size: int) -> None:
        self.segment = segment
        self._file = segment.file
        self.position = position
        self.size = size

    def load_nowait(self) -> Buffer | None:
        """The bytes if that needs no disk, else None.

        Raises:
            CorruptLogError, StorageError: as ``load``.
        """
        if not self.size:
            return b""
        data = self._file.pread_nowait(self.size, self.position)
        return None if data is None else self._proven(data)

    def load(self) -> Buffer:
        """The bytes; may block, and may run in any thread.

        Raises:
            CorruptLogError: they are damaged, or the file has become shorter.
            StorageError: the disk refuses.
        """
        if not self.size:
            return b""
        data = self._file.pread(self.size, self.position)
        if len(data) < self.size:
            raise self.segment.corrupt(
                "the file is shorter than it was", self.position + len(data), None
            )
        return self._proven(data)

    def is_verified(self) -> bool:
        """Whether these bytes were written or proven by this process."""
        segment, position = self.segment, self.position
        start, end = segment.verified
        if start <= position < end:
            return position + self.size <= end or end >= segment.trusted_from
        return position >= segment.trusted_from

    def _proven(self, data: Buffer) -> Buffer:
        """The bytes up to the first damaged batch; the error where that is the first one."""
        if not self.is_verified():
            try:
                self._verify(data)
            except CorruptLogError as error:
                if error.position == self.position:
                    raise
                return memoryview(data)[: error.position - self.position]
        return data

    def _verify(self, data: Buffer) -> None:
        """Prove the whole batches in ``data``."""
        segment, position = self.segment, self.position
        at, end = 0, len(data)
        limit = segment.trusted_from - position
        while at < limit and end - at >= HEADER_SIZE:
            size = peek(data, at)[1]
            if size > end - at and position + at + size <= segment.size:
                break  # cut by the reader's limit
            try:
                header = check_batch(data, at)
            except TidemillError as error:
                raise segment.corrupt(str(error), position + at, peek(data, at)[0]) from error
            at += header.size
        start, stop = segment.verified
        if start <= position <= stop:
            segment.verified = (start, max(stop, position + at))
        elif at:
            segment.verified = (position, position + at)
