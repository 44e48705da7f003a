"""Uncompress what MariaDB has compressed: events (``log_bin_compress``) and values of columns.

Must not know events. Source: MariaDB source, "sql/log_event.cc", ``binlog_buf_uncompress``, and
"sql/field.cc", ``Field_longstr::uncompress``.
"""

from __future__ import annotations

import zlib

from tidemill.connect.cdc.binlog.decoding.reader import BinlogError, Reader

MAX_UNCOMPRESSED_BYTES = 1 << 30
"""The largest ``max_allowed_packet`` of a server, in bytes: no event can be larger."""


def uncompress(data: bytes) -> bytes:
    """Return the uncompressed form of what MariaDB's ``log_bin_compress`` has compressed."""
    reader = Reader(data)
    head = reader.uint(1)
    algorithm, size_bytes = (head & 0x70) >> 4, head & 0x07
    if algorithm != 0 or not 1 <= size_bytes <= 4:
        raise BinlogError(f"a compressed binary log event has the unknown header {head:#x}")
    size = int.from_bytes(reader.raw(size_bytes), "big")
    return _inflate(reader.rest(), size, zlib.MAX_WBITS)


def uncompress_value(data: bytes) -> bytes:
    """Return the content of a value in a column with the attribute COMPRESSED."""
    if not data or data[0] >> 4 == 0:
        return data[1:]
    method, is_raw, size_bytes = data[0] >> 4, bool(data[0] & 8), data[0] & 7
    if method != 8 or not 1 <= size_bytes <= 4:
        raise BinlogError(f"a compressed value has the unknown header {data[0]:#x}")
    reader = Reader(data, 1)
    size = int.from_bytes(reader.raw(size_bytes), "big")
    return _inflate(reader.rest(), size, -zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS)


def _inflate(data: bytes, size: int, window_bits: int) -> bytes:
    if size > MAX_UNCOMPRESSED_BYTES:
        raise BinlogError(f"compressed data says that it holds {size} bytes")
    try:
        result = zlib.decompressobj(window_bits).decompress(data, size + 1)
    except zlib.error as error:
        raise BinlogError(f"compressed data is damaged: {error}") from error
    if len(result) != size:
        raise BinlogError(f"compressed data holds {len(result)} bytes instead of {size}")
    return result
