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
    ProducedPartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce,
    encode_produce,
    encode_produce_in_steps,
)
from tidemill.kafka_codec.quick import decode_quickly, encode_one
from tidemill.log.errors import BadRecordsError, InvalidRecordError
from tidemill.protocols.kafka.apis import Later, Reply, RequestContext, handles
from tidemill.protocols.kafka.error_codes import (
    InvalidRequiredAcksError,
    error_message,
    transaction_code,
)
from tidemill.protocols.kafka.errors import UnsupportedVersionError

_Asked: TypeAlias = list[tuple[ProduceTopic, list[tuple[int, WriteResult | None]]]]
"""Per topic, in request order: (partition, its result if it has an error already, else None)."""

_Results: TypeAlias = list[WriteResult] | Awaitable[list[WriteResult]]
_Produced: TypeAlias = tuple[str, UUID | None, list[ProducedPartition]]
PARTITIONS_TOGETHER = 64
"""Partitions that a request writes to in one piece."""

_DURABILITY = {0: Durability.WRITTEN, 1: Durability.WRITTEN, -1: Durability.SYNCED}
"""``acks`` -> when to answer. With 0 there is no answer at all."""

MAX_RECORD_ERRORS = 10_000
"""Most records that a response names. Java's producer treats the others of their batch alike."""

WRITING_ADDS_SINCE = 12
"""A transactional write adds its partition to the transaction by itself (TransactionVersion V2)."""


@handles(PRODUCE, pipelined=True, decode=decode_produce, decode_quickly=decode_quickly)
def handle_produce(
    ctx: RequestContext, request: ProduceRequest
) -> Reply | Later | Awaitable[Reply]:
    """Append during the call. The answer comes later where it must wait for the disk."""
    refusal = _refusal(ctx, request)
    if refusal is not None:
        return _answer(ctx, request, *_refuse_all(request, refusal))
    if ctx.exclusive:
        return _in_parts(ctx, request)
    asked, writes = _plan(ctx, request)
    try:
        results = _append(ctx, request, writes)
    except TidemillError as error:
        return _answer(ctx, request, *_refuse_all(request, error))
    _hold(ctx, writes)
    if isinstance(results, list):
        return _answer(ctx, request, asked, results)
    if isinstance(results, PendingWrites):
        return Later(results.call_when_done, lambda written: _answer(ctx, request, asked, written))
    return _answer_later(ctx, request, asked, results)


def _parts(request: ProduceRequest) -> Iterator[ProduceRequest]:
    """Cut a request to many partitions into parts."""
    part: list[ProduceTopic] = []
    left = PARTITIONS_TOGETHER
    for topic in request.topics:
        # A topic without partitions is answered, too.
        for start in range(0, len(topic.partitions), PARTITIONS_TOGETHER) or (0,):
            taken = topic.partitions[start : start + PARTITIONS_TOGETHER]
            if part and len(taken) > left:
                yield request._replace(topics=part)
                part, left = [], PARTITIONS_TOGETHER
            part.append(topic._replace(partitions=taken))
            left -= max(len(taken), 1)
    if part:
        yield request._replace(topics=part)


async def _in_parts(ctx: RequestContext, request: ProduceRequest) -> Reply:
    """Append one part after the other, so that other connections are served in between."""
    appended: list[tuple[ProduceRequest, _Asked, _Results]] = []
    for part in _parts(request):
        await ctx.turns.turns.pause_if_due()
        asked, writes = _plan(ctx, part)
        try:
            appended.append((part, asked, _append(ctx, part, writes)))
            _hold(ctx, writes)
        except TidemillError as error:
            appended.append((part, *_refuse_all(part, error)))
    topics: list[_Produced] = []
    left = MAX_RECORD_ERRORS // max(len(appended), 1)
    for part, asked, results in appended:
        if not isinstance(results, list):
            try:
                results = await results
            except TidemillError as error:
                asked, results = _refuse_all(part, error)
        for name, topic_id, partitions in _produced_topics(ctx.api_version, asked, results, left):
            if topics and topics[-1][:2] == (name, topic_id):  # it was cut
                topics[-1][2].extend(partitions)
            else:
                topics.append((name, topic_id, partitions))
        await ctx.turns.turns.pause_if_due()
    if request.acks == 0:
        return _encode(ctx, request, topics)
    return await ctx.turns.turns.run(
        encode_produce_in_steps(ctx.api_version, topics, ctx.throttle_ms)
    )


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
                name = ctx.door.topics.by_id(topic.topic_id).name
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
    """Return the response. With acks=0 there is none, and an error closes the connection.

    Apache Kafka does the same.
    """
    is_short = len(asked) == len(results) == 1 and results[0].error is None
    if is_short and request.acks and not ctx.throttle_ms:
        (topic, parts), result = asked[0], results[0]
        if len(parts) == 1:
            offsets = result.base_offset, result.log_append_time_ms, result.log_start_offset
            index, _ = parts[0]
            quick = encode_one(ctx.api_version, topic.name, topic.topic_id, index, offsets)
            if quick is not None:
                return quick
    return _encode(ctx, request, _produced_topics(ctx.api_version, asked, results))


def encode_result(
    version: int, name: str, topic_id: UUID | None, partition: int, result: WriteResult
) -> bytes:
    """Encode the body of the response to a request with one partition."""
    produced = produced_partition(version, partition, result)
    return encode_produce(version, [(name, topic_id, [produced])], 0)


def _produced_topics(
    version: int, asked: _Asked, results: list[WriteResult], left: int = MAX_RECORD_ERRORS
) -> list[_Produced]:
    """Return the results as the response has them, with at most ``left`` single records."""
    following = iter(results)
    topics = []
    for topic, parts in asked:
        partitions = []
        for index, refused in parts:
            produced = produced_partition(version, index, refused or next(following), left)
            left -= len(produced.record_errors)
            partitions.append(produced)
        topics.append((topic.name, topic.topic_id, partitions))
    return topics


def _encode(ctx: RequestContext, request: ProduceRequest, topics: list[_Produced]) -> Reply:
    if request.acks != 0:
        return encode_produce(ctx.api_version, topics, ctx.throttle_ms)
    for name, _, partitions in topics:
        for produced in partitions:
            if produced.error_code:
                raise ProtocolError(
                    f"produce with acks=0 to {name or 'a topic id'}-{produced.partition} failed: "
                    f"{produced.error_message}"
                )
    return None


def produced_partition(
    version: int, index: int, result: WriteResult, left: int = MAX_RECORD_ERRORS
) -> ProducedPartition:
    """Return a result as the response has it, with at most ``left`` single records."""
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
        _record_errors(result.error, left),
    )


def _record_errors(error: TidemillError, left: int) -> Sequence[tuple[int, str]]:
    """Return the records for which a batch was refused, at most ``left`` of them."""
    return error.bad_records[:left] if isinstance(error, BadRecordsError) else ()
