"""Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator: who and what is there.

One broker leads every partition, is the controller and coordinates every group. Translates only;
whether a topic may be created on first use is the broker's decision.
"""

from __future__ import annotations

from typing import Any

from tidemill.broker.api import TopicInfo
from tidemill.errors import (
    InvalidRequestError,
    TidemillError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tidemill.kafka.apis import RequestContext, Tree, field, handles
from tidemill.kafka.errors import MismatchedEndpointError, error_code, error_message

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def operations(*codes: int) -> int:
    """Kafka's bit field of allowed ACL operations (KIP-430). Without an authorizer: all."""
    return sum(1 << code for code in codes)


TOPIC_OPERATIONS = operations(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
CLUSTER_OPERATIONS = operations(
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)
NOT_ASKED = -2147483648

_GROUP, _TRANSACTION = 0, 1
"""Key types of FindCoordinator. 2 (share groups) is not offered yet."""


# --- Metadata ------------------------------------------------------------------------------------


@handles(3)
async def handle_metadata(ctx: RequestContext, request: Any) -> Tree:
    """Brokers, and all topics or the named ones (KIP-4, KIP-516)."""
    broker = ctx.broker
    with_operations = field(request, "include_topic_authorized_operations", False)
    wanted = request.topics
    if wanted is None or (ctx.api_version == 0 and not wanted):
        topics = [_topic(ctx, info, with_operations) for info in broker.topics()]
    else:
        create = field(request, "allow_auto_topic_creation", True)
        topics = [await _wanted_topic(ctx, item, create, with_operations) for item in wanted]
    return {
        "brokers": [_endpoint(ctx)],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS
            if field(request, "include_cluster_authorized_operations", False)
            else NOT_ASKED
        ),
    }


def _endpoint(ctx: RequestContext) -> Tree:
    broker = ctx.broker
    return {
        "node_id": broker.node_id,
        "host": broker.advertised_host,
        "port": broker.advertised_port,
    }


async def _wanted_topic(
    ctx: RequestContext, item: Any, create: bool, with_operations: bool
) -> Tree:
    topic_id = field(item, "topic_id", None)
    name = item.name
    try:
        if topic_id is not None and ctx.api_version < 12:
            raise InvalidRequestError(f"Metadata v{ctx.api_version} can't ask by topic id")
        if topic_id is not None:
            info = ctx.broker.topic_by_id(topic_id)
        elif name is None:
            raise InvalidRequestError("neither a topic's name nor its id is given")
        else:
            info = await _topic_info(ctx, name, create)
    except TidemillError as error:
        return {
            "error_code": error_code(error),
            "name": name if name is not None or ctx.api_version >= 12 else "",
            "topic_id": topic_id,
        }
    return _topic(ctx, info, with_operations)


async def _topic_info(ctx: RequestContext, name: str, create: bool) -> TopicInfo:
    try:
        return ctx.broker.topic(name)
    except UnknownTopicOrPartitionError:
        if not create:
            raise
    return await ctx.broker.ensure_topic(name)


def _topic(ctx: RequestContext, info: TopicInfo, with_operations: bool) -> Tree:
    return {
        "name": info.name,
        "topic_id": info.topic_id,
        "is_internal": info.internal,
        "partitions": [_partition(ctx, info, index) for index in range(info.partitions)],
        "topic_authorized_operations": TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    }


def _partition(ctx: RequestContext, info: TopicInfo, index: int) -> Tree:
    node = ctx.broker.node_id
    return {
        "partition_index": index,
        "leader_id": node,
        "leader_epoch": info.leader_epoch,
        "replica_nodes": (node,),
        "isr_nodes": (node,),
    }


# --- DescribeCluster -----------------------------------------------------------------------------


@handles(60)
def handle_describe_cluster(ctx: RequestContext, request: Any) -> Tree:
    """The cluster of one (KIP-700, KIP-919)."""
    broker = ctx.broker
    endpoint_type = field(request, "endpoint_type", 1)
    if endpoint_type != 1:
        error = MismatchedEndpointError(
            f"endpoint type {endpoint_type}: this is a broker, there are no separate controllers"
        )
        return {
            "error_code": error_code(error),
            "error_message": error_message(error),
            "endpoint_type": endpoint_type,
        }
    return {
        "endpoint_type": endpoint_type,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": [
            {
                "broker_id": broker.node_id,
                "host": broker.advertised_host,
                "port": broker.advertised_port,
            }
        ],
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    }


# --- DescribeTopicPartitions ---------------------------------------------------------------------

MAX_DESCRIBED = 2000
"""Partitions per response (max.request.partition.size.limit)."""


@handles(75)
def handle_describe_topic_partitions(ctx: RequestContext, request: Any) -> Tree:
    """Topics in order of their names, a page of partitions at a time (KIP-966)."""
    limit = request.response_partition_limit
    room = min(limit, MAX_DESCRIBED) if limit > 0 else MAX_DESCRIBED
    cursor = request.cursor
    first_name = cursor.topic_name if cursor is not None else ""
    names = sorted({topic.name for topic in request.topics})
    if not names:
        names = sorted(info.name for info in ctx.broker.topics())
    topics: list[Tree] = []
    for name in names:
        if name < first_name:
            continue
        start = max(cursor.partition_index, 0) if cursor is not None and name == first_name else 0
        if room == 0:
            return {
                "topics": topics,
                "next_cursor": {"topic_name": name, "partition_index": start},
            }
        try:
            info = ctx.broker.topic(name)
        except TidemillError as error:
            topics.append({"error_code": error_code(error), "name": name})
            continue
        end = min(info.partitions, start + room)
        topics.append(_described(ctx, info, start, end))
        room -= max(end - start, 0)
        if end < info.partitions:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


def _described(ctx: RequestContext, info: TopicInfo, start: int, end: int) -> Tree:
    tree = _topic(ctx, info, with_operations=True)
    # Lists, not nulls: a null list of eligible leaders crashes the Java client.
    tree["partitions"] = [
        _partition(ctx, info, index) | {"eligible_leader_replicas": (), "last_known_elr": ()}
        for index in range(start, end)
    ]
    return tree


# --- FindCoordinator -----------------------------------------------------------------------------


@handles(10)
def handle_find_coordinator(ctx: RequestContext, request: Any) -> Tree:
    """Always this broker (KIP-98, KIP-699)."""
    key_type = field(request, "key_type", _GROUP)
    error: TidemillError | None = None
    if key_type not in (_GROUP, _TRANSACTION):
        error = UnsupportedVersionError(f"coordinators of key type {key_type} are not offered")
    here = _endpoint(ctx) if error is None else {"node_id": -1, "host": "", "port": -1}
    answer = here | {"error_code": error_code(error), "error_message": error_message(error)}
    if ctx.api_version < 4:
        return answer
    return {"coordinators": [{"key": key, **answer} for key in request.coordinator_keys]}
