"""The start offsets of share groups: describe, alter and delete (KIP-932, KIP-1226).

Translates only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidemill.engine.shares.api import ShareOffset
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, grouped, handles
from tidemill.protocols.kafka.error_codes import error_fields

_fields = partial(error_fields, group=True)


@handles(90)
async def handle_describe_share_group_offsets(ctx: RequestContext, request: Any) -> Tree:
    """Answer with the start offsets of groups."""
    return {"groups": [await _described(ctx, group) for group in request.groups]}


async def _described(ctx: RequestContext, group: Any) -> Tree:
    topics = None
    if group.topics is not None:
        topics = {topic.topic_name: tuple(topic.partitions) for topic in group.topics}
    try:
        await ctx.turns.pause_if_due()
        found = await ctx.door.shares.offsets(group.group_id, topics, ctx.turns.pause_if_due)
    except TidemillError as error:
        return {
            "group_id": group.group_id,
            **_fields(error),
        }
    by_topic = grouped((each.topic, each) for each in found)
    return {
        "group_id": group.group_id,
        "topics": [
            {
                "topic_name": name,
                "topic_id": offsets[0].topic_id,
                "partitions": Each(_partition, offsets),
            }
            for name, offsets in by_topic.items()
        ],
    }


def _partition(offset: ShareOffset) -> Tree:
    return {
        "partition_index": offset.partition,
        "start_offset": offset.start,
        "leader_epoch": offset.leader_epoch,
        "lag": offset.lag,
        **_fields(offset.error),
    }


@handles(91, refused=_fields)
async def handle_alter_share_group_offsets(ctx: RequestContext, request: Any) -> Tree:
    """Move the start offsets of an empty group."""
    starts = {
        (topic.topic_name, each.partition_index): each.start_offset
        for topic in request.topics
        for each in topic.partitions
    }
    errors = await ctx.door.shares.alter_offsets(request.group_id, starts, ctx.turns.pause_if_due)
    by_topic = grouped(
        (name, (partition, refused))
        for (name, partition), refused in zip(starts, errors, strict=True)
    )
    return {
        "responses": [
            {
                "topic_name": name,
                "topic_id": _topic_id(ctx, name),
                "partitions": Each(_altered, partitions),
            }
            for name, partitions in by_topic.items()
        ]
    }


def _altered(result: tuple[int, TidemillError | None]) -> Tree:
    partition, error = result
    return {
        "partition_index": partition,
        **_fields(error),
    }


@handles(92, refused=_fields)
async def handle_delete_share_group_offsets(ctx: RequestContext, request: Any) -> Tree:
    """Forget what an empty group has read of topics."""
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
    errors = await ctx.door.shares.delete_offsets(request.group_id, names)

    def deleted(result: tuple[str, TidemillError | None]) -> Tree:
        name, error = result
        return {
            "topic_name": name,
            "topic_id": None if error is not None else _topic_id(ctx, name),
            **_fields(error),
        }

    return {"responses": Each(deleted, list(zip(names, errors, strict=True)))}


def _topic_id(ctx: RequestContext, name: str) -> Any:
    try:
        return ctx.door.topics.get(name).topic_id
    except TidemillError:
        return None
