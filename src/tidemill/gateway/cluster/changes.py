"""Changes of groups: the offsets to continue with. It runs in a thread.

Must not know: pages.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tidemill.confluent.clients import Kafka
from tidemill.gateway.cluster.asking import requests_to
from tidemill.kafka_client.admin.requests import REQUEST_S, Place, check_error_code
from tidemill.kafka_client.admin.share_groups import move_share_starts


def commit(kafka: Kafka, group: str, offsets: Mapping[Place, int]) -> None:
    """Set the committed offsets of a group without members.

    Raises:
        RefusedError: the broker refuses.
        TidemillError: it does not answer.
    """
    admin = kafka.admin("tidemill-console")
    partitions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    wanted = [ConsumerGroupTopicPartitions(group, partitions)]
    try:
        answer = admin.alter_consumer_group_offsets(wanted, request_timeout=REQUEST_S)
        found = answer[group].result(REQUEST_S + 1).topic_partitions
    except KafkaException as error:
        failed: KafkaError = error.args[0]
        if failed.code() > 0:  # the others are librdkafka's own
            check_error_code(failed.code(), f"group {group}")
        raise kafka.translate(failed, f"move group {group}") from error
    for each in found:
        if each.error is not None:
            check_error_code(each.error.code(), f"{each.topic} partition {each.partition}")


def move_starts(kafka: Kafka, group: str, offsets: Mapping[Place, int]) -> None:
    """Set where a share group without members starts. What it has delivered is forgotten.

    Raises:
        TidemillError: the broker refuses, or does not answer.
    """
    with requests_to(kafka) as requests:
        move_share_starts(requests, group, offsets)
