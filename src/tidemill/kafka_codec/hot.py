"""Produce and Fetch written by hand, because they carry the records, which must not be copied.

A Produce request is decoded to positions in the frame, and its response encoded, by native code; a
Fetch response is encoded into a list of buffers. The tests compare them with kio in every version.
Sans-IO; knows only the wire format.

Sources: ProduceRequest.json, ProduceResponse.json and FetchResponse.json of Apache Kafka 4.3.
Versions 0 to 2 of Produce, which 4.0 removed, are those of 3.9: the broker decodes such a request
in order to refuse it in a response of its version.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from tidemill.errors import ProtocolError
from tidemill.kafka_codec.primitives import array_length, legacy_string, topic_key
from tidemill.native import extension
from tidemill.parts import Part

_I32 = struct.Struct(">i")


ProduceTopic: TypeAlias = tuple[str, bytes | None, list[tuple[int, int, int]]]
"""Name (empty since v13), id (None before v13), and partitions: index, start and end of the records
in the frame, which are -1 for null."""


class ProduceRequest(NamedTuple):
    """A Produce request of any version from 0 to 13."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]
    frame: memoryview


def decode_produce(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Decode a Produce request whose body starts at ``position``.

    Raises:
        ProtocolError: the rest of the frame is not exactly one such request.
    """
    try:
        return ProduceRequest(*extension.read_produce(frame, position, version), frame)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


# --- runs of Produce requests --------------------------------------------------------------------

BatchFacts: TypeAlias = tuple[int, int, int, int, int]
"""Number of records, latest and earliest timestamp, records without a key, and producer id."""
RunTopic: TypeAlias = tuple[str, bytes | None, list[tuple[int, int, int, BatchFacts]]]
"""As ``ProduceTopic``, with what is known about the batch of each partition."""
RunRequest: TypeAlias = tuple[int, list[RunTopic]]
"""The correlation id, and the topics."""


def read_run(frames: list[memoryview]) -> tuple[int, int, list[RunRequest]]:
    """Decode and check the ordinary requests at the front of a list, in one call.

    These are requests of the same version and with the same acks, 1 or all. Each has batches that
    can be stored as they are, and no transaction. They have at most 128 batches, 8192 records and
    224 KiB together, but the first one can have 1 MiB.

    Returns:
        The version, acks, and the requests; (0, 0, []) if the first is not like that.
    """
    return extension.read_run(frames)


# --- Produce response ----------------------------------------------------------------------------


class Refusal(NamedTuple):
    """The result of a partition whose batch was refused."""

    error_code: int
    base_offset: int = -1
    log_start_offset: int = -1
    message: str | None = None
    records: Sequence[tuple[int, str]] = ()
    """(index in the batch, reason) of the records for which the batch was refused (KIP-467)."""


Produced: TypeAlias = tuple[int, int, int] | Refusal
"""The result of a partition: base offset, LogAppendTime in ms or -1, and start of the log."""
NamedPartitions: TypeAlias = Sequence[tuple[str, bytes | None, Sequence[tuple[Any, ...]]]]
"""The topics of a request, as it was decoded: of a partition, only its index is used."""


def encode_produce(
    version: int, topics: NamedPartitions, results: list[Produced], throttle_ms: int = 0
) -> bytes:
    """Encode the body of a Produce response, v0 to v13.

    Args:
        results: one for each partition, in order.
    """
    return extension.encode_produced(version, [(None, topics)], results, throttle_ms)


def encode_run(
    version: int, requests: Sequence[tuple[int, NamedPartitions]], results: list[Produced]
) -> bytes:
    """Return the responses to a run, with lengths and headers, next to each other."""
    return extension.encode_produced(version, list(requests), results, 0)


# --- Fetch response ------------------------------------------------------------------------------


_PARTITION_FIELDS = {
    2: struct.Struct(">ihqq"),
    5: struct.Struct(">ihqqq"),
}


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a Fetch response."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions. None is null (read_uncommitted)."""
    records: Part = b""


FetchedTopics: TypeAlias = Sequence[tuple[str, UUID | None, Sequence[FetchedPartition]]]
"""(name, topic id, partitions). Responses have the name up to v12, the id since v13."""

_ABORTED = struct.Struct(">qq")
_FETCH_HEAD = struct.Struct(">ihi")
_NO_REPLICA = _I32.pack(-1)
_PARTITIONS_PER_STEP = 32
_COPY_BELOW = 4096
"""Records shorter than this are copied. To send them as a buffer of their own costs more."""


def encode_fetch(
    version: int,
    topics: FetchedTopics,
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> list[Part]:
    """Encode the body of a Fetch response, v4 to v18, as buffers. Long records are not copied."""
    steps = encode_fetch_in_steps(
        version, topics, error_code=error_code, session_id=session_id, throttle_ms=throttle_ms
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            buffers: list[Part] = end.value
            return buffers


def encode_fetch_in_steps(
    version: int,
    topics: FetchedTopics,
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> Generator[None, None, list[Part]]:
    """Encode like ``encode_fetch``. Yield after every few partitions."""
    compact = version >= 12
    by_id = version >= 13
    out = bytearray()
    out += (
        _FETCH_HEAD.pack(throttle_ms, error_code, session_id)
        if version >= 7
        else _I32.pack(throttle_ms)
    )
    buffers: list[Part] = []
    out += array_length(compact, len(topics))
    for name, topic_id, partitions in topics:
        out += topic_key(by_id, name, topic_id) if compact else legacy_string(name)
        out += array_length(compact, len(partitions))
        for index, partition in enumerate(partitions):
            if index % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                yield
            _append_fields(out, version, compact, partition)
            records = partition.records
            out += array_length(compact, len(records))
            if isinstance(records, bytes | bytearray | memoryview) and len(records) < _COPY_BELOW:
                out += records
            else:
                buffers += (out, records)
                out = bytearray()
            if compact:
                out.append(0)
        if compact:
            out.append(0)
    if compact:
        out.append(0)
    if out:
        buffers.append(out)
    return buffers


def _append_fields(
    out: bytearray, version: int, compact: bool, partition: FetchedPartition
) -> None:
    """Append the fields of a partition that come before its records."""
    if version >= 5:
        out += _PARTITION_FIELDS[5].pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        )
    else:
        out += _PARTITION_FIELDS[2].pack(
            partition.partition,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
        )
    aborted = partition.aborted
    out += array_length(compact, -1 if aborted is None else len(aborted))
    for entry in aborted or ():
        out += _ABORTED.pack(*entry)
        if compact:
            out.append(0)
    if version >= 11:
        out += _NO_REPLICA
