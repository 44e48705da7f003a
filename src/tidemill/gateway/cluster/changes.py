"""Changes of groups: the offsets to continue with. It runs in a thread.

Must not know: pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tidemill.confluent.clients import Kafka
from tidemill.gateway.cluster.asking import GROUP, REQUEST_S, Asker, check

ALTER_SHARE_OFFSETS = 91

Place = tuple[str, int]


def commit(kafka: Kafka, group: str, offsets: Mapping[Place, int]) -> None:
    """Set the committed offsets of a group without members.

    Raises:
        NotAllowedError: the user must not do it.
        TidemillError: the broker refuses, or does not answer.
    """
    admin = kafka.admin("tidemill-console")
    partitions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    wanted = [ConsumerGroupTopicPartitions(group, partitions)]
    try:
        answer = admin.alter_consumer_group_offsets(wanted, request_timeout=REQUEST_S)
        found = answer[group].result(REQUEST_S + 1).topic_partitions
    except KafkaException as error:
        failed: KafkaError = error.args[0]
        check(failed.code() if failed.code() > 0 else 0, f"group {group}")
        raise kafka.translate(failed, f"move group {group}") from error
    for each in found:
        if each.error is not None:
            check(each.error.code(), f"{each.topic} partition {each.partition}")


def move_starts(kafka: Kafka, group: str, offsets: Mapping[Place, int]) -> None:
    """Set where a share group without members starts. What it has delivered is forgotten.

    Raises:
        TidemillError: the broker refuses, or does not answer.
    """
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in offsets.items():
        start = {"partition_index": partition, "start_offset": offset}
        topics.setdefault(topic, []).append(start)
    tree = {
        "group_id": group,
        "topics": [{"topic_name": name, "partitions": each} for name, each in topics.items()],
    }
    with Asker(kafka) as asker:
        coordinator = asker.coordinator(GROUP, group)

        def call() -> Any:
            answer = asker.ask(coordinator, ALTER_SHARE_OFFSETS, (0, 0), tree)
            return answer, answer.error_code

        answer = asker.until_settled(call, f"group {group}")
    for topic in answer.responses:
        for each in topic.partitions:
            check(each.error_code, f"{topic.topic_name} partition {each.partition_index}")
