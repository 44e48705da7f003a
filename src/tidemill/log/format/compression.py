"""Compress and decompress with the codecs of record batches: none, gzip, snappy, lz4, zstd.

Decompression never returns more bytes than the caller allows, and takes no more memory than it
returns. Large results are in memory of their own, which is given back to the system when the result
is dropped, and which the kernel clears while the codec runs (without Python's lock). Knows no
batches, records or files.

Sources: Kafka's protocol guide ("Compression"), KIP-110 (zstd), KIP-390 (levels), the LZ4 frame
format, the snappy format and the block framing of the ``snappy-java`` library.
"""

from __future__ import annotations

import enum
import mmap
import struct
import zlib
from collections.abc import Callable

import cramjam

from tidemill.log.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    UnsupportedCompressionError,
)

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
"""Codecs by the names in producers and in ``compression.type``."""

DEFAULT_LIMIT = 128 * 1024 * 1024
"""Default for the most bytes that a batch can have after decompression."""

DEFAULT_LEVELS: dict[Codec, int] = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}
"""Kafka's default levels. ``compression.gzip.level`` -1 is gzip's own default, 6."""

_FIRST_OUTPUT = 16 * 1024
_LARGE_OUTPUT = 1 << 20
"""Results above this size get memory of their own. Clearing a ``bytearray`` of 64 MiB takes 30 to
250 ms, and no other thread can run meanwhile."""
_GZIP_BEGIN = 128 * 1024
"""Bytes in which the content of a gzip member must begin. Before it are names and extra fields."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_MAX_RATIO = 22
"""Largest possible ratio: a snappy copy of 64 bytes takes 3 bytes."""
_LENGTH = struct.Struct(">i")


def codec_of(number: int) -> Codec:
    """Return the codec with a number from a batch's attributes."""
    try:
        return Codec(number)
    except ValueError:
        raise UnsupportedCompressionError(f"unknown compression codec {number}") from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress ``data`` as Kafka's clients do, so that all of them can read it.

    Args:
        level: the codec's level; None for Kafka's default. Snappy has no levels.
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
        # Java clients can't read frames with linked blocks, which are the library's default.
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: int, data: Buffer, limit: int = DEFAULT_LIMIT) -> bytes | memoryview:
    """Decompress ``data``, with at most ``limit`` bytes of memory.

    Args:
        data: the compressed bytes and nothing else. Without compression, they are returned as they
            are.
        limit: most bytes of the result.

    Raises:
        UnsupportedCompressionError: the codec is unknown.
        DecompressedTooLargeError: the result is larger than ``limit``.
        InvalidRecordError: the bytes are incomplete or of another codec. This is not a
            CorruptBatchError, because the CRC was correct: sending the batch again would not help.
    """
    chosen = codec_of(codec)
    if chosen is Codec.NONE:
        if len(data) > limit:
            raise _too_large(chosen, limit)
        return memoryview(data)
    if chosen is Codec.SNAPPY:
        return _decompress_snappy(data, limit)
    if chosen is Codec.LZ4:
        _check_lz4(data)
    return _decompress_into(chosen, data, limit)


_INTO: dict[Codec, Callable[[Buffer, Buffer], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_into(codec: Codec, data: Buffer, limit: int) -> bytes | memoryview:
    # The data does not reliably say how large the result is. So the first buffer is small, and the
    # last one has the size of the limit: the kernel provides only what is written to.
    size = min(limit, max(_FIRST_OUTPUT, 4 * len(data)))
    while True:
        if size > _LARGE_OUTPUT:
            size = limit
        found = _try_into(codec, data, size)
        if found is not None:
            return found
        if size >= limit:
            raise _too_large(codec, limit)
        size = min(limit, 4 * size)


def _try_into(codec: Codec, data: Buffer, size: int) -> bytes | memoryview | None:
    """Decompress; return None if the result has more than ``size`` bytes."""
    out = memoryview(_buffer(size))
    try:
        written = _INTO[codec](data, out)
    except cramjam.DecompressionError as error:
        # The error must not keep the memory, which it does with the variables of its functions.
        del out
        if "write whole buffer" not in str(error):
            raise InvalidRecordError(f"{codec.name.lower()} data is damaged: {error}") from None
        return None
    return out[:written] if size > _LARGE_OUTPUT else bytes(out[:written])


def check_one_member(data: Buffer, body: Buffer) -> None:
    """Refuse gzip data with several members, and with a header that zlib does not know.

    librdkafka, which uses zlib, reads the first member only. Then its consumers ask for the same
    batch without an end.

    Args:
        body: the data, decompressed.

    Raises:
        InvalidRecordError: the data is such. Or its header is longer than 128 KiB.
    """
    # A member ends with the size of its content. So only empty members can be before this one.
    has_all = int.from_bytes(data[-4:], "little") == len(body)
    if has_all and body:
        begin = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            has_all = bool(begin.decompress(data[:_GZIP_BEGIN], 1))
        except zlib.error as error:
            raise InvalidRecordError(f"gzip data is damaged: {error}") from None
    if not has_all:
        raise InvalidRecordError("gzip data has more than one member, which not all clients read")


def _buffer(size: int) -> bytearray | mmap.mmap:
    return mmap.mmap(-1, size) if size > _LARGE_OUTPUT else bytearray(size)


# --- lz4: the frames that all readers can read ---------------------------------------------------

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_SIZE = struct.Struct("<I")
_LZ4_RAW = 1 << 31
"""Bit of a block's size: the block is not compressed."""


def _check_lz4(data: Buffer) -> None:
    """Refuse what lz4 allows and Kafka's readers can't read.

    These are frames with blocks that depend on each other or on a dictionary (Java's reader raises
    an error), and more than one frame (readers stop after the first).
    """
    view = memoryview(data)
    if len(view) < 7 or view[:4] != _LZ4_MAGIC:
        raise _damaged_lz4("the frame's header is missing")
    flags = view[4]
    if flags >> 6 != 1 or flags & 0x03:
        raise _damaged_lz4(f"the frame's flags {flags:#04x} are not supported")
    if not flags & 0x20:
        raise _damaged_lz4("the frame's blocks depend on each other, but must be independent")
    position = 15 if flags & 0x08 else 7
    checksum = 4 if flags & 0x10 else 0
    most = _most_blocks(view)
    while True:
        if len(view) - position < 4:
            raise _damaged_lz4("the frame is cut")
        most -= 1
        if most < 0:
            raise _damaged_lz4("the frame has too many blocks")
        size = _LZ4_SIZE.unpack_from(view, position)[0] & ~_LZ4_RAW
        position += 4
        if not size:
            break
        position += size + checksum
    position += 4 if flags & 0x04 else 0
    if position != len(view):
        raise _damaged_lz4(f"the frame has {position} of {len(view)} bytes")


def _damaged_lz4(reason: str) -> InvalidRecordError:
    return InvalidRecordError(f"lz4 data is damaged: {reason}")


# --- snappy: the framing of snappy-java ("xerial"), and raw blocks -------------------------------


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += _LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, limit: int) -> bytes | memoryview:
    blocks = _snappy_blocks(memoryview(data))
    sizes = []
    total = 0
    for block in blocks:
        size = _snappy_size(block)
        sizes.append(size)
        total += size
        if total > limit:
            raise _too_large(Codec.SNAPPY, limit)
    out = memoryview(_buffer(total))
    position = 0
    try:
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, out[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise InvalidRecordError(f"snappy data is damaged: {error}") from None
    return out if total > _LARGE_OUTPUT else bytes(out)


def _snappy_blocks(view: memoryview) -> list[memoryview]:
    """Return the blocks of framed data, or the data itself if it is one raw block."""
    if view[:8] != _XERIAL_MAGIC:
        return [view]
    blocks = []
    position = 0
    while position < len(view):
        if view[position : position + 8] == _XERIAL_MAGIC:  # a stream can follow another one
            position += len(_XERIAL_HEADER)
            continue
        if len(view) - position < 4:
            raise InvalidRecordError("snappy data is damaged: cut inside a block's length")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if not 0 < length <= len(view) - position:
            raise InvalidRecordError(
                f"snappy data is damaged: a block has {length} bytes, but "
                f"{len(view) - position} are left"
            )
        blocks.append(view[position : position + length])
        if len(blocks) > _most_blocks(view):
            raise InvalidRecordError("snappy data is damaged: it has too many blocks")
        position += length
    return blocks


def _snappy_size(block: memoryview) -> int:
    """Return the size that a block announces, if a block of its length can have it."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise InvalidRecordError(f"snappy data is damaged: {error}") from None
    if size > _SNAPPY_MAX_RATIO * len(block) + 64:
        raise InvalidRecordError(
            f"snappy data is damaged: {len(block)} bytes can't expand to {size}"
        )
    return size


def _most_blocks(view: memoryview) -> int:
    # Producers fill blocks of 1 KiB or more before they compress them. Each block costs time.
    return 16 + len(view) // 32


def _too_large(codec: Codec, limit: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(
        f"{codec.name.lower()} data decompresses to more than the limit of {limit} bytes",
        hint="Send smaller batches.",
    )
