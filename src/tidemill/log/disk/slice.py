"""A range of stored bytes for a reader, which is loaded later.

Bytes that this process has written are trusted. Older bytes are verified by the batches' CRCs when
they are read for the first time. Knows a segment's file and batches; not what a reader can see.
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.log.disk.log_file import StoredRange
from tidemill.log.disk.segment import Segment
from tidemill.log.disk.walk import misplaced
from tidemill.log.errors import CorruptLogError
from tidemill.log.format.batch import HEADER_SIZE, Buffer, check_batch, peek

LENT_BYTES = 65_536
"""Smallest range that is lent. To load a smaller one costs less than the calls for a file."""


class Slice:
    """A range of stored bytes that is not loaded yet.

    Attributes:
        position, size: the range in the segment's file.
        found: bytes that the reader could have had with its limit, if a batch was cut.
    """

    __slots__ = ("_file", "found", "position", "segment", "size")

    def __init__(
        self, segment: Segment, position: int, size: int, found: int | None = None
    ) -> None:
        self.found = size if found is None else found
        self.segment = segment
        self._file = segment.file
        self.position = position
        self.size = size

    def lend(self) -> StoredRange | None:
        """Return the bytes to be sent from the page cache; None if they must be loaded.

        Raises:
            StorageError: the file can't be opened.
        """
        if self.size < LENT_BYTES or not self.is_verified():
            return None
        return self._file.lend(self.size, self.position)

    def is_cold(self) -> bool:
        """Return whether the bytes could be lent if they were in the page cache."""
        return self.size >= LENT_BYTES and self.is_verified() and self._file.can_lend()

    def warm(self) -> None:
        """Read the bytes into the page cache. Blocks; run it in a thread.

        Raises:
            StorageError: the file can't be read.
        """
        self._file.warm(self.size, self.position)

    def load_nowait(self) -> Buffer | None:
        """Return the bytes if they are in the page cache, else None.

        Raises:
            CorruptLogError, StorageError: see ``load``.
        """
        if not self.size:
            return b""
        data = self._file.pread_nowait(self.size, self.position)
        return None if data is None else self._verified(data)

    def load(self) -> Buffer:
        """Return the bytes. Can block, and can run in any thread.

        Raises:
            CorruptLogError: the bytes are damaged, or the file is shorter than before.
            StorageError: the file can't be read.
        """
        if not self.size:
            return b""
        data = self._file.pread(self.size, self.position)
        if len(data) < self.size:
            raise self.segment.corrupt(
                "the file is shorter than before", self.position + len(data), None
            )
        return self._verified(data)

    def is_verified(self) -> bool:
        """Return whether this process has written or verified these bytes."""
        segment, position = self.segment, self.position
        start, end = segment.verified
        if start <= position < end:
            return position + self.size <= end or end >= segment.trusted_from
        return position >= segment.trusted_from

    def _verified(self, data: Buffer) -> Buffer:
        """Return the bytes before the first damaged batch; raise if that is the first batch."""
        if not self.is_verified():
            try:
                self._verify(data)
            except CorruptLogError as error:
                if error.position == self.position:
                    raise
                return memoryview(data)[: error.position - self.position]
        return data

    def _verify(self, data: Buffer) -> None:
        """Verify the complete batches in ``data``.

        ``walk`` has found the first batch, and has compared its offset with those before it.
        """
        segment, position = self.segment, self.position
        at, end = 0, len(data)
        before, expected, dense = 0, -1, segment.dense
        limit = segment.trusted_from - position
        while at < limit and end - at >= HEADER_SIZE:
            size = peek(data, at)[1]
            if size > end - at and position + at + size <= segment.size:
                break  # the reader's limit has cut the batch
            try:
                header = check_batch(data, at)
            except TidemillError as error:
                raise segment.corrupt(str(error), position + at, peek(data, at)[0]) from error
            base, last = header.base_offset, header.last_offset
            if base < expected or last >= segment.end_offset or (dense and base > expected >= 0):
                # With gaps between batches, either of the two can have the wrong offset.
                wrong = at if dense or base >= expected else before
                raise misplaced(segment, position + wrong, base, last, expected)
            before, expected = at, last + 1
            at += header.size
        if at and not dense:
            self._check_next(memoryview(data)[at:], position + at, expected, position + before)
        start, stop = segment.verified
        if start <= position <= stop:
            segment.verified = (start, max(stop, position + at))
        elif at:
            segment.verified = (position, position + at)

    def _check_next(self, rest: memoryview, position: int, expected: int, before: int) -> None:
        """Check that the batch behind the last one does not begin below its end.

        Args:
            rest: the bytes behind the last batch, perhaps none.
            position: where they begin.
            expected: the offset after the last batch.
            before: the position of the last batch, which is perhaps the wrong one.
        """
        segment = self.segment
        if position < segment.size:
            head = rest[:8] if len(rest) >= 8 else self._file.pread(8, position)
            following = int.from_bytes(head, "big", signed=True)
        else:
            following = segment.end_offset
        if following < expected or (position >= segment.size and following != expected):
            raise segment.corrupt(
                f"its batch ends at offset {expected - 1}, but {following} follows", before, None
            )
