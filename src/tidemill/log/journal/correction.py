"""Correct an entry of the journal in which one bit has changed.

The last entry of a journal can be an unfinished write, so its damage alone does not show that it
was promised. But an unfinished write is not all there but for one bit. The CRC finds that bit: it
has a Hamming distance of four for all lengths of an entry, so the difference of both CRCs belongs
to one bit only (Philip Koopman, "32-Bit Cyclic Redundancy Codes for Internet Applications", 2002).
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.log.format.batch import check_batch, iter_headers
from tidemill.log.format.crc import crc32c
from tidemill.log.journal.entry import (
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    Entry,
    decode_entry,
    read_place,
)

LARGEST = 1 << 20
"""Bytes of the largest entry that is corrected. The search takes a third of a second for it."""
_POLYNOMIAL = 0x82F63B78
_LENGTH = slice(40, 44)


def corrected_entry(data: memoryview, position: int, journal: bytes) -> Entry | None:
    """Return the entry at a position with one bit corrected; None if that does not make it valid.

    Args:
        data: a file of the journal.
        journal: the id of the journal.
    """
    if len(data) - position < HEADER_BYTES:
        return None
    header = bytearray(data[position : position + HEADER_BYTES])
    changed = _bits(header[:4], MAGIC) + _bits(header[8:24], journal)
    if changed > 1:
        return None  # not the beginning of an entry of this journal
    if changed:
        header[:4], header[8:24] = MAGIC, journal
        return _decode(data, position, header, journal)
    for bit in range(32):
        other = bytearray(header)
        length = int.from_bytes(header[_LENGTH], "big") ^ 1 << bit
        other[_LENGTH] = length.to_bytes(4, "big")
        if (found := _decode(data, position, other, journal)) is not None:
            return found
    return _with_one_bit(data, position, header, journal)


def _bits(some: bytes | bytearray, other: bytes) -> int:
    return (int.from_bytes(some, "big") ^ int.from_bytes(other, "big")).bit_count()


def _decode(data: memoryview, position: int, header: bytearray, journal: bytes) -> Entry | None:
    """Return the entry if it is valid with this header."""
    end = position + HEADER_BYTES + int.from_bytes(header[_LENGTH], "big")
    if end > len(data):
        return None
    whole = memoryview(bytes(header) + bytes(data[position + HEADER_BYTES : end]))
    return _valid(whole, journal)


def _valid(whole: memoryview, journal: bytes) -> Entry | None:
    place = read_place(whole, 0, journal)
    entry = None if place is None else decode_entry(whole, 0, place)
    return entry if entry is not None and _has_valid_batches(entry) else None


def _has_valid_batches(entry: Entry) -> bool:
    """Return whether the batches agree with their own CRCs too."""
    try:
        for piece in entry.pieces:
            for data in piece.buffers:
                for at, header in iter_headers(data):
                    check_batch(memoryview(data)[at : at + header.size])
    except TidemillError:
        return False
    return True


def _with_one_bit(
    data: memoryview, position: int, header: bytearray, journal: bytes
) -> Entry | None:
    length = int.from_bytes(header[_LENGTH], "big")
    if length > min(LARGEST, len(data) - position - HEADER_BYTES):
        return None
    whole = bytearray(data[position : position + HEADER_BYTES + length])
    actual = crc32c(memoryview(whole)[CRC_START:])
    difference = actual ^ int.from_bytes(whole[4:CRC_START], "big")
    if difference.bit_count() == 1:
        whole[4:CRC_START] = actual.to_bytes(4, "big")
    elif (found := _changed_bit(difference, len(whole) - CRC_START)) is not None:
        at, bit = found
        whole[CRC_START + at] ^= bit
    else:
        return None
    return _valid(memoryview(whole), journal)


def _changed_bit(difference: int, size: int) -> tuple[int, int] | None:
    """Return byte and bit that explain the difference of the CRCs of ``size`` bytes.

    A changed bit of the last byte gives one of eight differences. From each byte to the one before
    it, the calculation of the CRC is undone by one byte.
    """
    table = [_one_byte(n) for n in range(256)]
    undo = {each >> 24: n for n, each in enumerate(table)}
    ends = {table[1 << n]: 1 << n for n in range(8)}
    for at in range(size - 1, -1, -1):
        if difference in ends:
            return at, ends[difference]
        n = undo[difference >> 24]
        difference = (difference ^ table[n]) << 8 & 0xFFFFFFFF | n
    return None


def _one_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc
