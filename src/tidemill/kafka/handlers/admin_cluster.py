"""Administration of the cluster: log folders, access control, quotas, credentials.

tidemill is one broker without an authorizer, quotas or SCRAM users; these APIs say so in the way
Apache Kafka does when it is set up likewise, because admin tools ask them on every page.
"""

from __future__ import annotations

from typing import Any

from tidemill.errors import (
    InvalidRequestError,
    ResourceNotFoundError,
    SecurityDisabledError,
    TidemillError,
)
from tidemill.kafka.apis import RequestContext, Tree, handles
from tidemill.kafka.errors import error_code, error_message

METADATA_TOPIC = "__cluster_metadata"
"""How KRaft's metadata log is called in DescribeQuorum; the only one with a quorum."""

_NO_AUTHORIZER = SecurityDisabledError("No Authorizer is configured on the broker.")


@handles(35)
def handle_describe_log_dirs(ctx: RequestContext, request: Any) -> Tree:
    """DescribeLogDirs: one folder. Topics None asks for all partitions."""
    asked = (
        None
        if request.topics is None
        else {
            (topic.topic, partition) for topic in request.topics for partition in topic.partitions
        }
    )
    try:
        log_dir = ctx.broker.log_dirs(asked)
    except TidemillError as error:
        code = error_code(error)
        # Before v3 only a folder can carry an error.
        folders = [] if ctx.api_version >= 3 else [{"error_code": code, "log_dir": ""}]
        return {"error_code": code, "results": folders}
    topics: dict[str, list[dict[str, Any]]] = {}
    for size in log_dir.partitions:
        topics.setdefault(size.topic, []).append(
            {
                "partition_index": size.partition,
                "partition_size": size.size_bytes,
                "offset_lag": size.offset_lag,
                "is_future_key": False,
            }
        )
    return {
        "error_code": 0,
        "results": [
            {
                "error_code": 0,
                "log_dir": log_dir.path,
                "topics": [
                    {"name": name, "partitions": partitions} for name, partitions in topics.items()
                ],
                "total_bytes": log_dir.total_bytes,
                "usable_bytes": log_dir.usable_bytes,
                "is_cordoned": False,
            }
        ],
    }


@handles(34)
def handle_alter_replica_log_dirs(ctx: RequestContext, request: Any) -> Tree:
    """AlterReplicaLogDirs (KIP-113)."""
    topics: dict[str, list[dict[str, int]]] = {}
    for folder in request.dirs:
        asked = [(topic.name, p) for topic in folder.topics for p in topic.partitions]
        outcomes = ctx.broker.move_replicas(folder.path, asked)
        for (name, partition), outcome in zip(asked, outcomes, strict=True):
            topics.setdefault(name, []).append(
                {"partition_index": partition, "error_code": error_code(outcome)}
            )
    return {
        "results": [
            {"topic_name": name, "partitions": partitions} for name, partitions in topics.items()
        ]
    }


@handles(55)
def handle_describe_quorum(ctx: RequestContext, request: Any) -> Tree:
    """DescribeQuorum (KIP-595): one voter, which leads; its log is the catalog's."""
    asked = [
        (topic.topic_name, p.partition_index) for topic in request.topics for p in topic.partitions
    ]
    if asked != [(METADATA_TOPIC, 0)]:
        return _refused(InvalidRequestError(f"only partition 0 of {METADATA_TOPIC} has a quorum"))
    log = ctx.broker.metadata_log()
    now_ms = ctx.broker.clock.now_ms()
    voter = {
        "replica_id": ctx.broker.node_id,
        "log_end_offset": log.log_end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "leader_id": ctx.broker.node_id,
        "leader_epoch": log.leader_epoch,
        "high_watermark": log.high_watermark,
        "current_voters": [voter],
        "observers": [],
    }
    listener = {
        "name": "KAFKA",
        "host": ctx.broker.advertised_host,
        "port": ctx.broker.advertised_port,
    }
    return {
        "error_code": 0,
        "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
        "nodes": [{"node_id": ctx.broker.node_id, "listeners": [listener]}],
    }


@handles(29)
def handle_describe_acls(ctx: RequestContext, request: Any) -> Tree:
    """DescribeAcls: refused, there is no authorizer."""
    return {**_refused(_NO_AUTHORIZER), "resources": []}


@handles(30)
def handle_create_acls(ctx: RequestContext, request: Any) -> Tree:
    """CreateAcls: refused one by one, there is no authorizer."""
    return {"results": [_refused(_NO_AUTHORIZER) for _ in request.creations]}


@handles(31)
def handle_delete_acls(ctx: RequestContext, request: Any) -> Tree:
    """DeleteAcls: refused one by one, there is no authorizer."""
    return {
        "filter_results": [
            {**_refused(_NO_AUTHORIZER), "matching_acls": []} for _ in request.filters
        ]
    }


@handles(48)
def handle_describe_client_quotas(ctx: RequestContext, request: Any) -> Tree:
    """DescribeClientQuotas (KIP-546): there are none."""
    return {"error_code": 0, "error_message": None, "entries": []}


@handles(50)
def handle_describe_user_scram_credentials(ctx: RequestContext, request: Any) -> Tree:
    """DescribeUserScramCredentials (KIP-554): there are no users, so a named one is not found."""
    return {
        "error_code": 0,
        "error_message": None,
        "results": [
            {
                "user": user.name,
                **_refused(
                    ResourceNotFoundError(
                        "Attempt to describe a user credential that does not exist: " + user.name
                    )
                ),
                "credential_infos": [],
            }
            for user in request.users or ()
        ],
    }


def _refused(error: TidemillError) -> dict[str, Any]:
    return {"error_code": error_code(error), "error_message": error_message(error)}
