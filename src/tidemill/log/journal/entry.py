"""The format of the journal's entries.

Encodes and decodes; does no I/O.

An entry holds what one sync has made durable for many partitions. It begins on a boundary of
``BLOCK`` bytes and is filled up with zeros to the next one, so that a torn write of one entry can't
hurt another, and no block is read from the disk to be overwritten in part::

    magic          4 bytes, "TMJ1"
    crc32c         u32 of everything behind it, up to the end of the pieces
    journal        16 bytes, the id of the journal
    sequence       u64, one more than the sequence of the entry before
    head           u64, the oldest entry that was still needed when this one was written
    length         u32, bytes of all pieces
    count          u32, number of pieces
    pieces         one after the other

    topic id       16 bytes
    partition      u32
    segment        u64, base offset of the segment
    position       u64, byte position in the segment's file
    first offset   u64
    end offset     u64, the offset behind the last record
    length         u32; 0: everything below the end offset is in synced segments
    bytes          the record batches, as they are in the segment

All numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.log.format.crc import crc32c
from tidemill.native import extension

BLOCK = 4096
MAGIC = b"TMJ1"
CRC_START = 8
"""The CRC covers everything from this position of an entry on."""
_HEADER = struct.Struct(">4sI16sQQII")
_PIECE = struct.Struct(">16sIQQQQI")
HEADER_BYTES = _HEADER.size
PIECE_BYTES = _PIECE.size
_LARGEST = (1 << 63) - 1
_ZEROS = bytes(BLOCK)

Buffer = bytes | bytearray | memoryview


class Piece(NamedTuple):
    """Record batches of one partition, or the note that its segments are synced up to an offset.

    Attributes:
        topic_id: the id of the topic, 16 bytes.
        partition: the number of the partition.
        segment: base offset of the segment.
        position: byte position of the batches in the segment's file.
        first_offset: offset of the first record.
        end_offset: the offset behind the last record.
        size: bytes of the batches; 0 for a note.
        buffers: the batches.
    """

    topic_id: bytes
    partition: int
    segment: int
    position: int
    first_offset: int
    end_offset: int
    size: int
    buffers: Sequence[Buffer] = ()


class Entry(NamedTuple):
    """A complete entry that was read.

    Attributes:
        size: its bytes with the zeros behind it.
    """

    sequence: int
    head: int
    pieces: list[Piece]
    size: int


class Place(NamedTuple):
    """The header of an entry whose content is perhaps damaged."""

    sequence: int
    head: int
    length: int
    pieces: int


def padded(size: int) -> int:
    """Return the bytes that an entry of ``size`` bytes takes."""
    return -(-size // BLOCK) * BLOCK


def entry_bytes(pieces: Sequence[Piece]) -> int:
    """Return the size of an entry with these pieces, with the zeros behind it."""
    return padded(HEADER_BYTES + PIECE_BYTES * len(pieces) + sum([piece.size for piece in pieces]))


def encode_entry(
    journal: bytes, sequence: int, head: int, pieces: Sequence[Piece]
) -> tuple[bytearray, list[Buffer]]:
    """Return the header, whose CRC is still to be set, and the buffers behind it."""
    buffers: list[Buffer] = extension.encode_pieces(list(pieces))
    length = sum(map(len, buffers))
    header = bytearray(_HEADER.pack(MAGIC, 0, journal, sequence, head, length, len(pieces)))
    return header, buffers


def padding(size: int) -> bytes:
    """Return the zeros behind an entry of ``size`` bytes."""
    return _ZEROS[: padded(size) - size]


def read_place(data: memoryview, position: int, journal: bytes) -> Place | None:
    """Return the header of the entry at a position; None if no entry of this journal begins there.

    The lengths in it are within ``data``, but are not proven by the CRC.
    """
    if len(data) - position < HEADER_BYTES:
        return None
    magic, _, written_by, sequence, head, length, count = _HEADER.unpack_from(data, position)
    if magic != MAGIC or written_by != journal or not 0 < head <= sequence <= _LARGEST:
        return None
    if length > len(data) - position - HEADER_BYTES or count * PIECE_BYTES > length:
        return None
    return Place(sequence, head, length, count)


def decode_entry(data: memoryview, position: int, place: Place) -> Entry | None:
    """Return the entry at a position; None if it is damaged, or was not written completely."""
    end = position + HEADER_BYTES + place.length
    (crc,) = struct.unpack_from(">I", data, position + 4)
    if crc32c(data[position + CRC_START : end]) != crc:
        return None
    pieces = list(_pieces(data[position + HEADER_BYTES : end], place.pieces))
    if len(pieces) != place.pieces:
        return None
    return Entry(place.sequence, place.head, pieces, padded(end - position))


def _pieces(data: memoryview, count: int) -> Iterator[Piece]:
    """Yield the pieces; end early at one that can't be."""
    position = 0
    for _ in range(count):
        if len(data) - position < PIECE_BYTES:
            return
        topic_id, partition, *numbers, size = _PIECE.unpack_from(data, position)
        position += PIECE_BYTES
        segment, at, first, end = numbers
        if size > len(data) - position or max(at, end) > _LARGEST:
            return
        if size and not segment <= first < end:
            return
        yield Piece(
            topic_id, partition, segment, at, first, end, size, (data[position : position + size],)
        )
        position += size
