"""ShareFetch: share sessions, acquired records, and acknowledgements of earlier ones (KIP-932).

Translates only: the engine decides what a member acquires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tidemill.engine.shares.api import SharedRecords, ShareQuery, ShareRead
from tidemill.errors import TidemillError
from tidemill.kafka_codec.shared import SharedPartition, encode_share_fetch
from tidemill.parts import Part
from tidemill.protocols.kafka.apis import RequestContext, field, handles
from tidemill.protocols.kafka.error_codes import error_code, error_message
from tidemill.protocols.kafka.handlers.shares.acknowledge import (
    NO_ID,
    Errors,
    acknowledge,
    check_member,
    end_session,
    has_acks,
)
from tidemill.protocols.kafka.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    Place,
    ShareSession,
)
from tidemill.state.errors import InvalidRequestError
from tidemill.state.share_partitions.format import MAX_COUNT

_RECORD_LIMIT = 1
"""The acquire mode that never acquires more records than asked for (version 2)."""


@handles(78, cancellable=True)
async def handle_share_fetch(ctx: RequestContext, request: Any) -> list[Part]:
    """Settle records that a member holds, and give it others."""
    try:
        lock_ms = ctx.door.shares.lock_ms(request.group_id or "")  # checks access
        check_member(request)
        session, errors = await _begin(ctx, request)
        found: dict[Place, SharedRecords] = {}
        if session is not None and not field(request, "is_renew_ack", False):
            found = await _acquire_within_quota(ctx, request, session, bool(errors))
    except TidemillError as error:
        code, message = error_code(error), error_message(error)
        return await ctx.turns.run(encode_share_fetch([], error_code=code, error_message=message))
    topics = await _topics(ctx, errors, found)
    return await ctx.turns.run(encode_share_fetch(topics, lock_ms=lock_ms))


async def _begin(ctx: RequestContext, request: Any) -> tuple[ShareSession | None, Errors]:
    """Apply the request to its session; return it, None if it ends, and errors of records."""
    sessions, epoch = ctx.connection.share_sessions, request.share_session_epoch
    key = request.group_id, request.member_id
    if epoch == INITIAL_EPOCH:
        if has_acks(request):
            raise InvalidRequestError("the first request of a share session acknowledges records")
        limit = ctx.door.settings.groups.share_max_sessions
        session = sessions.open(key, ctx.connection, limit)
        ctx.connection.on_close[session] = lambda: end_session(ctx, session)
    else:
        session = sessions.next(key, epoch)
    if epoch == FINAL_EPOCH:
        errors = await acknowledge(ctx, request)
        end_session(ctx, session)
        return None, errors
    session.update(_asked(request), _forgotten(request))
    errors = {} if epoch == INITIAL_EPOCH else await acknowledge(ctx, request)
    return session, errors


def _asked(request: Any) -> Iterator[Place]:
    return (
        (topic.topic_id or NO_ID, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    )


def _forgotten(request: Any) -> Iterator[Place]:
    return (
        (topic.topic_id or NO_ID, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    )


async def _acquire_within_quota(
    ctx: RequestContext, request: Any, session: ShareSession, answers: bool
) -> dict[Place, SharedRecords]:
    """Acquire records, none if the client has read more than its quota (KIP-13)."""
    quotas = ctx.door.quotas
    if not quotas.quotas.with_consumers:
        return await _acquire(ctx, request, session, answers)
    throttle_ms = quotas.consumer_wait(ctx.client_id)
    if throttle_ms:
        ctx.connection.throttle(throttle_ms)
        return {}
    found = await _acquire(ctx, request, session, answers)
    quotas.consumed(
        ctx.client_id, sum(len(data) for each in found.values() for data in each.records)
    )
    return found


async def _acquire(
    ctx: RequestContext, request: Any, session: ShareSession, answers: bool
) -> dict[Place, SharedRecords]:
    places = list(session.places)
    if not places and answers:
        return {}
    limit = ctx.door.settings.limits.fetch_bytes
    query = ShareQuery(
        request.group_id,
        request.member_id,
        [ShareRead(*place) for place in places],
        # Acknowledgements are answered immediately.
        max_wait_ms=0 if answers else max(request.max_wait, 0),
        most_records=max(request.max_records, 0),
        max_bytes=min(max(request.max_bytes, 0), limit),
        exact=field(request, "share_acquire_mode", 0) == _RECORD_LIMIT,
        budget=ctx.connection.budget,
        breathe=ctx.turns.pause_if_due,
    )
    results = await _fetch(ctx, query)
    found = dict(zip(places, results, strict=True))
    for place, result in found.items():
        if result.acquired:
            session.move_to_end(place)
    return found


async def _fetch(ctx: RequestContext, query: ShareQuery) -> list[SharedRecords]:
    try:
        return await ctx.door.shares.fetch(query)
    except asyncio.CancelledError:
        if not ctx.connection.stopping:
            raise
        task = asyncio.current_task()  # not before: the error would keep it, and it the error
        assert task is not None
        # The server stops: answer without records. What was acquired is available after the start.
        task.uncancel()
        return [SharedRecords() for _ in query.partitions]


async def _topics(
    ctx: RequestContext, errors: Errors, found: dict[Place, SharedRecords]
) -> list[tuple[UUID, list[SharedPartition]]]:
    """Return the partitions that the answer has: with records, an error, or acknowledgements."""
    topics: dict[UUID, list[SharedPartition]] = {}
    for place in dict.fromkeys([*errors, *found]):
        if ctx.turns.is_due:
            await ctx.turns.pause()
        result = found.get(place) or SharedRecords()
        if place not in errors and result.error is None and not result.acquired:
            continue
        refused = errors.get(place)
        topics.setdefault(place[0], []).append(
            SharedPartition(
                place[1],
                error_code(result.error),
                error_message(result.error),
                error_code(refused),
                error_message(refused),
                [
                    (run.first, run.last, min(run.delivery_count + 1, MAX_COUNT))
                    for run in result.acquired
                ],
                result.records,
            )
        )
    return list(topics.items())
