"""Read stored batches in order and verify each of them, for recovery and to rebuild indexes.

Knows batches and one file; ``recovery`` decides how to treat damage.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.errors import TidemillError
from tidemill.log.disk.index import MAX_RELATIVE_OFFSET
from tidemill.log.disk.log_file import LogFile
from tidemill.log.format.batch import HEADER_SIZE, BatchHeader, check_batch, peek

CHUNK = 1 << 20
MAX_BATCH = 0x7FFFFFFF

_EPOCH_AND_MAGIC = b"\x02"


class BatchScanner:
    """Iterates over the batches of a file from ``position`` to ``end``.

    Attributes:
        position: end of the last valid batch.
        next_offset: smallest base offset that the next batch can have.
        damage: the reason why the iteration ended before ``end``, or None.
        misplaced: whether the batch there is undamaged, but has a base offset that it can't have.
            An unfinished write does not look like that.
    """

    def __init__(
        self,
        file: LogFile,
        position: int,
        end: int,
        next_offset: int,
        *,
        limit: int | None = None,
        dense: bool = False,
    ) -> None:
        """
        Args:
            next_offset: smallest base offset of the first batch. If ``position`` is 0 and the
                batches are dense, the first batch must begin there.
            limit: all offsets are below it. By default this is the highest offset that a segment
                with the base offset ``next_offset`` can have.
            dense: each batch begins where the one before it ends.
        """
        self._file = file
        self._end = end
        self._limit = next_offset + MAX_RELATIVE_OFFSET + 1 if limit is None else limit
        self._dense = dense
        self._follows = dense and position == 0
        self.position = position
        self.next_offset = next_offset
        self.damage: str | None = None
        self.misplaced = False

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each valid batch."""
        while self.position < self._end and self.damage is None:
            need = HEADER_SIZE
            chunk = self._file.pread(min(CHUNK, self._end - self.position), self.position)
            if len(chunk) >= HEADER_SIZE:
                need = peek(chunk)[1]
                if len(chunk) < need <= self._end - self.position:
                    chunk = self._file.pread(need, self.position)
            if len(chunk) < need:
                self.damage = (
                    f"the batch has {need} bytes, but {len(chunk)} are left"
                    if self._end - self.position <= need
                    else f"the file ends at byte {self.position + len(chunk)}"
                )
                return
            yield from self._chunk(chunk)

    def _chunk(self, chunk: bytes) -> Iterator[tuple[int, BatchHeader]]:
        start, at = self.position, 0
        while len(chunk) - at >= HEADER_SIZE:
            size = peek(chunk, at)[1]
            if at and size > len(chunk) - at:
                return  # the batch continues behind the chunk: read again from here
            try:
                header = check_batch(chunk, at)
            except TidemillError as error:
                self.damage = str(error)
                return
            if self._is_misplaced(header):
                return
            at += header.size
            self._follows = self._dense
            self.position = start + at
            self.next_offset = header.last_offset + 1
            yield start + at - header.size, header

    def _is_misplaced(self, header: BatchHeader) -> bool:
        # The CRC does not cover the base offset.
        base = header.base_offset
        if base < self.next_offset:
            self.damage = f"base offset {base} is below {self.next_offset}"
        elif self._follows and base != self.next_offset:
            self.damage = f"base offset {base} does not follow {self.next_offset - 1}"
        elif header.last_offset >= self._limit:
            self.damage = f"offsets {base} to {header.last_offset} are not below {self._limit}"
        else:
            return False
        # A write that was torn between its first bytes and the rest has left zeros.
        self.misplaced = base != 0
        return True


def find_batch(
    file: LogFile, position: int, end: int, min_offset: int
) -> tuple[int, BatchHeader] | None:
    """Return position and header of the first valid batch at or behind ``position``, or None.

    Args:
        min_offset: smallest base offset of the batch. This excludes old data and random bytes that
            look like a batch.
    """
    overlap = HEADER_SIZE - 1
    start = position
    while end - start >= HEADER_SIZE:
        chunk = file.pread(min(CHUNK + overlap, end - start), start)
        at = chunk.find(_EPOCH_AND_MAGIC, 16)
        while 0 <= at <= len(chunk) - (HEADER_SIZE - 16):
            base_offset, size = peek(chunk, at - 16)
            where = start + at - 16
            if (
                min_offset <= base_offset <= min_offset + MAX_BATCH
                and HEADER_SIZE <= size <= end - where
            ):
                try:
                    return where, check_batch(file.pread(size, where))
                except TidemillError:
                    pass
            at = chunk.find(_EPOCH_AND_MAGIC, at + 1)
        if len(chunk) <= overlap:
            return None
        start += len(chunk) - overlap
    return None
