"""The second place that knows how far the journal reaches: its last entry, and what it promised.

What the journal itself lost, for example with its newest file, can't be seen in the journal. So a
tenth of a second after an entry, a block beside the journal says which entry was the last one, and
up to where the records of each partition were acknowledged whose segments are not synced. It is
written in place, alternately into two slots of a preallocated file: one of them is always whole,
and a sync changes no metadata of the file system. A slot::

    magic          4 bytes, "TMX1"
    crc32c         u32 of everything behind it, up to the end of the promises
    journal        16 bytes, the id of the journal
    epoch          u64, the number of the journal
    number         u64, of this write; the higher one of both slots counts
    sequence       u64, every entry up to it was on disk
    head           u64, the oldest entry that was needed
    is complete    u32, 1 if there was space for all promises
    count          u32, number of promises
    promises       topic id (16 bytes), partition (u32), end offset (u64) of each

All numbers are big-endian. Knows no partitions and no entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.log.disk.files import FileSystem, RawFile, write_fully
from tidemill.log.format.crc import crc32c

EXTENT = "acknowledged-offset-checkpoint"
SLOT_BYTES = 64 << 10
_BLOCK = 4096
_MAGIC = b"TMX1"
_CRC_START = 8
_HEADER = struct.Struct(">4sI16sQQQQII")
_PROMISE = struct.Struct(">16sIQ")
MOST_PROMISES = (SLOT_BYTES - _HEADER.size) // _PROMISE.size


class Promise(NamedTuple):
    """All records of a partition below ``end_offset`` were acknowledged, or can have been."""

    topic_id: bytes
    partition: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The knowledge of a journal besides its files.

    Attributes:
        journal: the id of the journal.
        epoch: the number of the journal.
        sequence: every entry up to this one was on disk.
        head: the oldest entry that was needed.
        promises: the encoded promises of the partitions whose segments were not synced.
        is_complete: whether ``promises`` has all of them.
    """

    journal: bytes
    epoch: int
    sequence: int
    head: int
    promises: bytes = b""
    is_complete: bool = True

    def __iter__(self) -> Iterator[Promise]:
        """Iterate over the promises."""
        return map(Promise._make, _PROMISE.iter_unpack(self.promises))


def encode_extent(extent: Extent, number: int) -> bytes:
    """Return the content of a slot, in whole blocks. Promises that don't fit are left out."""
    promises = extent.promises[: MOST_PROMISES * _PROMISE.size]
    is_complete = extent.is_complete and len(promises) == len(extent.promises)
    count = len(promises) // _PROMISE.size
    numbers = extent.epoch, number, extent.sequence, extent.head, is_complete, count
    data = bytearray(_HEADER.pack(_MAGIC, 0, extent.journal, *numbers) + promises)
    data[4:_CRC_START] = crc32c(memoryview(data)[_CRC_START:]).to_bytes(4, "big")
    return bytes(data) + bytes(-len(data) % _BLOCK)


def decode_extent(data: bytes) -> tuple[int, Extent] | None:
    """Return the number of the write and the content of a slot; None if it is not valid."""
    if len(data) < _HEADER.size:
        return None
    magic, crc, journal, *numbers = _HEADER.unpack_from(data)
    epoch, number, sequence, head, is_complete, count = numbers
    end = _HEADER.size + count * _PROMISE.size
    if magic != _MAGIC or end > len(data) or crc32c(data[_CRC_START:end]) != crc:
        return None
    promises = data[_HEADER.size : end]
    return number, Extent(journal, epoch, sequence, head, promises, is_complete == 1)


def read_extent(fs: FileSystem, data_dir: str) -> Extent | None:
    """Return the newer valid slot of the file; None if there is none."""
    path = f"{data_dir}/{EXTENT}"
    if not fs.exists(path):
        return None
    data = fs.read_bytes(path)
    slots = (data[:SLOT_BYTES], data[SLOT_BYTES : 2 * SLOT_BYTES])
    found = [each for each in map(decode_extent, slots) if each is not None]
    newest = max(found, key=lambda each: (each[1].epoch, each[0]), default=None)
    return None if newest is None else newest[1]


class ExtentFile:
    """The file of a broker that runs. Its methods block.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, fs: FileSystem, data_dir: str) -> None:
        self._fs = fs
        self._data_dir = data_dir
        self._number = 0
        self._raw: RawFile | None = None

    @property
    def path(self) -> str:
        """The path of the file."""
        return f"{self._data_dir}/{EXTENT}"

    def open(self) -> None:
        """Open the file; create and preallocate it if it is not whole."""
        self.close()
        size = self._fs.files(self._data_dir).get(EXTENT)
        self._raw = self._fs.open(self.path, create=True)
        if size != 2 * SLOT_BYTES:
            self._raw.truncate(0)
            self._write(bytes(2 * SLOT_BYTES), 0)
            self._raw.datasync()
            self._fs.sync_dir(self._data_dir)

    def write(self, extent: Extent) -> None:
        """Write an extent in the place of the older one of both. ``sync`` must follow."""
        self._number += 1
        self._write(encode_extent(extent, self._number), self._number % 2 * SLOT_BYTES)

    def _write(self, data: bytes, position: int) -> None:
        if self._raw is not None:
            write_fully(self._raw, (data,), position)

    def sync(self) -> None:
        """Sync the extent that was written."""
        if self._raw is not None:
            self._raw.datasync()

    def close(self) -> None:
        """Close the file."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None
