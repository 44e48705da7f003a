"""Makes record batches (message format v2) of bodies: header, compression, checksum.

Must not know: brokers, Arrow. Source: Kafka's documentation, "Message Format".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import cramjam
from fastcrc import crc32

CODECS: Mapping[str, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

_TRANSACTIONAL = 0x10
_START = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
HEADER_SIZE = _START.size + _CHECKED.size
_AFTER_LENGTH = HEADER_SIZE - 12

_crc32c = cast("Callable[..., int]", crc32.iscsi)
"""Takes a buffer, and the CRC of what is before it."""

NO_PRODUCER = (-1, -1)
"""Producer id and epoch of a producer that is not idempotent."""


def _lz4(data: Any) -> bytes:
    # Kafka's Java code reads no blocks that refer to the ones before.
    frame = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    frame.compress(bytes(data))
    return bytes(frame.finish())


_COMPRESS: Mapping[int, Callable[[Any], Any]] = {
    1: cramjam.gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: _lz4,
    4: cramjam.zstd.compress,
}


@dataclass(slots=True)
class Batch:
    """A batch that is on its way to a partition.

    Attributes:
        number: Its place among all batches of the producer.
        topic: The topic.
        partition: The partition.
        count: Number of records.
        base_timestamp: Time of the first record in ms since 1970.
        max_timestamp: Greatest time of a record.
        body: The records, compressed by ``codec``.
        codec: Number of the codec.
        made: When it was made, on the monotonic clock in seconds.
        sequence: Sequence number of the first record; -1 without idempotence.
    """

    number: int
    topic: str
    partition: int
    count: int
    base_timestamp: int
    max_timestamp: int
    body: Any
    codec: int
    made: float
    sequence: int = -1

    @property
    def size(self) -> int:
        """Bytes with the header."""
        return HEADER_SIZE + memoryview(self.body).nbytes

    def header(self, producer: tuple[int, int], *, transactional: bool) -> bytes:
        """Return the header."""
        checked = _CHECKED.pack(
            self.codec | (_TRANSACTIONAL if transactional else 0),
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            *producer,
            self.sequence,
            self.count,
        )
        body = memoryview(self.body)
        # CRC-32C is the CRC of iSCSI (RFC 3720, section 12.1).
        checksum = _crc32c(body, _crc32c(checked))
        return _START.pack(0, _AFTER_LENGTH + body.nbytes, -1, 2, checksum) + checked


def compressed(body: Any, codec: int) -> Any:
    """Return the records compressed by a codec."""
    return body if codec == 0 else _COMPRESS[codec](body)
