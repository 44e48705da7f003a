"""Produce: record batches to the broker, uncopied (KIP-98, KIP-467, KIP-516, KIP-890).

Translates; what may be appended is decided in ``log``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeAlias

from tidemill.broker.api import Acks, PartitionWrite, TransactionVersion, WriteResult
from tidemill.errors import (
    InvalidRecordError,
    ProtocolError,
    TidemillError,
    UnsupportedVersionError,
)
from tidemill.kafka.apis import Reply, RequestContext, handles
from tidemill.kafka.errors import InvalidRequiredAcksError, error_message, transaction_code
from tidemill.kafka.hot import (
    ProducedPartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce,
    encode_produce,
)
from tidemill.kafka.schema import PRODUCE

_Asked: TypeAlias = list[tuple[ProduceTopic, list[tuple[int, WriteResult | None]]]]
"""Per topic: (partition, its result where it is refused already, else None), in request order."""

WRITING_ADDS_SINCE = 12
"""A transactional write adds its partition to the transaction by itself (TransactionVersion V2)."""


@handles(PRODUCE, pipelined=True, decode=decode_produce)
def handle_produce(ctx: RequestContext, request: ProduceRequest) -> Reply | Awaitable[Reply]:
    """Append during the call; where the answer must wait for the disk, return an awaitable."""
    refusal = _refusal(ctx, request)
    if refusal is not None:
        return _answer(ctx, request, *_refuse_all(request, refusal))
    asked, writes = _plan(ctx, request)
    try:
        results = _append(ctx, request, writes)
    except TidemillError as error:
        return _answer(ctx, request, *_refuse_all(request, error))
    if isinstance(results, list):
        return _answer(ctx, request, asked, results)
    return _answer_later(ctx, request, asked, results)


def _append(
    ctx: RequestContext, request: ProduceRequest, writes: list[PartitionWrite]
) -> list[WriteResult] | Awaitable[list[WriteResult]]:
    if request.transactional_id is None:
        return ctx.broker.produce(writes, Acks(request.acks))
    second = ctx.api_version >= WRITING_ADDS_SINCE
    version = TransactionVersion.V2 if second else TransactionVersion.V1
    return ctx.broker.produce(writes, Acks(request.acks), request.transactional_id, version)


def _refusal(ctx: RequestContext, request: ProduceRequest) -> TidemillError | None:
    if ctx.api_version < 3:
        return UnsupportedVersionError(
            f"Produce v{ctx.api_version} is not supported",
            hint="Use a client of 2017 or newer.",
        )
    if request.acks not in (0, 1, -1):
        return InvalidRequiredAcksError(f"acks={request.acks}: it must be 0, 1 or -1 (all)")
    return None


def _refuse_all(request: ProduceRequest, error: TidemillError) -> tuple[_Asked, list[WriteResult]]:
    refused = WriteResult(error=error)
    return [(t, [(index, refused) for index, _ in t.partitions]) for t in request.topics], []


def _plan(ctx: RequestContext, request: ProduceRequest) -> tuple[_Asked, list[PartitionWrite]]:
    asked: _Asked = []
    writes: list[PartitionWrite] = []
    for topic in request.topics:
        name = topic.name
        parts: list[tuple[int, WriteResult | None]] = []
        asked.append((topic, parts))
        if topic.topic_id is not None:
            try:
                name = ctx.broker.topic_by_id(topic.topic_id).name
            except TidemillError as error:
                refused = WriteResult(error=error)
                parts += [(index, refused) for index, _ in topic.partitions]
                continue
        for index, records in topic.partitions:
            if records:
                parts.append((index, None))
                writes.append(PartitionWrite(name, index, records))
            else:
                empty = InvalidRecordError("a Produce request must hold one record batch")
                parts.append((index, WriteResult(error=empty)))
    return asked, writes


async def _answer_later(
    ctx: RequestContext,
    request: ProduceRequest,
    asked: _Asked,
    work: Awaitable[list[WriteResult]],
) -> Reply:
    try:
        results = await work
    except TidemillError as error:
        return _answer(ctx, request, *_refuse_all(request, error))
    return _answer(ctx, request, asked, results)


def _answer(
    ctx: RequestContext, request: ProduceRequest, asked: _Asked, results: list[WriteResult]
) -> Reply:
    """The response; with acks=0 none, and an error closes the connection as in Kafka."""
    following = iter(results)
    version = ctx.api_version
    topics = [
        (
            topic.name,
            topic.topic_id,
            [_produced(version, index, refused or next(following)) for index, refused in parts],
        )
        for topic, parts in asked
    ]
    if request.acks != 0:
        return encode_produce(ctx.api_version, topics)
    for name, _, partitions in topics:
        for produced in partitions:
            if produced.error_code:
                raise ProtocolError(
                    f"produce with acks=0 to {name or 'a topic id'}-{produced.partition} failed: "
                    f"{produced.error_message}"
                )
    return None


def _produced(version: int, index: int, result: WriteResult) -> ProducedPartition:
    if result.error is None:
        return ProducedPartition(
            index, 0, result.base_offset, result.log_append_time_ms, result.log_start_offset
        )
    return ProducedPartition(
        index,
        transaction_code(result.error, PRODUCE, version),
        result.base_offset,
        -1,
        result.log_start_offset,
        error_message(result.error),
    )
