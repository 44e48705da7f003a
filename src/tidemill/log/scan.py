"""Reading stored batches one after the other and proving each: for recovery and for lost indexes.

Knows batches and one file; what damage means is decided in ``recovery``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.errors import TidemillError
from tidemill.log.batch import HEADER_SIZE, BatchHeader, check_batch, peek
from tidemill.log.handles import LogFile

CHUNK = 1 << 20
MAX_BATCH = 0x7FFFFFFF

_EPOCH_AND_MAGIC = b"\x02"


class BatchScanner:
    """Walks over the batches of a file from ``position`` to ``end``.

    Attributes:
        position: end of the last good batch.
        next_offset: least base offset that the next batch may have.
        damage: why the walk ended before ``end``, or None.
    """

    def __init__(self, file: LogFile, position: int, end: int, next_offset: int) -> None:
        self._file = file
        self._end = end
        self.position = position
        self.next_offset = next_offset
        self.damage: str | None = None

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each good batch.

        Raises:
            StorageError: the disk refuses.
        """
        while self.position < self._end and self.damage is None:
            need = HEADER_SIZE
            chunk = self._file.pread(min(CHUNK, self._end - self.position), self.position)
            if len(chunk) >= HEADER_SIZE:
                need = peek(chunk)[1]
                if len(chunk) < need <= self._end - self.position:
                    chunk = self._file.pread(need, self.position)
            if len(chunk) < need:
                self.damage = (
                    f"the batch needs {need} bytes and {len(chunk)} are left"
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
                return  # cut by the chunk: read again from here
            try:
                header = check_batch(chunk, at)
            except TidemillError as error:
                self.damage = str(error)
                return
            if header.base_offset < self.next_offset:
                self.damage = f"base offset {header.base_offset} follows {self.next_offset - 1}"
                return
            at += header.size
            self.position = start + at
            self.next_offset = header.last_offset + 1
            yield start + at - header.size, header


def find_batch(
    file: LogFile, position: int, end: int, min_offset: int
) -> tuple[int, BatchHeader] | None:
    """The first place at or behind ``position`` where a whole, valid batch stands.

    Args:
        min_offset: least base offset that it may have; chance and stale bytes are told apart by it.

    Raises:
        StorageError: the disk refuses.
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
