"""Fetch: send stored bytes without copying them (KIP-74, KIP-98, KIP-227, KIP-516).

Translates only: the engine decides how long to wait and what can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, TypeAlias
from uuid import UUID

from tidemill.engine.api import Isolation, PartitionRead, ReadQuery, ReadResult
from tidemill.errors import TidemillError
from tidemill.kafka_codec.hot import (
    FetchedPartition,
    FetchedTopics,
    encode_fetch,
    encode_fetch_in_steps,
)
from tidemill.net.responses import UNCOUNTED_BYTES
from tidemill.protocols.kafka.apis import Reply, RequestContext, field, handles
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


PARTS_TOGETHER = 32
"""Partitions that a request names, or that its session has, if it is answered in one piece."""

_Began: TypeAlias = tuple[FetchSession | None, bool, list[FetchPart]]
"""The session, whether the response is incremental, and the partitions to read."""
_Fetched: TypeAlias = tuple[FetchPart, str, FetchedPartition]
"""A part of a request, the name of its topic, and its answer."""


@handles(1, cancellable=True)
def handle_fetch(ctx: RequestContext, request: Any) -> Reply | Awaitable[Reply]:
    """Wait for records and answer with them. Within a session the answer is incremental."""
    if ctx.door.quotas.quotas.with_consumers:
        throttle_ms = ctx.door.quotas.consumer_wait(ctx.client_id)
        if throttle_ms:
            return _throttled(ctx, request, throttle_ms)
    if _is_wide(request):
        return _begin_and_answer(ctx, request)
    version = ctx.api_version
    try:
        began = _begin(ctx, request, list(_asked(version, request)), _forgotten(version, request))
    except TidemillError as error:
        return encode_fetch(version, [], error_code=error_code(error))
    if len(began[2]) > PARTS_TOGETHER:
        return _answer(ctx, request, began)
    reads = _Reads(ctx, request)
    for part in began[2]:
        reads.add(part)
    results = ctx.door.records.read_now(reads.query())
    if results is None:
        return _answer(ctx, request, began)
    return _answer_now(ctx, request, began, reads, results)


async def _throttled(ctx: RequestContext, request: Any, throttle_ms: int) -> Reply:
    """Answer without records: the client has read more than its quota (KIP-13).

    A session only counts the request; a new one is not begun, because the answer lacks partitions.
    """
    version = ctx.api_version
    session_id = NO_SESSION
    ctx.connection.throttle(throttle_ms)
    if field(request, "session_epoch", -1) > 0:
        named = await _named(ctx, request)
        try:
            session, _, _ = _begin(ctx, request, *named)
        except TidemillError as error:
            return encode_fetch(version, [], error_code=error_code(error))
        session_id = NO_SESSION if session is None else session.session_id
    return encode_fetch(version, [], session_id=session_id, throttle_ms=throttle_ms)


def _count(ctx: RequestContext, answered: list[_Fetched]) -> None:
    """Count the bytes of an answer for the client's quota."""
    if ctx.door.quotas.quotas.with_consumers:
        size = sum(len(fetched.records) for _, _, fetched in answered)
        ctx.door.quotas.consumed(ctx.client_id, size)


def _is_wide(request: Any) -> bool:
    """Return whether a request names so many partitions that it is handled in slices."""
    named = sum(len(topic.partitions) for topic in request.topics) + len(request.topics)
    forgotten = field(request, "forgotten_topics_data", ())
    return named > PARTS_TOGETHER or bool(forgotten)


def _begin(
    ctx: RequestContext,
    request: Any,
    asked: list[FetchPart],
    forgotten: Iterable[tuple[TopicKey, int]],
) -> _Began:
    """Apply the request to its session."""
    return ctx.connection.fetch_sessions.begin(
        field(request, "session_id", NO_SESSION),
        field(request, "session_epoch", -1),
        asked,
        forgotten,
    )


async def _named(
    ctx: RequestContext, request: Any
) -> tuple[list[FetchPart], list[tuple[TopicKey, int]]]:
    """Return the partitions that a request asks for, and those that it forgets, in slices."""
    asked = await ctx.turns.collect(_asked(ctx.api_version, request))
    return asked, await ctx.turns.collect(_forgotten(ctx.api_version, request))


async def _begin_and_answer(ctx: RequestContext, request: Any) -> Reply:
    named = await _named(ctx, request)
    try:
        began = _begin(ctx, request, *named)
    except TidemillError as error:
        return encode_fetch(ctx.api_version, [], error_code=error_code(error))
    return await _answer(ctx, request, began)


async def _answer(ctx: RequestContext, request: Any, began: _Began) -> Reply:
    """Read, wait where it is necessary, and encode the answer in slices."""
    session, incremental, parts = began
    committed_only = request.isolation_level == _READ_COMMITTED
    reads = _Reads(ctx, request)
    for part in parts:
        if ctx.turns.is_due:
            await ctx.turns.pause()
        reads.add(part)
    results = reads.all_results(await _fetch(ctx, reads.query()))
    ctx.connection.budget.hold(sum(len(result.records) for result in results))
    answered = await ctx.turns.collect(
        (part, name, _fetched(part, result, committed_only))
        for part, name, result in zip(parts, reads.names, results, strict=True)
    )
    _count(ctx, answered)
    if session is not None:
        answered = await ctx.turns.collect(_with_news(session, answered, incremental))
    steps = encode_fetch_in_steps(
        ctx.api_version,
        _by_topic(answered),
        session_id=NO_SESSION if session is None else session.session_id,
    )
    return await ctx.turns.run(steps)


def _answer_now(
    ctx: RequestContext, request: Any, began: _Began, reads: _Reads, read: list[ReadResult]
) -> Reply:
    """Encode an answer of few partitions that needed no wait."""
    session, incremental, parts = began
    committed_only = request.isolation_level == _READ_COMMITTED
    results = reads.all_results(read)
    size = sum(len(result.records) for result in results)
    if size > UNCOUNTED_BYTES:
        ctx.connection.budget.hold(size)
    answered = [
        (part, name, _fetched(part, result, committed_only))
        for part, name, result in zip(parts, reads.names, results, strict=True)
    ]
    _count(ctx, answered)
    if session is not None:
        answered = list(_with_news(session, answered, incremental))
    session_id = NO_SESSION if session is None else session.session_id
    return encode_fetch(ctx.api_version, _by_topic(answered), session_id=session_id)


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


class _Reads:
    """The reads of one request: name and result of each part, in its order."""

    def __init__(self, ctx: RequestContext, request: Any) -> None:
        self._ctx = ctx
        self._request = request
        self._results: list[ReadResult | None] = []
        self._reads: list[PartitionRead] = []
        self.names: list[str] = []

    def add(self, part: FetchPart) -> None:
        """Add a part. An unknown topic id is an error of its part only."""
        topic = part.topic
        try:
            name = topic if isinstance(topic, str) else self._ctx.door.topics.by_id(topic).name
        except TidemillError as error:
            self.names.append("")
            self._results.append(ReadResult(error=error))
            return
        self.names.append(name)
        self._results.append(None)
        epoch = None if part.leader_epoch == NO_EPOCH else part.leader_epoch
        self._reads.append(PartitionRead(name, part.partition, part.offset, part.max_bytes, epoch))

    def query(self) -> ReadQuery:
        """Return the query of all parts that have no error yet."""
        ctx, request = self._ctx, self._request
        max_bytes = min(max(request.max_bytes, 0), ctx.door.settings.limits.fetch_bytes)
        # A part with an error ends the wait.
        waits = len(self._reads) == len(self._results)
        committed_only = request.isolation_level == _READ_COMMITTED
        return ReadQuery(
            self._reads,
            max_wait_ms=max(request.max_wait, 0) if waits else 0,
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
            isolation=Isolation.READ_COMMITTED if committed_only else Isolation.READ_UNCOMMITTED,
            budget=ctx.connection.budget,
            breathe=ctx.turns.pause_if_due,
            lends=ctx.connection.sends_files,
        )

    def all_results(self, read: list[ReadResult]) -> list[ReadResult]:
        """Return the results of all parts, given those of the query."""
        following = iter(read)
        return [next(following) if result is None else result for result in self._results]


async def _fetch(ctx: RequestContext, query: ReadQuery) -> list[ReadResult]:
    try:
        return await ctx.door.records.read(query)
    except asyncio.CancelledError:
        if not ctx.connection.stopping:
            raise
        task = asyncio.current_task()  # not before: the error would keep it, and it the error
        assert task is not None
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
    session: FetchSession, answered: list[_Fetched], incremental: bool
) -> Iterator[_Fetched]:
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


def _by_topic(answered: list[_Fetched]) -> FetchedTopics:
    """Group the parts by topic, each topic once: of two groups clients keep the last."""
    groups: dict[TopicKey, tuple[str, UUID | None, list[FetchedPartition]]] = {}
    for part, name, fetched in answered:
        group = groups.get(part.topic)
        if group is None:
            topic_id = None if isinstance(part.topic, str) else part.topic
            group = groups[part.topic] = (name, topic_id, [])
        group[2].append(fetched)
    return list(groups.values())
