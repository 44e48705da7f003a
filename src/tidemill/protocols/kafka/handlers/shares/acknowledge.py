"""ShareAcknowledge, and what it has in common with ShareFetch (KIP-932, KIP-1222).

Checks what the protocol says about acknowledgement batches; the share partition decides the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from tidemill.engine.shares.api import AckBatch, PartitionAcks
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, grouped, handles
from tidemill.protocols.kafka.error_codes import error_fields
from tidemill.protocols.kafka.errors import InvalidShareSessionEpochError
from tidemill.protocols.kafka.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    Place,
    ShareSession,
)
from tidemill.state.errors import InvalidRequestError

NO_ID = UUID(int=0)
_RENEW = 4
_MAX_OFFSET = 2**63 - 1

Errors = dict[Place, TidemillError | None]


@handles(79, refused=error_fields)
async def handle_share_acknowledge(ctx: RequestContext, request: Any) -> Tree:
    """Settle records that a member holds. A final epoch ends its session."""
    sessions = ctx.connection.share_sessions
    epoch = request.share_session_epoch
    lock_ms = ctx.door.shares.lock_ms(request.group_id or "")  # checks access
    check_member(request)
    if epoch == INITIAL_EPOCH:
        raise InvalidShareSessionEpochError("ShareAcknowledge can't start a share session")
    session = sessions.next((request.group_id, request.member_id), epoch)
    errors = await acknowledge(ctx, request)
    if epoch == FINAL_EPOCH:
        end_session(ctx, session)
    by_topic = grouped((topic, (partition, each)) for (topic, partition), each in errors.items())
    return {
        "acquisition_lock_timeout": lock_ms,
        "responses": [
            {"topic_id": topic_id, "partitions": Each(_settled, partitions)}
            for topic_id, partitions in by_topic.items()
        ],
    }


def _settled(result: tuple[int, TidemillError | None]) -> Tree:
    partition, error = result
    return {
        "partition_index": partition,
        **error_fields(error),
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
    }


def check_member(request: Any) -> None:
    """Return if a request names a group and a member."""
    if not request.group_id or not request.member_id:
        raise InvalidRequestError("the group id and the member id can't be empty")


async def acknowledge(ctx: RequestContext, request: Any) -> Errors:
    """Settle what a request says about records; return an error or None for each partition."""
    errors: Errors = {}
    wanted: list[PartitionAcks] = []
    renews = field(request, "is_renew_ack", False)
    for place, batches in _batches(request):
        if ctx.turns.is_due:
            await ctx.turns.pause()
        if place in errors:
            errors[place] = InvalidRequestError("a partition is in the request twice")
            continue
        errors[place] = None
        try:
            acks = [_checked(each, renews) for each in batches]
            _check_order(acks)
        except InvalidRequestError as error:
            errors[place] = error.with_traceback(None)
        else:
            wanted.append(PartitionAcks(*place, acks))
    if wanted:
        found = await ctx.door.shares.acknowledge(
            request.group_id, request.member_id, wanted, ctx.turns.pause_if_due
        )
        for acks_of, error_of in zip(wanted, found, strict=True):
            errors[acks_of.topic_id, acks_of.partition] = error_of
    return errors


def _batches(request: Any) -> Iterator[tuple[Place, Any]]:
    for topic in request.topics:
        for part in topic.partitions:
            if part.acknowledgement_batches:
                yield (topic.topic_id or NO_ID, part.partition_index), part.acknowledgement_batches


def has_acks(request: Any) -> bool:
    """Return whether a request says something about records."""
    return any(True for _ in _batches(request))


def _checked(batch: Any, renews: bool) -> AckBatch:
    first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
    if not 0 <= first <= last < _MAX_OFFSET:
        raise InvalidRequestError(f"invalid acknowledgement batch from {first} to {last}")
    if not types or (len(types) > 1 and len(types) != last - first + 1):
        raise InvalidRequestError(
            f"{len(types)} acknowledge types for the records from {first} to {last}: use one, or "
            "one for each record"
        )
    if min(types) < 0 or max(types) > _RENEW:
        raise InvalidRequestError("invalid acknowledge type: use 0 to 4")
    if _RENEW in types and not renews:
        raise InvalidRequestError("a renew acknowledgement in a request without IsRenewAck")
    return AckBatch(first, last, types)


def _check_order(acks: Iterable[AckBatch]) -> None:
    end = -1
    for batch in acks:
        if batch.first <= end:
            raise InvalidRequestError(
                f"the acknowledgement batch from {batch.first} follows one that ends at {end}"
            )
        end = batch.last


def end_session(ctx: RequestContext, session: ShareSession) -> None:
    """End a session, and return the records that its member holds."""
    connection = session.connection
    if ctx.connection.share_sessions.close(session):
        ctx.door.shares.leave(*session.key)
    on_close = getattr(connection, "on_close", None)
    if on_close is not None:
        on_close.pop(session, None)
