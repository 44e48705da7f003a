"""Fetch: send stored bytes without copying them (KIP-74, KIP-98, KIP-227, KIP-516).

Translates only: the engine decides how long to wait and what can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tidemill.engine.api import Isolation, PartitionRead, ReadQuery, ReadResult
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Body, Reply, RequestContext, field, handles
from tidemill.protocols.kafka.codec.hot import (
    FetchedPartition,
    FetchedTopics,
    encode_fetch,
    encode_fetch_in_steps,
)
from tidemill.protocols.kafka.error_codes import error_code
from tidemill.protocols.kafka.fetch_sessions import (
    NO_EPOCH,
    NO_SESSION,
    FetchPart,
    FetchSession,
    TopicKey,
)

_READ_COMMITTED = 1
"""The protocol's isolation level."""


@handles(1, cancellable=True)
async def handle_fetch(ctx: RequestContext, request: Any) -> Reply:
    """Wait for records and answer with them. Within a session the answer is incremental."""
    version = ctx.api_version
    asked = await ctx.turns.collect(_asked(version, request))
    forgotten = await ctx.turns.collect(_forgotten(version, request))
    try:
        session, incremental, parts = ctx.connection.fetch_sessions.begin(
            field(request, "session_id", NO_SESSION),
            field(request, "session_epoch", -1),
            asked,
            forgotten,
        )
    except TidemillError as error:
        return Body(encode_fetch(version, [], error_code=error_code(error)))
    committed_only = request.isolation_level == _READ_COMMITTED
    names, results = await _read(ctx, request, parts, committed_only)
    if ctx.connection.room is not None:
        ctx.connection.room.hold(sum(len(result.records) for result in results))
    answered = await ctx.turns.collect(
        (part, name, _fetched(part, result, committed_only))
        for part, name, result in zip(parts, names, results, strict=True)
    )
    if session is not None:
        answered = await ctx.turns.collect(_with_news(session, answered, incremental))
    steps = encode_fetch_in_steps(
        version,
        _by_topic(answered),
        session_id=NO_SESSION if session is None else session.session_id,
    )
    return Body(await ctx.turns.run(steps))


def _asked(version: int, request: Any) -> Iterator[FetchPart]:
    by_id = version >= 13
    return (
        FetchPart(
            _topic_key(topic, by_id),
            part.partition,
            part.fetch_offset,
            part.partition_max_bytes,
            field(part, "current_leader_epoch", -1),
        )
        for topic in request.topics
        for part in topic.partitions
    )


def _forgotten(version: int, request: Any) -> Iterator[tuple[TopicKey, int]]:
    by_id = version >= 13
    topics: tuple[Any, ...] = field(request, "forgotten_topics_data", ())
    return (
        (_topic_key(topic, by_id), partition) for topic in topics for partition in topic.partitions
    )


def _topic_key(topic: Any, by_id: bool) -> TopicKey:
    if not by_id:
        return str(topic.topic)
    return topic.topic_id or UUID(int=0)


async def _read(
    ctx: RequestContext, request: Any, parts: list[FetchPart], committed_only: bool
) -> tuple[list[str], list[ReadResult]]:
    """Return name and result of each part. An unknown topic id is an error of its part only."""
    names: list[str] = []
    results: list[ReadResult | None] = []
    reads: list[PartitionRead] = []
    for part in parts:
        if ctx.turns.is_due:
            await ctx.turns.pause()
        try:
            topic = part.topic
            name = topic if isinstance(topic, str) else ctx.door.topics.by_id(topic).name
        except TidemillError as error:
            names.append("")
            results.append(ReadResult(error=error))
            continue
        names.append(name)
        results.append(None)
        reads.append(
            PartitionRead(
                name,
                part.partition,
                part.offset,
                part.max_bytes,
                None if part.leader_epoch == NO_EPOCH else part.leader_epoch,
            )
        )
    max_bytes = _max_bytes(ctx, request)
    query = ReadQuery(
        reads,
        # A part with an error ends the wait.
        max_wait_ms=max(request.max_wait, 0) if len(reads) == len(parts) else 0,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=Isolation.READ_COMMITTED if committed_only else Isolation.READ_UNCOMMITTED,
        room=ctx.connection.room,
        breathe=ctx.turns.pause_if_due,
        lends=ctx.connection.sends_files,
    )
    answers = iter(await _fetch(ctx, query))
    return names, [next(answers) if result is None else result for result in results]


def _max_bytes(ctx: RequestContext, request: Any) -> int:
    """Return the limit that the client asks for, reduced to the broker's limit."""
    asked: int = request.max_bytes
    return min(max(asked, 0), ctx.door.settings.limits.fetch_bytes)


async def _fetch(ctx: RequestContext, query: ReadQuery) -> list[ReadResult]:
    try:
        return await ctx.door.records.read(query)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not ctx.connection.stopping or task is None:
            raise
        # The server stops: answer with the records that are there.
        task.uncancel()
        query.max_wait_ms = 0
        return await ctx.door.records.read(query)
    except TidemillError as error:
        return [ReadResult(error=error) for _ in query.partitions]


def _fetched(part: FetchPart, result: ReadResult, committed_only: bool) -> FetchedPartition:
    if result.error is not None:
        return FetchedPartition(
            part.partition,
            error_code(result.error),
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
        )
    return FetchedPartition(
        part.partition,
        0,
        result.high_watermark,
        result.last_stable_offset,
        result.log_start_offset,
        result.aborted if committed_only else None,
        result.records if result.lent is None else result.lent,
    )


def _with_news(
    session: FetchSession,
    answered: list[tuple[FetchPart, str, FetchedPartition]],
    incremental: bool,
) -> Iterator[tuple[FetchPart, str, FetchedPartition]]:
    """Yield the parts for a session's response. Parts with records are served last next time."""
    for part, name, fetched in answered:
        news = part.update_sent(
            error_code=fetched.error_code,
            record_bytes=len(fetched.records),
            high_watermark=fetched.high_watermark,
            log_start=fetched.log_start_offset,
        )
        if len(fetched.records):
            session.move_to_end(part)
        if news or not incremental:
            yield part, name, fetched


def _by_topic(answered: list[tuple[FetchPart, str, FetchedPartition]]) -> FetchedTopics:
    """Group the parts by topic, each topic once: of two groups clients keep the last."""
    groups: dict[TopicKey, tuple[str, UUID | None, list[FetchedPartition]]] = {}
    for part, name, fetched in answered:
        group = groups.get(part.topic)
        if group is None:
            topic_id = None if isinstance(part.topic, str) else part.topic
            group = groups[part.topic] = (name, topic_id, [])
        group[2].append(fetched)
    return list(groups.values())
