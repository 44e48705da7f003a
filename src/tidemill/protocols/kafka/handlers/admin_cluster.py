"""Administration of the cluster: log folders, and the quorum."""

from __future__ import annotations

from typing import Any

from tidemill.engine.api import PartitionSize
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, grouped, handles
from tidemill.protocols.kafka.error_codes import error_code, error_fields
from tidemill.protocols.kafka.replicas import move_replica
from tidemill.state.errors import InvalidRequestError

METADATA_TOPIC = "__cluster_metadata"
"""The name of KRaft's metadata log in DescribeQuorum. No other topic has a quorum."""


@handles(35)
async def handle_describe_log_dirs(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeLogDirs: there is one folder. ``topics`` None asks for all partitions."""
    asked = (
        None
        if request.topics is None
        else {
            (topic.topic, partition) for topic in request.topics for partition in topic.partitions
        }
    )
    try:
        log_dir = ctx.door.storage.usage(asked)
        partitions = await ctx.turns.collect(log_dir.partitions)
    except TidemillError as error:
        code = error_code(error)
        # Before v3 only a folder can carry an error.
        folders = [] if ctx.api_version >= 3 else [{"error_code": code, "log_dir": ""}]
        return {"error_code": code, "results": folders}
    topics = grouped((size.topic, size) for size in partitions)
    return {
        "results": [
            {
                "log_dir": log_dir.path,
                "topics": Each(
                    lambda topic: {"name": topic[0], "partitions": Each(_size, topic[1])},
                    topics.items(),
                ),
                "total_bytes": log_dir.total_bytes,
                "usable_bytes": log_dir.usable_bytes,
            }
        ],
    }


def _size(size: PartitionSize) -> Tree:
    return {"partition_index": size.partition, "partition_size": size.size_bytes}


@handles(34)
async def handle_alter_replica_log_dirs(ctx: RequestContext, request: Any) -> Tree:
    """Answer AlterReplicaLogDirs (KIP-113)."""
    topics: dict[str, list[dict[str, int]]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            answers = topics.setdefault(topic.name, [])
            for partition in topic.partitions:
                outcome = move_replica(ctx.door, folder.path, topic.name, partition)
                answers.append({"partition_index": partition, "error_code": error_code(outcome)})
                await ctx.turns.pause_if_due()
    return {
        "results": [
            {"topic_name": name, "partitions": partitions} for name, partitions in topics.items()
        ]
    }


@handles(55, refused=error_fields)
def handle_describe_quorum(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeQuorum (KIP-595): one voter, the leader. Its log is the catalog's."""
    asked = [
        (topic.topic_name, p.partition_index) for topic in request.topics for p in topic.partitions
    ]
    if asked != [(METADATA_TOPIC, 0)]:
        raise InvalidRequestError(f"only partition 0 of {METADATA_TOPIC} has a quorum")
    log = ctx.door.storage.catalog_log()
    now_ms = ctx.door.clock.now_ms()
    voter = {
        "replica_id": ctx.node.node_id,
        "log_end_offset": log.end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "leader_id": ctx.node.node_id,
        "leader_epoch": log.leader_epoch,
        "high_watermark": log.high_watermark,
        "current_voters": [voter],
    }
    listener = {"name": "KAFKA", "host": ctx.node.host, "port": ctx.node.port}
    return {
        "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
        "nodes": [{"node_id": ctx.node.node_id, "listeners": [listener]}],
    }
