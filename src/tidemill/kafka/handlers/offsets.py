"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: positions in a log.

Translates only.
"""

from __future__ import annotations

from typing import Any

from tidemill.broker.api import EARLIEST_LOCAL, LATEST_TIERED, MAX_TIMESTAMP, Isolation
from tidemill.errors import TidemillError, UnsupportedVersionError
from tidemill.kafka.apis import RequestContext, Tree, field, handles
from tidemill.kafka.errors import error_code

_SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""Special timestamp -> first version that may ask for it."""


@handles(2)
async def handle_list_offsets(ctx: RequestContext, request: Any) -> Tree:
    """The offset for a timestamp or a special position (KIP-79, KIP-734, KIP-1005)."""
    isolation = (
        Isolation.READ_COMMITTED
        if field(request, "isolation_level", 0) == Isolation.READ_COMMITTED
        else Isolation.READ_UNCOMMITTED
    )
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    await _list_offset(ctx, topic.name, part, isolation)
                    for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _list_offset(ctx: RequestContext, topic: str, part: Any, isolation: Isolation) -> Tree:
    tree: Tree = {"partition_index": part.partition_index}
    oldest = _SPECIAL_SINCE.get(part.timestamp, 1 if part.timestamp >= -2 else 99)
    if ctx.api_version < oldest:
        error = UnsupportedVersionError(
            f"timestamp {part.timestamp} in ListOffsets v{ctx.api_version}"
        )
        return tree | {"error_code": error_code(error)}
    try:
        found = await ctx.broker.list_offset(
            topic,
            part.partition_index,
            part.timestamp,
            isolation,
            field(part, "current_leader_epoch", -1),
        )
    except TidemillError as error:
        return tree | {"error_code": error_code(error)}
    return tree | {
        "timestamp": found.timestamp_ms,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


@handles(23)
def handle_offset_for_leader_epoch(ctx: RequestContext, request: Any) -> Tree:
    """The end offset of a leader epoch, by which clients find truncation (KIP-320)."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_end_offset(ctx, topic.topic, part) for part in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _end_offset(ctx: RequestContext, topic: str, part: Any) -> Tree:
    tree: Tree = {"partition": part.partition}
    try:
        epoch, end_offset = ctx.broker.end_offset_for_epoch(
            topic, part.partition, part.leader_epoch, part.current_leader_epoch
        )
    except TidemillError as error:
        return tree | {"error_code": error_code(error)}
    return tree | {"leader_epoch": epoch, "end_offset": end_offset}


@handles(21)
async def handle_delete_records(ctx: RequestContext, request: Any) -> Tree:
    """Cut off the beginning of logs (KIP-107)."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    await _delete_records(ctx, topic.name, part) for part in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _delete_records(ctx: RequestContext, topic: str, part: Any) -> Tree:
    tree: Tree = {"partition_index": part.partition_index}
    try:
        low = await ctx.broker.delete_records(topic, part.partition_index, part.offset)
    except TidemillError as error:
        return tree | {"low_watermark": -1, "error_code": error_code(error)}
    return tree | {"low_watermark": low}
