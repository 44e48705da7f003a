"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Translates only. Requests name topics up to v9, and use their ids from v10 on (KIP-848). An unknown
id is an error of its partitions, never of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from tidemill.engine.api import CommitRequest, CommittedOffset, OffsetToCommit
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import (
    Each,
    RequestContext,
    Tree,
    each_partition,
    field,
    grouped,
    handles,
    outcome_of_each,
    partition_codes,
)
from tidemill.protocols.kafka.error_codes import error_code

code = partial(error_code, group=True)

NO_OFFSET = -1
NO_EPOCH = -1


@handles(8)
async def handle_offset_commit(ctx: RequestContext, request: Any) -> Tree:
    """Commit offsets."""
    by_id = ctx.api_version >= 10
    names = await ctx.turns.collect(_name(ctx, topic, by_id=by_id) for topic in request.topics)
    offsets = await ctx.turns.collect(
        offset_to_commit(name, partition)
        for name, topic in zip(names, request.topics, strict=True)
        if isinstance(name, str)
        for partition in topic.partitions
    )

    async def commit(part: Sequence[OffsetToCommit]) -> Sequence[TidemillError | None]:
        request_of_part = CommitRequest(
            group_id=request.group_id,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=field(request, "group_instance_id", None),
            offsets=tuple(part),
            retention_ms=field(request, "retention_time", -1),
            knows_epochs=ctx.api_version >= 9,
        )
        return await outcome_of_each(ctx.door.groups.commit(request_of_part), len(part))

    passed_on = iter(await ctx.turns.in_parts(commit, offsets))

    def answer(name: str | TidemillError, partition: Any) -> Tree:
        error = next(passed_on) if isinstance(name, str) else name
        return {"partition_index": partition.partition_index, "error_code": code(error)}

    return {
        "topics": Each(
            lambda pair: {
                **_topic_key(pair[1], by_id=by_id),
                "partitions": Each(partial(answer, pair[0]), pair[1].partitions),
            },
            list(zip(names, request.topics, strict=True)),
        )
    }


def offset_to_commit(topic: str, partition: Any) -> OffsetToCommit:
    """Return what OffsetCommit and TxnOffsetCommit say about a partition."""
    return OffsetToCommit(
        topic=topic,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=field(partition, "committed_leader_epoch", NO_EPOCH),
        metadata=partition.committed_metadata,
    )


@handles(9)
async def handle_offset_fetch(ctx: RequestContext, request: Any) -> Tree:
    """Answer with committed offsets: of one group up to v7, of several from v8 on (KIP-709)."""
    require_stable = field(request, "require_stable", False)
    if ctx.api_version >= 8:
        return {
            "groups": Each(
                lambda group: {
                    "group_id": group.group_id,
                    **_fetch_group(
                        ctx,
                        group.group_id,
                        group.topics,
                        require_stable=require_stable,
                        member_id=field(group, "member_id", None),
                        member_epoch=field(group, "member_epoch", NO_EPOCH),
                    ),
                },
                request.groups,
            )
        }
    answer = _fetch_group(ctx, request.group_id, request.topics, require_stable=require_stable)
    if ctx.api_version < 2 and "error_code" in answer:
        # v1 has no error field for the request: each partition carries the error.
        answer["topics"] = each_partition(
            request.topics,
            lambda _, partition: _failed(partition, answer["error_code"]),
            given="partition_indexes",
        )
    return answer


def _fetch_group(
    ctx: RequestContext,
    group_id: str,
    topics: Any,
    *,
    require_stable: bool,
    member_id: str | None = None,
    member_epoch: int = NO_EPOCH,
) -> dict[str, Any]:
    """Return one group's offsets. ``topics`` None asks for all."""
    by_id = ctx.api_version >= 10

    def look_up(name: str, partition: int) -> Tree:
        at = (name, partition)
        found = ctx.door.groups.committed(group_id, [at], require_stable)
        return _fetched(partition, found.get(at))

    try:
        ctx.door.groups.check_fetch(group_id, member_id, member_epoch)
        if topics is None:
            positions = ctx.door.groups.positions(group_id)
            return {"topics": _all_topics(ctx, positions, look_up, by_id=by_id)}
        ctx.door.groups.committed(group_id, (), require_stable)  # checks access to the group
    except TidemillError as error:
        return {"error_code": code(error)}

    def answer(topic: Any) -> Tree:
        name = _name(ctx, topic, by_id=by_id)
        one = (
            partial(look_up, name)
            if isinstance(name, str)
            else lambda partition: _failed(partition, code(name))
        )
        return {
            **_topic_key(topic, by_id=by_id),
            "partitions": Each(one, topic.partition_indexes),
        }

    return {"topics": Each(answer, topics)}


def _all_topics(
    ctx: RequestContext,
    positions: Iterable[tuple[str, int]],
    look_up: Callable[[str, int], Tree],
    *,
    by_id: bool,
) -> list[Tree]:
    """Return all committed offsets by topic. With ids, topics that no longer exist are left out."""
    results = []
    for name, partitions in sorted(grouped(positions).items()):
        key: dict[str, Any] = {"name": name}
        if by_id:
            try:
                key = {"topic_id": ctx.door.topics.get(name).topic_id}
            except TidemillError:
                continue
        results.append({**key, "partitions": Each(partial(look_up, name), sorted(partitions))})
    return results


def _fetched(partition: int, committed: CommittedOffset | TidemillError | None) -> dict[str, Any]:
    """Return a partition's part of the answer.

    Without a committed offset it has offset -1 and no error. If the consumer requires stable
    offsets and an open transaction has committed one, it has an error (KIP-447).
    """
    if committed is None:
        return _failed(partition, 0)
    if isinstance(committed, TidemillError):
        return _failed(partition, code(committed))
    return {
        "partition_index": partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    }


def _failed(partition: int, error: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET,
        "metadata": "",
        "error_code": error,
    }


@handles(47, refused=lambda error: {"error_code": code(error)})
async def handle_offset_delete(ctx: RequestContext, request: Any) -> Tree:
    """Delete committed offsets (KIP-496)."""
    asked = await ctx.turns.collect(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    outcomes = await ctx.turns.in_parts(
        lambda part: ctx.door.groups.delete_offsets(request.group_id, part), asked
    )
    return {"topics": partition_codes(request.topics, map(code, outcomes))}


def _topic_key(topic: Any, *, by_id: bool) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if by_id else {"name": topic.name}


def _name(ctx: RequestContext, topic: Any, *, by_id: bool) -> str | TidemillError:
    """Return a topic's name, or the error where the id is unknown or access is denied."""
    if not by_id:
        return str(topic.name)
    try:
        return ctx.door.topics.by_id(topic.topic_id or UUID(int=0)).name
    except TidemillError as error:
        return error
