"""Produce: append record batches without copying them (KIP-98, KIP-467, KIP-516, KIP-890).

Translates only: the log decides which batches are valid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import TypeAlias
from uuid import UUID

from tidemill.engine.api import (
    Durability,
    PartitionWrite,
    PendingWrites,
    TransactionVersion,
    WriteResult,
)
from tidemill.errors import ProtocolError, TidemillError
from tidemill.kafka_codec.declared import PRODUCE
from tidemill.kafka_codec.hot import (
    Produced,
    ProduceRequest,
    ProduceTopic,
    Refusal,
    decode_produce,
    encode_produce,
)
from tidemill.log.errors import BadRecordsError, InvalidRecordError
from tidemill.protocols.kafka.apis import Later, Reply, RequestContext, handles
from tidemill.protocols.kafka.error_codes import (
    InvalidRequiredAcksError,
    error_message,
    transaction_code,
)
from tidemill.protocols.kafka.errors import UnsupportedVersionError

_Results: TypeAlias = list[WriteResult] | Awaitable[list[WriteResult]]
_Refused: TypeAlias = list[WriteResult | None]
"""Per partition, in request order: its result if it has an error before the append, else None."""
PARTITIONS_TOGETHER = 64
"""Partitions that a request writes to in one piece."""

_DURABILITY = {0: Durability.WRITTEN, 1: Durability.WRITTEN, -1: Durability.SYNCED}
"""``acks`` -> when to answer. With 0 there is no answer at all."""

MAX_RECORD_ERRORS = 10_000
"""Most records that a response names. Java's producer treats the others of their batch alike."""

WRITING_ADDS_SINCE = 12
"""A transactional write adds its partition to the transaction by itself (TransactionVersion V2)."""


def _is_wide(request: ProduceRequest) -> bool:
    return sum(len(topic[2]) + 1 for topic in request.topics) > PARTITIONS_TOGETHER


@handles(PRODUCE, pipelined=True, decode=decode_produce, is_wide=_is_wide)
def handle_produce(
    ctx: RequestContext, request: ProduceRequest
) -> Reply | Later | Awaitable[Reply]:
    """Append during the call. The answer comes later where it must wait for the disk."""
    refusal = _refusal(ctx, request)
    if refusal is not None:
        return _answer(ctx, request, _refuse_all(request.topics, refusal))
    if ctx.exclusive:
        return _in_parts(ctx, request)
    refused, writes = _plan(ctx, request, request.topics)
    try:
        results = _append(ctx, request, writes)
    except TidemillError as error:
        return _answer(ctx, request, _refuse_all(request.topics, error))
    _hold(ctx, writes)
    if isinstance(results, list):
        return _answer(ctx, request, _merged(refused, results))
    if isinstance(results, PendingWrites):
        return Later(
            results.call_when_done,
            lambda written: _answer(ctx, request, _merged(refused, written)),
        )
    return _answer_later(ctx, request, refused, results)


def _parts(topics: Sequence[ProduceTopic]) -> Iterator[list[ProduceTopic]]:
    """Cut the topics of a request to many partitions into parts."""
    part: list[ProduceTopic] = []
    left = PARTITIONS_TOGETHER
    for name, topic_id, partitions in topics:
        for start in range(0, len(partitions), PARTITIONS_TOGETHER):
            taken = partitions[start : start + PARTITIONS_TOGETHER]
            if part and len(taken) > left:
                yield part
                part, left = [], PARTITIONS_TOGETHER
            part.append((name, topic_id, taken))
            left -= len(taken)
    if part:
        yield part


async def _in_parts(ctx: RequestContext, request: ProduceRequest) -> Reply:
    """Append one part after the other, so that other connections are served in between."""
    appended: list[tuple[list[ProduceTopic], _Refused, _Results]] = []
    for part in _parts(request.topics):
        await ctx.turns.turns.pause_if_due()
        refused, writes = _plan(ctx, request, part)
        try:
            appended.append((part, refused, _append(ctx, request, writes)))
            _hold(ctx, writes)
        except TidemillError as error:
            appended.append((part, [], _refuse_all(part, error)))
    produced: list[Produced] = []
    left = MAX_RECORD_ERRORS // max(len(appended), 1)
    for part, refused, results in appended:
        if not isinstance(results, list):
            try:
                results = await results
            except TidemillError as error:
                refused, results = [], _refuse_all(part, error)
        produced += _produced(ctx, _merged(refused, results), left)
        await ctx.turns.turns.pause_if_due()
    return _encode(ctx, request, produced)


def _append(
    ctx: RequestContext, request: ProduceRequest, writes: list[PartitionWrite]
) -> list[WriteResult] | Awaitable[list[WriteResult]]:
    durability = _DURABILITY[request.acks]
    if request.transactional_id is None:
        return ctx.door.records.append(writes, durability)
    second = ctx.api_version >= WRITING_ADDS_SINCE
    version = TransactionVersion.V2 if second else TransactionVersion.V1
    return ctx.door.records.append(writes, durability, request.transactional_id, version)


def _hold(ctx: RequestContext, writes: list[PartitionWrite]) -> None:
    """Hold the producer back: for its quota, or if a group that it must not outrun is behind."""
    quotas = ctx.door.quotas
    if quotas.quotas.with_producers:
        size = sum(len(write.records) for write in writes)
        throttle_ms = quotas.produced(ctx.client_id, size)
        if throttle_ms:
            ctx.throttle_ms = max(ctx.throttle_ms, throttle_ms)
            ctx.connection.throttle(throttle_ms)
    records = ctx.door.records
    hold_ms = records.hold_ms((write.topic, write.partition) for write in writes)
    if hold_ms:
        written = [(write.topic, write.partition) for write in writes]
        ctx.throttle_ms = max(ctx.throttle_ms, hold_ms)
        ctx.connection.hold(hold_ms, lambda: bool(records.hold_ms(written)))


def _refusal(ctx: RequestContext, request: ProduceRequest) -> TidemillError | None:
    if ctx.api_version < 3:
        return UnsupportedVersionError(
            f"Produce v{ctx.api_version} is not supported",
            hint="Use a client of 2017 or newer.",
        )
    if request.acks not in _DURABILITY:
        return InvalidRequiredAcksError(f"invalid acks {request.acks}: use 0, 1 or -1 (all)")
    return None


def _refuse_all(topics: Sequence[ProduceTopic], error: TidemillError) -> list[WriteResult]:
    return [error] * sum(len(topic[2]) for topic in topics)


def _plan(
    ctx: RequestContext, request: ProduceRequest, topics: Sequence[ProduceTopic]
) -> tuple[_Refused, list[PartitionWrite]]:
    refused: _Refused = []
    writes: list[PartitionWrite] = []
    frame = request.frame
    for name, topic_id, partitions in topics:
        if topic_id is not None:
            try:
                name = ctx.door.topics.by_id(UUID(bytes=topic_id)).name
            except TidemillError as error:
                refused += [error] * len(partitions)
                continue
        for index, start, end in partitions:
            if start < end:
                refused.append(None)
                writes.append(PartitionWrite(name, index, frame[start:end]))
            else:
                empty = InvalidRecordError("a Produce request must hold one record batch")
                refused.append(empty)
    return refused, writes


def _merged(refused: _Refused, results: list[WriteResult]) -> list[WriteResult]:
    """Return a result per partition, in request order; all ``results`` if none was refused."""
    if len(results) >= len(refused):
        return results
    following = iter(results)
    return [each or next(following) for each in refused]


async def _answer_later(
    ctx: RequestContext,
    request: ProduceRequest,
    refused: _Refused,
    work: Awaitable[list[WriteResult]],
) -> Reply:
    try:
        results = await work
    except TidemillError as error:
        return _answer(ctx, request, _refuse_all(request.topics, error))
    return _answer(ctx, request, _merged(refused, results))


def _answer(ctx: RequestContext, request: ProduceRequest, results: list[WriteResult]) -> Reply:
    return _encode(ctx, request, _produced(ctx, results, MAX_RECORD_ERRORS))


def _produced(ctx: RequestContext, results: list[WriteResult], left: int) -> list[Produced]:
    """Return the results as the response has them, with at most ``left`` single records."""
    produced: list[Produced] = []
    for result in results:
        if isinstance(result, TidemillError):
            refused = refusal_of(ctx.api_version, result, left)
            left -= len(refused.records)
            produced.append(refused)
        else:
            produced.append(result)
    return produced


def _encode(ctx: RequestContext, request: ProduceRequest, produced: list[Produced]) -> Reply:
    """Return the response. With acks=0 there is none, and an error closes the connection.

    Apache Kafka does the same.
    """
    if request.acks != 0:
        return encode_produce(ctx.api_version, request.topics, produced, ctx.throttle_ms)
    following = iter(produced)
    for name, _, partitions in request.topics:
        for index, _, _ in partitions:
            result = next(following)
            if isinstance(result, Refusal):
                raise ProtocolError(
                    f"produce with acks=0 to {name or 'a topic id'}-{index} failed: "
                    f"{result.message}"
                )
    return None


def refusal_of(version: int, error: TidemillError, left: int = MAX_RECORD_ERRORS) -> Refusal:
    """Return an error as the response has it, with at most ``left`` single records."""
    code = transaction_code(error, PRODUCE, version)
    records = error.bad_records[:left] if isinstance(error, BadRecordsError) else ()
    return Refusal(code, message=error_message(error), records=records)
