"""Fetch: stored bytes from the broker, unjoined (KIP-74, KIP-98, KIP-227, KIP-516).

Translates; how long to wait and what may be read is decided by the broker.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from tidemill.broker.api import FetchQuery, Isolation, PartitionRead, ReadResult
from tidemill.errors import TidemillError
from tidemill.kafka.apis import Body, Reply, RequestContext, field, handles, millis
from tidemill.kafka.errors import error_code
from tidemill.kafka.hot import FetchedPartition, FetchedTopics, encode_fetch
from tidemill.kafka.session import NO_SESSION, FetchPart, FetchSession, TopicKey

LEAST_BYTES = 1_048_576
"""A response may always be this large, however many clients don't read theirs."""


@handles(1, cancellable=True)
async def handle_fetch(ctx: RequestContext, request: Any) -> Reply:
    """Wait for records, then answer with what there is; incremental within a session."""
    version = ctx.api_version
    asked, forgotten = _asked(version, request), _forgotten(version, request)
    try:
        session, incremental, parts = ctx.connection.fetch_sessions.begin(
            field(request, "session_id", NO_SESSION),
            field(request, "session_epoch", -1),
            asked,
            forgotten,
        )
    except TidemillError as error:
        return Body(encode_fetch(version, [], error_code=error_code(error)))
    committed_only = request.isolation_level == Isolation.READ_COMMITTED
    names, results = await _read(ctx, request, parts, committed_only)
    ctx.connection.loaded(sum(len(result.records) for result in results))
    answered = [
        (part, name, _fetched(part, result, committed_only))
        for part, name, result in zip(parts, names, results, strict=True)
    ]
    if session is not None:
        answered = _with_news(session, answered, incremental)
    return Body(
        encode_fetch(
            version,
            _by_topic(answered),
            session_id=NO_SESSION if session is None else session.session_id,
        )
    )


def _asked(version: int, request: Any) -> list[FetchPart]:
    by_id = version >= 13
    return [
        FetchPart(
            _topic_key(topic, by_id),
            part.partition,
            part.fetch_offset,
            part.partition_max_bytes,
            field(part, "current_leader_epoch", -1),
        )
        for topic in request.topics
        for part in topic.partitions
    ]


def _forgotten(version: int, request: Any) -> list[tuple[TopicKey, int]]:
    by_id = version >= 13
    topics: tuple[Any, ...] = field(request, "forgotten_topics_data", ())
    return [
        (_topic_key(topic, by_id), partition) for topic in topics for partition in topic.partitions
    ]


def _topic_key(topic: Any, by_id: bool) -> TopicKey:
    if not by_id:
        return str(topic.topic)
    return topic.topic_id or UUID(int=0)


async def _read(
    ctx: RequestContext, request: Any, parts: list[FetchPart], committed_only: bool
) -> tuple[list[str], list[ReadResult]]:
    """Name and result of each part; topic ids that are not known are errors of their own."""
    names: list[str] = []
    results: list[ReadResult | None] = []
    reads: list[PartitionRead] = []
    for part in parts:
        try:
            topic = part.topic
            name = topic if isinstance(topic, str) else ctx.broker.topic_by_id(topic).name
        except TidemillError as error:
            names.append("")
            results.append(ReadResult(error=error))
            continue
        names.append(name)
        results.append(None)
        reads.append(
            PartitionRead(name, part.partition, part.offset, part.max_bytes, part.leader_epoch)
        )
    max_bytes = _max_bytes(ctx, request)
    query = FetchQuery(
        reads,
        # With an error to tell there is nothing to wait for.
        max_wait_ms=max(millis(request.max_wait), 0) if len(reads) == len(parts) else 0,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=Isolation.READ_COMMITTED if committed_only else Isolation.READ_UNCOMMITTED,
    )
    answers = iter(await _fetch(ctx, query))
    return names, [next(answers) if result is None else result for result in results]


def _max_bytes(ctx: RequestContext, request: Any) -> int:
    """What the client asks for, within the broker's bound and what memory there is."""
    bound = ctx.broker.settings.limits.fetch_bytes
    if ctx.connection.response_room is not None:
        bound = min(bound, max(ctx.connection.response_room(), LEAST_BYTES))
    asked: int = request.max_bytes
    return min(max(asked, 0), bound)


async def _fetch(ctx: RequestContext, query: FetchQuery) -> list[ReadResult]:
    try:
        return await ctx.broker.fetch(query)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not ctx.connection.stopping or task is None:
            raise
        # The server stops: answer with what there is instead of waiting for more.
        task.uncancel()
        query.max_wait_ms = 0
        return await ctx.broker.fetch(query)
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
        result.records,
    )


def _with_news(
    session: FetchSession,
    answered: list[tuple[FetchPart, str, FetchedPartition]],
    incremental: bool,
) -> list[tuple[FetchPart, str, FetchedPartition]]:
    """What the response of a session holds; partitions that gave records are served last next."""
    told = []
    for part, name, fetched in answered:
        news = part.has_news(
            error_code=fetched.error_code,
            record_bytes=len(fetched.records),
            high_watermark=fetched.high_watermark,
            log_start=fetched.log_start_offset,
        )
        if news or not incremental:
            told.append((part, name, fetched))
        if len(fetched.records):
            session.to_back(part)
    return told


def _by_topic(answered: list[tuple[FetchPart, str, FetchedPartition]]) -> FetchedTopics:
    """Grouped by topic, each topic once (clients keep the last of two groups)."""
    groups: dict[TopicKey, tuple[str, UUID | None, list[FetchedPartition]]] = {}
    for part, name, fetched in answered:
        group = groups.get(part.topic)
        if group is None:
            topic_id = None if isinstance(part.topic, str) else part.topic
            group = groups[part.topic] = (name, topic_id, [])
        group[2].append(fetched)
    return list(groups.values())
