"""Describe brokers and topics: Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator.

One broker leads every partition, is the controller and coordinates every group. Translates only:
the engine decides whether a topic is created on first use.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from tidemill.engine.api import TopicInfo
from tidemill.engine.authorize import (
    CLUSTER,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Operation,
)
from tidemill.engine.errors import AuthorizationError
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.kafka_codec.declared import METADATA
from tidemill.kafka_codec.messages import Encoded, encode_element
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, field, handles
from tidemill.protocols.kafka.error_codes import MismatchedEndpointError, error_code, error_fields
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.protocols.kafka.node import cluster_id_text
from tidemill.protocols.kafka.operations import allowed_operations
from tidemill.state.errors import InvalidRequestError, UnknownTopicIdError

_GROUP, _TRANSACTION = 0, 1
_COORDINATED = {_GROUP: GROUP, _TRANSACTION: TRANSACTIONAL_ID}
"""Key types of FindCoordinator. 2 (share groups) is not supported yet."""


# --- Metadata ------------------------------------------------------------------------------------


TOGETHER = 64
"""Partitions that are encoded together."""
MOST_PARTS = 512
"""Encoded parts that are kept, each of up to 2 KB: they are enough for 32,768 partitions of a topic
in one version."""


@handles(METADATA)
async def handle_metadata(ctx: RequestContext, request: Any) -> Tree:
    """Answer with the broker, and with all topics or the named ones (KIP-4, KIP-516).

    A topic that is named twice is in the answer once, as in Apache Kafka.
    """
    with_operations = field(request, "include_topic_authorized_operations", False)
    wanted = request.topics
    if wanted is None or (ctx.api_version == 0 and not wanted):
        topics: Sequence[Tree] | Each[TopicInfo, Tree] = Each(
            lambda info: _topic(ctx, info, with_operations), ctx.door.topics.all()
        )
    else:
        create = field(request, "allow_auto_topic_creation", True)
        distinct = {(item.name, field(item, "topic_id", None)): item for item in wanted}
        topics = await ctx.turns.each(
            lambda item: _wanted_topic(ctx, item, create, with_operations), distinct.values()
        )
    return {
        "brokers": [_endpoint(ctx)],
        "cluster_id": cluster_id_text(ctx.door.storage.cluster_id),
        "controller_id": ctx.node.node_id,
        "topics": topics,
        "cluster_authorized_operations": allowed_operations(
            field(request, "include_cluster_authorized_operations", False), ctx.door.access, CLUSTER
        ),
    }


def _endpoint(ctx: RequestContext) -> Tree:
    return {"node_id": ctx.node.node_id, "host": ctx.node.host, "port": ctx.node.port}


async def _wanted_topic(
    ctx: RequestContext, item: Any, create: bool, with_operations: bool
) -> Tree:
    topic_id = field(item, "topic_id", None)
    name = item.name
    try:
        if topic_id is not None and ctx.api_version < 12:
            raise InvalidRequestError(f"Metadata v{ctx.api_version} can't ask by topic id")
        if topic_id is not None:
            info = ctx.door.topics.by_id(topic_id)
        elif name is None:
            raise InvalidRequestError("a topic has neither a name nor an id")
        else:
            info = await _topic_info(ctx, name, create)
    except TidemillError as error:
        if topic_id is not None and isinstance(error, AuthorizationError):
            error = UnknownTopicIdError(f"there is no topic with id {topic_id}")  # not disclosed
        return {
            "error_code": error_code(error),
            "name": name if name is not None or ctx.api_version >= 12 else "",
            "topic_id": topic_id,
        }
    return _topic(ctx, info, with_operations)


async def _topic_info(ctx: RequestContext, name: str, create: bool) -> TopicInfo:
    try:
        return ctx.door.topics.get(name)
    except UnknownTopicOrPartitionError:
        if not create:
            raise
    return await ctx.door.topics.ensure(name)


def _topic(ctx: RequestContext, info: TopicInfo, with_operations: bool) -> Tree:
    return {
        "name": info.name,
        "topic_id": info.topic_id,
        "is_internal": info.internal,
        "partitions": Encoded(info.partitions, _encoded_partitions(ctx, info)),
        "topic_authorized_operations": allowed_operations(
            with_operations, ctx.door.access, TOPIC, info.name
        ),
    }


def _encoded_partitions(ctx: RequestContext, info: TopicInfo) -> Iterator[bytes]:
    """Yield the partitions of a topic: of these, topics differ in the number and the epoch only."""
    epoch = info.leader_epoch
    for first in range(0, info.partitions, TOGETHER):
        part = _partitions_from(ctx.api_version, ctx.node.node_id, epoch, first)
        left = info.partitions - first
        yield part if left >= TOGETHER else part[: len(part) // TOGETHER * left]


@lru_cache(MOST_PARTS)
def _partitions_from(version: int, node: int, epoch: int, first: int) -> bytes:
    """Encode ``TOGETHER`` partitions. All of them have the same length."""
    path = ("topics", "partitions")
    parts = range(first, first + TOGETHER)
    return b"".join(
        encode_element(METADATA, version, path, _partition(node, epoch, index)) for index in parts
    )


def _partition(node: int, epoch: int, index: int) -> Tree:
    return {
        "partition_index": index,
        "leader_id": node,
        "leader_epoch": epoch,
        "replica_nodes": (node,),
        "isr_nodes": (node,),
    }


# --- DescribeCluster -----------------------------------------------------------------------------


@handles(60)
def handle_describe_cluster(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeCluster: a cluster of one broker (KIP-700, KIP-919)."""
    endpoint_type = field(request, "endpoint_type", 1)
    if endpoint_type != 1:
        error = MismatchedEndpointError(
            f"endpoint type {endpoint_type} is not supported: there are no separate controllers"
        )
        return {
            **error_fields(error),
            "endpoint_type": endpoint_type,
        }
    return {
        "endpoint_type": endpoint_type,
        "cluster_id": cluster_id_text(ctx.door.storage.cluster_id),
        "controller_id": ctx.node.node_id,
        "brokers": [{"broker_id": ctx.node.node_id, "host": ctx.node.host, "port": ctx.node.port}],
        "cluster_authorized_operations": allowed_operations(
            request.include_cluster_authorized_operations, ctx.door.access, CLUSTER
        ),
    }


# --- DescribeTopicPartitions ---------------------------------------------------------------------

MAX_DESCRIBED = 2000
"""Partitions per response (max.request.partition.size.limit)."""
SORTED_TOGETHER = 2000
"""Names that are sorted in one step."""


@handles(75)
async def handle_describe_topic_partitions(ctx: RequestContext, request: Any) -> Tree:
    """Answer with topics ordered by name, one page of partitions at a time (KIP-966)."""
    limit = request.response_partition_limit
    left = min(limit, MAX_DESCRIBED) if limit > 0 else MAX_DESCRIBED
    cursor = request.cursor
    first_name = cursor.topic_name if cursor is not None else ""
    names = await _sorted(ctx, [topic.name for topic in request.topics])
    if not request.topics:
        names = sorted(info.name for info in ctx.door.topics.all())
    topics: list[Tree] = []
    for name in names:
        if ctx.turns.is_due:
            await ctx.turns.pause()
        if name < first_name:
            continue
        start = max(cursor.partition_index, 0) if cursor is not None and name == first_name else 0
        if left == 0:
            return {
                "topics": topics,
                "next_cursor": {"topic_name": name, "partition_index": start},
            }
        try:
            info = ctx.door.topics.get(name)
        except TidemillError as error:
            topics.append({"error_code": error_code(error), "name": name})
            continue
        end = min(info.partitions, start + left)
        topics.append(_described(ctx, info, start, end))
        left -= max(end - start, 0)
        if end < info.partitions:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


async def _sorted(ctx: RequestContext, names: Sequence[str]) -> Iterable[str]:
    """Return the distinct names in order."""
    parts = []
    for start in range(0, len(names), SORTED_TOGETHER):
        parts.append(sorted(names[start : start + SORTED_TOGETHER]))
        if ctx.turns.is_due:
            await ctx.turns.pause()
    return (name for name, _ in itertools.groupby(heapq.merge(*parts)))


def _described(ctx: RequestContext, info: TopicInfo, start: int, end: int) -> Tree:
    tree = _topic(ctx, info, with_operations=True)
    # Lists, not nulls: a null list of eligible leaders crashes the Java client.
    known = {"eligible_leader_replicas": (), "last_known_elr": ()}
    node, epoch = ctx.node.node_id, info.leader_epoch
    tree["partitions"] = Each(
        lambda index: _partition(node, epoch, index) | known, range(start, end)
    )
    return tree


# --- FindCoordinator -----------------------------------------------------------------------------


@handles(10)
def handle_find_coordinator(ctx: RequestContext, request: Any) -> Tree:
    """Answer FindCoordinator: it is always this broker (KIP-98, KIP-699)."""
    key_type = field(request, "key_type", _GROUP)
    if ctx.api_version < 4:
        return _coordinator(ctx, key_type, request.key)
    return {
        "coordinators": Each(
            lambda key: {"key": key, **_coordinator(ctx, key_type, key)}, request.coordinator_keys
        )
    }


def _coordinator(ctx: RequestContext, key_type: int, key: str) -> Tree:
    error: TidemillError | None
    kind = _COORDINATED.get(key_type)
    if kind is None:
        error = UnsupportedVersionError(f"coordinators of key type {key_type} are not supported")
    else:
        error = ctx.door.access.refusal(Operation.DESCRIBE, kind, key)
    here = _endpoint(ctx) if error is None else {"node_id": -1, "host": "", "port": -1}
    return here | error_fields(error)
