"""The ShareFetch response, v1 and v2, encoded by hand: its records are not copied.

Knows bytes only. A parity test compares it with kio.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tidemill.kafka_codec.primitives import compact_string, uvarint
from tidemill.parts import Part

_HEAD = struct.Struct(">ih")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqhB")
_NO_LEADER = struct.pack(">iiB", -1, -1, 0)
_COPY_BELOW = 4096
"""Records shorter than this are copied. To send them as a buffer of their own costs more."""
_PARTITIONS_PER_STEP = 32
_RUNS_PER_STEP = 256


@dataclass(slots=True)
class SharedPartition:
    """One partition of a ShareFetch response.

    Attributes:
        acquired: (first offset, last offset, delivery count) of what the member holds now.
        records: stored batches, in pieces.
    """

    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    acquired: Sequence[tuple[int, int, int]] = ()
    records: Sequence[Part] = field(default=())


SharedTopics: TypeAlias = Sequence[tuple[UUID, Sequence[SharedPartition]]]


def encode_share_fetch(
    topics: SharedTopics,
    *,
    error_code: int = 0,
    error_message: str | None = None,
    lock_ms: int = 0,
) -> Generator[None, None, list[Part]]:
    """Encode the body of a ShareFetch response. Yield after every few elements."""
    out = bytearray(_HEAD.pack(0, error_code))
    out += _nullable(error_message)
    out += _I32.pack(lock_ms)
    buffers: list[Part] = []
    out += uvarint(len(topics) + 1)
    steps = 0
    for topic_id, partitions in topics:
        out += topic_id.bytes
        out += uvarint(len(partitions) + 1)
        for each in partitions:
            steps += 1
            if not steps % _PARTITIONS_PER_STEP:
                yield
            out += _PARTITION.pack(each.partition, each.error_code)
            out += _nullable(each.error_message)
            out += _I16.pack(each.acknowledge_error_code)
            out += _nullable(each.acknowledge_error_message)
            out += _NO_LEADER
            size = sum(map(len, each.records))
            out += uvarint(size + 1)
            for piece in each.records:
                if isinstance(piece, bytes | bytearray | memoryview) and len(piece) < _COPY_BELOW:
                    out += piece
                else:
                    buffers += (out, piece)
                    out = bytearray()
            out += uvarint(len(each.acquired) + 1)
            for index, (first, last, count) in enumerate(each.acquired):
                if index % _RUNS_PER_STEP == _RUNS_PER_STEP - 1:
                    yield
                out += _ACQUIRED.pack(first, last, count, 0)
            out.append(0)
        out.append(0)
    out += b"\1\0"  # no other nodes, no tags
    buffers.append(out)
    return buffers


def _nullable(text: str | None) -> bytes:
    return b"\0" if text is None else compact_string(text)
