"""Decompress the records of a batch, with at most as many bytes as the caller allows.

Knows no batches and no records. Sources: Kafka's protocol guide ("Compression"), the framing of the
``snappy-java`` library, the snappy format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import cramjam

Buffer = bytes | bytearray | memoryview

_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_NAMES = {_GZIP: "gzip", _SNAPPY: "snappy", _LZ4: "lz4", _ZSTD: "zstd"}
_INTO: dict[int, Callable[[Buffer, Buffer], int]] = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
_FIRST_OUTPUT = 64 * 1024
_KEPT_OUTPUT = 8 * 1024 * 1024
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16
_LENGTH = struct.Struct(">i")
_SNAPPY_MAX_RATIO = 22
"""Largest possible ratio: a snappy copy of 64 bytes takes 3 bytes."""
_LEAST_BLOCK = 16
"""Bytes of framed data per block, on average at least. Each block costs time."""


class Decompressor:
    """Decompresses one batch after the other into memory that it keeps.

    A result is valid until the next call.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._output = bytearray(0)

    def __call__(self, codec: int, data: Buffer) -> memoryview:
        """Return the decompressed data.

        Args:
            codec: The codec number of the batch's attributes.
            data: The compressed bytes and nothing else.

        Raises:
            ValueError: The data is damaged, larger than the limit, or of an unknown codec.
        """
        try:
            if codec == _SNAPPY:
                return self._snappy(memoryview(data))
            if (into := _INTO.get(codec)) is None:
                raise ValueError(f"unknown compression codec {codec}")
            return self._grow(codec, into, data)
        except cramjam.DecompressionError as error:
            raise ValueError(f"{_NAMES[codec]} data is damaged: {error}") from None

    def _grow(self, codec: int, into: Callable[[Buffer, Buffer], int], data: Buffer) -> memoryview:
        # The data does not reliably say how large the result is, so the memory grows.
        size = min(self._limit, max(_FIRST_OUTPUT, 4 * len(data), len(self._output)))
        while True:
            output = self._buffer(size)
            try:
                return memoryview(output)[: into(data, output)]
            except cramjam.DecompressionError as error:
                if "write whole buffer" not in str(error):
                    raise
            if size >= self._limit:
                raise self._too_large(codec)
            size = min(self._limit, 4 * size)

    def _snappy(self, view: memoryview) -> memoryview:
        blocks = _snappy_blocks(view)
        sizes = [_snappy_size(block) for block in blocks]
        total = sum(sizes)
        if total > self._limit:
            raise self._too_large(_SNAPPY)
        output = memoryview(self._buffer(total))
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, output[position : position + size])
            position += size
        return output[:total]

    def _buffer(self, size: int) -> bytearray:
        if len(self._output) >= size:
            return self._output
        output = bytearray(size)
        if size <= _KEPT_OUTPUT:
            self._output = output
        return output

    def _too_large(self, codec: int) -> ValueError:
        return ValueError(
            f"{_NAMES[codec]} data decompresses to more than the limit of {self._limit} bytes"
        )


def _snappy_blocks(view: memoryview) -> list[memoryview]:
    """Return the blocks of framed data, or the data itself if it is one raw block."""
    if view[:8] != _XERIAL_MAGIC:
        return [view]
    blocks: list[memoryview] = []
    position = 0
    while position < len(view):
        if view[position : position + 8] == _XERIAL_MAGIC:  # a stream can follow another one
            position += _XERIAL_HEADER_SIZE
            continue
        if len(view) - position < 4:
            raise ValueError("snappy data is damaged: cut inside a block's length")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if not 0 < length <= len(view) - position:
            raise ValueError(
                f"snappy data is damaged: a block has {length} bytes, but "
                f"{len(view) - position} are left"
            )
        blocks.append(view[position : position + length])
        if len(blocks) > 16 + len(view) // _LEAST_BLOCK:
            raise ValueError("snappy data is damaged: it has too many blocks")
        position += length
    return blocks


def _snappy_size(block: memoryview) -> int:
    """Return the size that a block announces, if a block of its length can have it."""
    size: int = cramjam.snappy.decompress_raw_len(block)
    if size > _SNAPPY_MAX_RATIO * len(block) + 64:
        raise ValueError(f"snappy data is damaged: {len(block)} bytes can't expand to {size}")
    return size
