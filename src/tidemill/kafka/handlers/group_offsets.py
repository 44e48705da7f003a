"""Committed offsets: OffsetCommit, OffsetFetch, OffsetDelete.

Translates only. Topics are named up to v9 and known by id from v10 on (KIP-848); an id that no
topic has is an error of its partitions, never of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from tidemill.broker.api import CommitRequest, CommittedOffset, OffsetToCommit
from tidemill.errors import TidemillError, UnknownTopicIdError
from tidemill.kafka.apis import RequestContext, Tree, field, handles, millis
from tidemill.kafka.errors import error_code

code = partial(error_code, group=True)

NO_OFFSET = -1
NO_EPOCH = -1
UNKNOWN_ID = code(UnknownTopicIdError("no topic has this id"))


@handles(8)
async def handle_offset_commit(ctx: RequestContext, request: Any) -> Tree:
    """OffsetCommit."""
    by_id = ctx.api_version >= 10
    names = _names(ctx, request.topics, by_id=by_id)
    offsets = [
        OffsetToCommit(
            topic=name,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=field(partition, "committed_leader_epoch", NO_EPOCH),
            metadata=partition.committed_metadata,
        )
        for name, topic in zip(names, request.topics, strict=True)
        if name is not None
        for partition in topic.partitions
    ]
    commit = CommitRequest(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=field(request, "group_instance_id", None),
        offsets=tuple(offsets),
        retention_ms=(millis(request.retention_time) if hasattr(request, "retention_time") else -1),
    )
    outcomes: list[TidemillError | None]
    try:
        outcomes = await ctx.broker.commit_offsets(commit)
    except TidemillError as error:
        # The response has no error of its own: each partition carries it.
        outcomes = [error] * len(offsets)
    passed_on = iter(outcomes)
    return {
        "topics": [
            {
                **_topic_key(topic, by_id=by_id),
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": UNKNOWN_ID if name is None else code(next(passed_on)),
                    }
                    for partition in topic.partitions
                ],
            }
            for name, topic in zip(names, request.topics, strict=True)
        ]
    }


@handles(9)
async def handle_offset_fetch(ctx: RequestContext, request: Any) -> Tree:
    """OffsetFetch: one group up to v7, several from v8 on (KIP-709)."""
    require_stable = field(request, "require_stable", False)
    if ctx.api_version >= 8:
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    **_fetch_group(
                        ctx,
                        group.group_id,
                        group.topics,
                        require_stable=require_stable,
                        member_id=field(group, "member_id", None),
                        generation=field(group, "member_epoch", -1),
                    ),
                }
                for group in request.groups
            ]
        }
    answer = _fetch_group(ctx, request.group_id, request.topics, require_stable=require_stable)
    if ctx.api_version < 2 and answer["error_code"]:
        # v1 has no error of its own: each partition carries it.
        answer["topics"] = [
            _fetched_topic(
                {"name": topic.name},
                [_failed(partition, answer["error_code"]) for partition in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    return answer


def _fetch_group(
    ctx: RequestContext,
    group_id: str,
    topics: Any,
    *,
    require_stable: bool,
    member_id: str | None = None,
    generation: int = -1,
) -> dict[str, Any]:
    """One group's offsets: ``topics`` None asks for all that are committed."""
    by_id = ctx.api_version >= 10
    try:
        if topics is None:
            found = ctx.broker.fetch_offsets(group_id, None, require_stable, member_id, generation)
            return {"error_code": 0, "topics": _all_topics(ctx, found, by_id=by_id)}
        names = _names(ctx, topics, by_id=by_id)
        asked = [
            (name, partition)
            for name, topic in zip(names, topics, strict=True)
            if name is not None
            for partition in topic.partition_indexes
        ]
        found = ctx.broker.fetch_offsets(group_id, asked, require_stable, member_id, generation)
    except TidemillError as error:
        return {"error_code": code(error), "topics": []}
    return {
        "error_code": 0,
        "topics": [
            _fetched_topic(
                _topic_key(topic, by_id=by_id),
                [
                    _failed(partition, UNKNOWN_ID)
                    if name is None
                    else _fetched(partition, found.get((name, partition)))
                    for partition in topic.partition_indexes
                ],
            )
            for name, topic in zip(names, topics, strict=True)
        ],
    }


def _all_topics(
    ctx: RequestContext,
    found: Mapping[tuple[str, int], CommittedOffset | TidemillError],
    *,
    by_id: bool,
) -> list[dict[str, Any]]:
    """Everything committed, by topic; with ids, topics that no longer exist are left out."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, partition), committed in sorted(found.items()):
        topics.setdefault(name, []).append(_fetched(partition, committed))
    results = []
    for name, partitions in topics.items():
        key: dict[str, Any] = {"name": name}
        if by_id:
            try:
                key = {"topic_id": ctx.broker.topic(name).topic_id}
            except TidemillError:
                continue
        results.append(_fetched_topic(key, partitions))
    return results


def _fetched_topic(key: dict[str, Any], partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {**key, "partitions": partitions}


def _fetched(partition: int, committed: CommittedOffset | TidemillError | None) -> dict[str, Any]:
    """A partition without a committed offset is no error: offset -1. One whose offset an open
    transaction has committed is, where the consumer requires stable offsets (KIP-447)."""
    if committed is None:
        return _failed(partition, 0)
    if isinstance(committed, TidemillError):
        return _failed(partition, code(committed))
    return {
        "partition_index": partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": 0,
    }


def _failed(partition: int, error: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET,
        "committed_leader_epoch": NO_EPOCH,
        "metadata": "",
        "error_code": error,
    }


@handles(47)
async def handle_offset_delete(ctx: RequestContext, request: Any) -> Tree:
    """OffsetDelete (KIP-496)."""
    asked = [
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    try:
        outcomes = iter(await ctx.broker.delete_offsets(request.group_id, asked))
    except TidemillError as error:
        return {"error_code": code(error), "topics": []}
    return {
        "error_code": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": code(next(outcomes)),
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _topic_key(topic: Any, *, by_id: bool) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if by_id else {"name": topic.name}


def _names(ctx: RequestContext, topics: Iterable[Any], *, by_id: bool) -> list[str | None]:
    """Each topic's name, or None where no topic has the id. Looked up once per request."""
    return [_name_of(ctx, topic.topic_id) if by_id else topic.name for topic in topics]


def _name_of(ctx: RequestContext, topic_id: UUID | None) -> str | None:
    if topic_id is None:
        return None
    try:
        return ctx.broker.topic_by_id(topic_id).name
    except UnknownTopicIdError:
        return None
