"""Compressed transactions of MySQL (``binlog_transaction_compression``): events inside of an event.

Large ones are decompressed into a temporary file, so that memory stays bounded. They have no
checksums, and no places of their own in the file: each gets one between the begin and the end of
the whole, in their order. Must not know what they hold.

Source: MySQL source documentation, "Transaction_payload_event"; RFC 8878 (Zstandard).
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import cramjam

from tidemill.connect.cdc.binlog.decoding.reader import BinlogError, Reader

PART_BYTES = 1 << 19
"""Events are returned when so many bytes of them are there."""

IN_MEMORY_BYTES = 16 << 20
"""More than these are decompressed into a temporary file."""

_END, _SIZE, _COMPRESSION, _UNCOMPRESSED = range(4)
_ZSTD, _NONE = 0, 255

_HEADER = struct.Struct("<IBIIIH")
_MOST_EVENT = 1 << 30


@dataclass(frozen=True, slots=True)
class Payload:
    """The compressed events.

    Attributes:
        compression: 0 for Zstandard, 255 for none.
        size: their bytes when they are decompressed.
        data: the compressed bytes.
    """

    compression: int
    size: int
    data: bytes


def parse_payload(body: bytes) -> Payload:
    """Parse the body of the event."""
    reader = Reader(body)
    compression, size, stored = _ZSTD, 0, -1
    while (kind := reader.length()) != _END:
        field = Reader(reader.raw(reader.length()))
        if kind == _SIZE:
            stored = field.length()
        elif kind == _COMPRESSION:
            compression = field.length()
        elif kind == _UNCOMPRESSED:
            size = field.length()
    data = reader.rest()
    if stored != len(data):
        raise BinlogError(f"a compressed transaction has {len(data)} bytes, it says {stored}")
    if compression not in (_ZSTD, _NONE):
        raise BinlogError(f"a transaction has the unknown compression {compression}")
    return Payload(compression, size if compression == _ZSTD else stored, data)


def unpack_payload(payload: Payload, begin: int, end: int) -> Generator[list[bytes], None, None]:
    """Yield the events in parts, as packets: a zero byte and an event each.

    Args:
        payload: the compressed events.
        begin: the place in the file where the whole begins.
        end: the place behind it.
    """
    buffer = bytearray()
    packets: list[bytes] = []
    done = held = 0
    for part in _decompressed(payload):
        buffer += part
        at = 0
        while (size := _event_size(buffer, at)) is not None:
            begin = min(begin + 1, max(end - 1, 0))
            done += size
            place = end if done == payload.size else begin
            packets.append(_packet(buffer[at : at + size], place))
            at += size
            held += size
            if held >= PART_BYTES:
                yield packets
                packets, held = [], 0
        del buffer[:at]
    if buffer or done != payload.size:
        raise BinlogError(
            f"a compressed transaction holds {done + len(buffer)} bytes of events, its header says "
            f"{payload.size}"
        )
    if packets:
        yield packets


def _decompressed(payload: Payload) -> Iterator[bytes]:
    if payload.compression == _NONE:
        yield payload.data
        return
    try:
        if payload.size <= IN_MEMORY_BYTES:
            whole = bytearray(payload.size)
            cramjam.zstd.decompress_into(payload.data, whole)
            yield bytes(whole)
            return
        with tempfile.TemporaryDirectory(prefix="tidemill-binlog-") as folder:
            path = Path(folder, "events")
            cramjam.zstd.decompress_into(payload.data, cramjam.File(str(path)))
            with path.open("rb") as file:
                while part := file.read(PART_BYTES):
                    yield part
    except cramjam.DecompressionError as error:
        raise BinlogError(f"a compressed transaction is damaged: {error}") from error


def _event_size(buffer: bytearray, at: int) -> int | None:
    """Return the size of the event at a place; None if its end is not there yet."""
    if len(buffer) - at < _HEADER.size:
        return None
    size = int.from_bytes(buffer[at + 9 : at + 13], "little")
    if not _HEADER.size <= size <= _MOST_EVENT:
        raise BinlogError(f"an event of a compressed transaction says that it has {size} bytes")
    return size if len(buffer) - at >= size else None


def _packet(event: bytearray, place: int) -> bytes:
    event[13:17] = (place & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\0" + event
