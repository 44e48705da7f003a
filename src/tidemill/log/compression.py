"""The five codecs of record batches: none, gzip, snappy, lz4, zstd.

Turns the records part of a batch into compressed bytes and back, never into more bytes than the
caller allows. Knows nothing of batches, records or files.

Sources: Kafka's protocol guide ("Compression"), KIP-110 (zstd), KIP-390 (levels), the LZ4 frame
format, the snappy format and the block framing of the ``snappy-java`` library.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

import cramjam

from tidemill.errors import InvalidRecordError, UnsupportedCompressionError

Buffer = bytes | bytearray | memoryview


class Codec(enum.IntEnum):
    """The codec numbers of a batch's attributes (bits 0 to 2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES: dict[str, Codec] = {
    "uncompressed": Codec.NONE,
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Codecs by the names that producers and ``compression.type`` use."""

DEFAULT_LIMIT = 128 * 1024 * 1024
"""Most bytes that one batch may decompress to, where the caller does not say otherwise."""

DEFAULT_LEVELS: dict[Codec, int] = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's defaults; ``compression.gzip.level`` -1 means gzip's own default, 6."""

_FIRST_OUTPUT = 16 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_MAX_RATIO = 22
"""A snappy copy of 64 bytes takes 3: no input can honestly promise more than this."""
_LENGTH = struct.Struct(">i")


def codec_of(number: int) -> Codec:
    """The codec of a number in a batch's attributes.

    Raises:
        UnsupportedCompressionError: there is no such codec.
    """
    try:
        return Codec(number)
    except ValueError:
        raise UnsupportedCompressionError(f"compression codec {number} is unknown") from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data`` as Kafka's clients do, so that each of them can read it.

    Args:
        codec: a codec number.
        data: what to compress.
        level: the codec's level; None is Kafka's default. Snappy has none.

    Raises:
        UnsupportedCompressionError: the codec is unknown.
    """
    chosen = codec_of(codec)
    if chosen is Codec.NONE:
        return bytes(data)
    if level is None:
        level = DEFAULT_LEVELS.get(chosen, 0)
    if chosen is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level == -1 else level))
    if chosen is Codec.SNAPPY:
        return _compress_xerial(data)
    if chosen is Codec.LZ4:
        # Java's reader refuses frames with linked blocks, which are the library's default.
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: int, data: Buffer, limit: int = DEFAULT_LIMIT) -> bytes:
    """Decompress ``data``, allocating no more than about ``limit`` bytes.

    Args:
        codec: a codec number.
        data: exactly the compressed bytes.
        limit: most bytes of output.

    Raises:
        UnsupportedCompressionError: the codec is unknown.
        InvalidRecordError: the bytes are not whole, not of this codec, or the output would be
            larger than ``limit``. Not a torn batch (the CRC proves that): sending it again
            would not help.
    """
    chosen = codec_of(codec)
    if chosen is Codec.NONE:
        if len(data) > limit:
            raise _too_large(chosen, limit)
        return bytes(data)
    if chosen is Codec.SNAPPY:
        return _decompress_snappy(data, limit)
    return _decompress_into(chosen, _INTO[chosen], data, limit)


_INTO: dict[Codec, Callable[[Buffer, bytearray], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_into(
    codec: Codec, into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int
) -> bytes:
    # The formats need not say how large the output is, and what they say can be a lie: so the
    # output is a buffer of our choice, made larger until the data fits or the limit is reached.
    size = min(limit, max(_FIRST_OUTPUT, 4 * len(data)))
    while True:
        out = bytearray(size)
        try:
            written = into(data, out)
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                raise InvalidRecordError(f"{codec.name.lower()} data is damaged: {error}") from None
            if size >= limit:
                raise _too_large(codec, limit) from None
            size = min(limit, 4 * size)
            continue
        return bytes(memoryview(out)[:written])


# --- snappy: the framing of snappy-java ("xerial"), and raw blocks -------------------------------


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += _LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit, limit)
    out = bytearray()
    position = 0
    while position < len(view):
        if bytes(view[position : position + 8]) == _XERIAL_MAGIC:  # streams may be joined
            position += len(_XERIAL_HEADER)
            continue
        if len(view) - position < 4:
            raise InvalidRecordError("snappy data is damaged: cut inside a block's length")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if not 0 < length <= len(view) - position:
            raise InvalidRecordError(
                f"snappy data is damaged: a block of {length} bytes where "
                f"{len(view) - position} are left"
            )
        out += _decompress_snappy_block(view[position : position + length], limit - len(out), limit)
        position += length
    return bytes(out)


def _decompress_snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_MAX_RATIO * len(block) + 64:
            raise InvalidRecordError(
                f"snappy data is damaged: {len(block)} bytes can't hold the {size} they promise"
            )
        if size > room:
            raise _too_large(Codec.SNAPPY, limit)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise InvalidRecordError(f"snappy data is damaged: {error}") from None


def _too_large(codec: Codec, limit: int) -> InvalidRecordError:
    return InvalidRecordError(
        f"{codec.name.lower()} data decompresses to more than the limit of {limit} bytes",
        hint="Send smaller batches.",
    )
