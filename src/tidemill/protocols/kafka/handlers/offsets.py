"""Positions in a log: ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Translates only. The negative timestamps by which ListOffsets names positions are Kafka's, and are
known here only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidemill.engine.api import Isolation, OffsetAt, Position
from tidemill.errors import TidemillError
from tidemill.kafka_codec.declared import LIST_OFFSETS
from tidemill.kafka_codec.messages import Encoded, element_packer, encode_element
from tidemill.protocols.kafka.apis import RequestContext, Tree, each_partition, field, handles
from tidemill.protocols.kafka.error_codes import error_code
from tidemill.protocols.kafka.errors import UnsupportedVersionError

LATEST, EARLIEST = -1, -2
MAX_TIMESTAMP = -3
"""KIP-734."""
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
"""KIP-405: tiered storage. All records are local here."""
NO_EPOCH = -1

_POSITIONS = {
    LATEST: Position.LATEST,
    EARLIEST: Position.EARLIEST,
    MAX_TIMESTAMP: Position.MAX_TIMESTAMP,
    EARLIEST_LOCAL: Position.EARLIEST,
}
_ENDS = {LATEST: Position.LATEST, EARLIEST: Position.EARLIEST}
"""Those that every version has."""
_SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""Special timestamp -> first version in which it is valid."""
_READ_COMMITTED = 1
_TO_THE_END = -1
"""DeleteRecords: delete up to the high watermark."""


TOGETHER = 250
"""Partitions that are looked up together."""
_PATH = ("topics", "partitions")
_FOUND = ("partition_index", "timestamp", "offset", "leader_epoch")


@handles(LIST_OFFSETS)
async def handle_list_offsets(ctx: RequestContext, request: Any) -> Tree:
    """Answer with the offset for a time or a special position (KIP-79, KIP-734, KIP-1005).

    Clients ask for the ends of thousands of partitions, so those are encoded as they are found.
    """
    isolation = (
        Isolation.READ_COMMITTED
        if field(request, "isolation_level", 0) == _READ_COMMITTED
        else Isolation.READ_UNCOMMITTED
    )

    topics: list[Tree] = []
    turns, pack = ctx.turns.turns, element_packer(LIST_OFFSETS, ctx.api_version, _PATH, _FOUND)
    for topic in request.topics:
        name, parts = topic.name, topic.partitions
        encoded = []
        for at in range(0, len(parts), TOGETHER):
            if turns.is_due:
                await ctx.turns.pause()
            some = parts[at : at + TOGETHER]
            ends = _encode_ends(ctx, name, some, isolation, pack)
            encoded.append(ends or await _encode_offsets(ctx, name, some, isolation))
        topics.append({"name": name, "partitions": Encoded(len(parts), encoded)})
    return {"topics": topics}


def _encode_ends(
    ctx: RequestContext,
    topic: str,
    parts: Sequence[Any],
    isolation: Isolation,
    pack: Callable[..., bytes],
) -> bytes | None:
    """Return the encoded answers; None unless all are known without an error and without a wait."""
    has_epoch = ctx.api_version >= 4
    wanted = [
        (
            part.partition_index,
            _ENDS.get(part.timestamp, 0),
            _epoch(part.current_leader_epoch) if has_epoch else None,
        )
        for part in parts
    ]
    try:
        found = ctx.door.records.find_now(topic, wanted, isolation)
    except TidemillError:  # refused
        return None
    encoded = []
    for part, known in zip(parts, found, strict=True):
        if known is None:
            return None
        encoded.append(pack(part.partition_index, -1, *known))
    return b"".join(encoded)


async def _encode_offsets(
    ctx: RequestContext, topic: str, parts: Sequence[Any], isolation: Isolation
) -> bytes:
    """Return the encoded answers. Each can take a search, or a wait for the disk."""
    trees = await ctx.turns.each(lambda part: _list_offset(ctx, topic, part, isolation), parts)
    version = ctx.api_version
    return b"".join(encode_element(LIST_OFFSETS, version, _PATH, tree) for tree in trees)


async def _list_offset(ctx: RequestContext, topic: str, part: Any, isolation: Isolation) -> Tree:
    tree: Tree = {"partition_index": part.partition_index}
    oldest = _SPECIAL_SINCE.get(part.timestamp, 1 if part.timestamp >= -2 else 99)
    if ctx.api_version < oldest:
        error = UnsupportedVersionError(
            f"timestamp {part.timestamp} in ListOffsets v{ctx.api_version}"
        )
        return tree | {"error_code": error_code(error)}
    try:
        found = await _find(ctx, topic, part, isolation)
    except TidemillError as error:
        return tree | {"error_code": error_code(error)}
    if found is None:
        return tree | {"timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}
    return tree | {
        "timestamp": -1 if found.timestamp_ms is None else found.timestamp_ms,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def _find(
    ctx: RequestContext, topic: str, part: Any, isolation: Isolation
) -> OffsetAt | None:
    records = ctx.door.records
    epoch = _epoch(field(part, "current_leader_epoch", NO_EPOCH))
    if part.timestamp == LATEST_TIERED:
        # Nothing is tiered. Topic, partition and leader epoch are checked all the same.
        await records.find_offset(topic, part.partition_index, Position.EARLIEST, isolation, epoch)
        return None
    at = _POSITIONS.get(part.timestamp, part.timestamp)
    return await records.find_offset(topic, part.partition_index, at, isolation, epoch)


def _epoch(leader_epoch: int) -> int | None:
    return None if leader_epoch == NO_EPOCH else leader_epoch


@handles(23)
def handle_offset_for_leader_epoch(ctx: RequestContext, request: Any) -> Tree:
    """Answer with the end offset of a leader epoch, to find truncated logs (KIP-320)."""
    return {"topics": each_partition(request.topics, partial(_end_offset, ctx), key="topic")}


def _end_offset(ctx: RequestContext, topic: str, part: Any) -> Tree:
    tree: Tree = {"partition": part.partition}
    try:
        end = ctx.door.records.end_of_epoch(
            topic, part.partition, part.leader_epoch, _epoch(part.current_leader_epoch)
        )
    except TidemillError as error:
        return tree | {"error_code": error_code(error)}
    epoch, end_offset = end or (NO_EPOCH, -1)
    return tree | {"leader_epoch": epoch, "end_offset": end_offset}


@handles(21)
async def handle_delete_records(ctx: RequestContext, request: Any) -> Tree:
    """Delete the beginning of logs (KIP-107)."""

    async def one_topic(topic: Any) -> Tree:
        answers = await ctx.turns.each(
            lambda part: _delete_records(ctx, topic.name, part), topic.partitions
        )
        return {"name": topic.name, "partitions": answers}

    return {"topics": await ctx.turns.each(one_topic, request.topics)}


async def _delete_records(ctx: RequestContext, topic: str, part: Any) -> Tree:
    tree: Tree = {"partition_index": part.partition_index}
    try:
        before = None if part.offset == _TO_THE_END else part.offset
        low = await ctx.door.records.delete_before(topic, part.partition_index, before)
    except TidemillError as error:
        return tree | {"low_watermark": -1, "error_code": error_code(error)}
    return tree | {"low_watermark": low}
