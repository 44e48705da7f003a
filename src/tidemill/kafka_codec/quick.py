"""The short way for ordinary Produce requests: decoded in one call, answered from a template.

``hot`` is the codec of all requests. The functions here return None for whatever they don't take,
and equal results for the rest. Sans-IO; knows only the wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

from tidemill.kafka_codec.hot import (
    ProducedPartition,
    ProduceRequest,
    ProduceTopic,
    encode_produce,
)
from tidemill.kafka_codec.primitives import compact_string, legacy_string, uvarint
from tidemill.native import extension

BatchFacts: TypeAlias = tuple[int, int, int, int, int]
"""Number of records, latest and earliest timestamp, records without a key, and producer id."""
RunRequest: TypeAlias = tuple[bytes, int, int, int, BatchFacts]
"""Version and bytes that name the partition; correlation id; start and end of the batch; and what
is known about it."""
CheckedTopic: TypeAlias = tuple[str, bytes | None, list[tuple[int, int, int, BatchFacts]]]
"""Name, id, and partitions: index, start and end of the batch, and what is known about it."""

_OFFSETS = struct.Struct(">qqq")
_OFFSETS_BYTES = _OFFSETS.size
_WITH_LOG_START = 5
_WITH_MESSAGE = 8
_COMPACT = 9
_WITH_TOPIC_ID = 13
_I32 = struct.Struct(">i")
_PARTITION_LAYOUTS: dict[int, tuple[str, tuple[int | bytes, ...]]] = {
    **dict.fromkeys((5, 6, 7), ("ihqqq", ())),
    _WITH_MESSAGE: ("ihqqqih", (0, -1)),
    _COMPACT: ("ihqqq3s", (b"\1\0\0",)),
}
"""The fields of a partition without an error, by version, and those behind the offsets: no record
errors, a null message and no tags."""
_PLACE = b"\x5a" * _OFFSETS_BYTES
"""Stands for the offsets in a template. Everything behind them is shorter, so its last occurrence
is the right one, whatever the name of the topic is."""


def decode_quickly(frame: memoryview, position: int, version: int) -> ProduceRequest | None:
    """Decode a Produce request with at most 64 partitions and without tagged fields.

    Returns:
        What ``decode_produce`` returns; None for another request, also if it is malformed.
    """
    found = extension.decode_produce(frame, position, version)
    if found is None:
        return None
    transactional_id, acks, timeout_ms, topics = found
    return ProduceRequest(
        transactional_id,
        acks,
        timeout_ms,
        [
            ProduceTopic(
                name,
                None if topic_id is None else _uuid(topic_id),
                [
                    (index, frame[start:end] if start >= 0 else None)
                    for index, start, end in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    )


def read_run(frames: list[memoryview]) -> tuple[int, int, list[RunRequest]]:
    """Decode and check the ordinary requests at the front of a list, in one call.

    These are requests of the same version and with the same acks, 1 or all. Each has one batch that
    ``check_quickly`` takes, and no transaction. A run has at most 224 KiB.

    Returns:
        The version, acks, and the requests; (0, 0, []) if the first is not like that.
    """
    return extension.read_run(frames)


def read_request(frame: memoryview) -> tuple[int, int, int, list[CheckedTopic]] | None:
    """Decode and check one request, in one call.

    It is like those of a run, but has up to 128 partitions and 1 MiB, with batches of any size.

    Returns:
        The version, acks, the correlation id and the topics; None for any other request.
    """
    return extension.read_request(frame)


@lru_cache(maxsize=1024)
def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def encode_one(
    version: int,
    name: str,
    topic_id: UUID | None,
    partition: int,
    offsets: tuple[int, int, int],
) -> bytes | None:
    """Encode the body of a Produce response for one partition without an error.

    Args:
        offsets: base offset, LogAppendTime in ms or -1, start of the log.

    Returns:
        What ``encode_produce`` returns; None for versions that have other fields.
    """
    if version < _WITH_LOG_START:
        return None
    before, after = produced_template(version, name, topic_id, partition)
    return before + _OFFSETS.pack(*offsets) + after


def encode_all(
    version: int,
    topics: Sequence[tuple[str, bytes | None, Sequence[int]]],
    offsets: Sequence[tuple[int, int, int]],
) -> bytes | None:
    """Encode the body of a Produce response for many partitions without an error.

    Args:
        topics: name, id and partitions.
        offsets: base offset, LogAppendTime in ms or -1, and start of the log for each partition.

    Returns:
        What ``encode_produce`` returns; None for versions that have other fields.
    """
    if version < _WITH_LOG_START:
        return None
    compact = version >= _COMPACT
    layout, tail = _PARTITION_LAYOUTS[_COMPACT if compact else min(version, _WITH_MESSAGE)]
    out = bytearray(uvarint(len(topics) + 1) if compact else _I32.pack(len(topics)))
    first = 0
    for name, topic_id, partitions in topics:
        count = len(partitions)
        if version >= _WITH_TOPIC_ID:
            out += topic_id or bytes(16)
        else:
            out += compact_string(name) if compact else legacy_string(name)
        out += uvarint(count + 1) if compact else _I32.pack(count)
        fields: list[int | bytes] = []
        for partition, found in zip(partitions, offsets[first : first + count], strict=True):
            fields += (partition, 0, *found, *tail)
        out += _repeated(layout, count).pack(*fields)
        out += b"\0" if compact else b""
        first += count
    out += b"\0\0\0\0\0" if compact else b"\0\0\0\0"  # the throttle time, and no tags
    return bytes(out)


@lru_cache(maxsize=512)
def _repeated(layout: str, count: int) -> struct.Struct:
    return struct.Struct(">" + layout * count)


@lru_cache(maxsize=4096)
def produced_template(
    version: int, name: str, topic_id: UUID | None, partition: int
) -> tuple[bytes, bytes]:
    """Return the bytes before and behind the offsets in what ``encode_one`` returns."""
    offsets = _OFFSETS.unpack(_PLACE)
    produced = ProducedPartition(partition, 0, *offsets)
    body = encode_produce(version, [(name, topic_id, [produced])])
    at = body.rindex(_PLACE)
    return body[:at], body[at + _OFFSETS_BYTES :]
