"""Deletes what groups have read of single topics. This module must not print.

The client library has neither request: OffsetDelete (KIP-496) for groups that commit offsets, and
DeleteShareGroupOffsets (KIP-932) for share groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster, TopicPartitionKey
from tidemill.cli.group.requests import committed_offsets, describe_group, is_dead, not_found
from tidemill.cli.group.shares import ShareGroup, find_group, known_starts
from tidemill.cli.output import NotFoundError
from tidemill.kafka_client.admin.requests import check_error_code, retry_transient

OFFSET_DELETE, DELETE_SHARE_OFFSETS = 47, 92
_VERSIONS = (0, 0)


def read_partitions(
    cluster: Cluster, group_id: str, topics: Sequence[str]
) -> list[TopicPartitionKey]:
    """Return the partitions of the topics that a group has read."""
    shared = isinstance(find_group(cluster, group_id), ShareGroup)
    known = known_starts(cluster, group_id) if shared else committed_offsets(cluster, group_id)
    if not shared and not known and is_dead(describe_group(cluster, group_id)):
        raise not_found(group_id)
    for topic in topics:
        if not any(key[0] == topic for key in known):
            raise NotFoundError(
                f"group {group_id} has read nothing of topic {topic}",
                hint=f"See: tidemill group describe {group_id}",
            )
    return sorted(key for key in known if key[0] in topics)


def forget(cluster: Cluster, group_id: str, keys: Sequence[TopicPartitionKey]) -> None:
    """Delete what a group has read of partitions; of a share group, of their whole topics.

    If the coordinator refuses a topic, others are possibly deleted.
    """
    shared = isinstance(find_group(cluster, group_id), ShareGroup)
    with requests_to(cluster) as requests:
        coordinator = requests.group_coordinator(group_id)

        def ask() -> None:
            if shared:
                tree = {"group_id": group_id, "topics": _topics(keys, "topic_name")}
                found = requests.ask(coordinator, DELETE_SHARE_OFFSETS, _VERSIONS, tree)
                _check(found, group_id)
                for topic in found.responses:
                    code, message = topic.error_code, topic.error_message
                    check_error_code(code, f"topic {topic.topic_name}", message)
                return
            tree = {"group_id": group_id, "topics": _topics(keys, "name", partitions=True)}
            found = requests.ask(coordinator, OFFSET_DELETE, _VERSIONS, tree)
            _check(found, group_id)
            for topic in found.topics:
                for each in topic.partitions:
                    subject = f"{topic.name} partition {each.partition_index}"
                    check_error_code(each.error_code, subject)

        retry_transient(ask)


def _check(found: Any, group_id: str) -> None:
    check_error_code(found.error_code, f"group {group_id}", getattr(found, "error_message", None))


def _topics(
    keys: Sequence[TopicPartitionKey], name: str, *, partitions: bool = False
) -> list[dict[str, Any]]:
    """Return the topics of a request."""
    by_topic: dict[str, list[dict[str, int]]] = {}
    for topic, partition in keys:
        by_topic.setdefault(topic, []).append({"partition_index": partition})
    return [
        {name: topic, **({"partitions": parts} if partitions else {})}
        for topic, parts in by_topic.items()
    ]
