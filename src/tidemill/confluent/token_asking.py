"""Asks for topics and offsets with our own client, which has no wait for a token.

confluent-kafka's constructors sleep for a second until librdkafka has the token of ``oauth_cb``.
Must not know: records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TypeVar

from tidemill.confluent.clients import Kafka
from tidemill.confluent.requests import requests_to
from tidemill.kafka_client.admin.partitions import offsets
from tidemill.kafka_client.admin.requests import (
    BrokerRequests,
    Place,
    by_leader,
    check_error_code,
    retry_transient,
)

T = TypeVar("T")
_UNKNOWN_TOPIC = 3


class TokenQuestions:
    """Asks about topics with a token. Any thread can use it; one question runs at a time.

    Args:
        kafka: the cluster, whose properties have ``oauth_cb``.
        client: the client id.
    """

    def __init__(self, kafka: Kafka, client: str) -> None:
        self._kafka, self._client = kafka, client
        self._lock = threading.Lock()

    @cached_property
    def _requests(self) -> BrokerRequests:
        return requests_to(self._kafka, self._client)

    def _ask(self, question: Callable[[BrokerRequests], T]) -> T:
        with self._lock:
            return retry_transient(lambda: question(self._requests))

    def names(self) -> set[str]:
        """Return the names of all topics."""
        return self._ask(lambda requests: {each.name for each in requests.metadata().topics})

    def places(self, topic: str) -> list[Place]:
        """Return the partitions of a topic; none if it does not exist."""

        def ask(requests: BrokerRequests) -> list[Place]:
            found: list[Place] = []
            for each in requests.metadata([topic]).topics:
                if each.error_code != _UNKNOWN_TOPIC:
                    check_error_code(each.error_code, f"can't describe topic {topic}")
                    found += [(topic, about.partition_index) for about in each.partitions]
            return sorted(found)

        return self._ask(ask)

    def offsets(
        self, places: Collection[Place], time: int, *, committed: bool = False
    ) -> dict[Place, int]:
        """Return an offset of each partition, as ``kafka_client.admin.partitions.offsets``."""

        def ask(requests: BrokerRequests) -> dict[Place, int]:
            found: dict[Place, int] = {}
            for leader, led in by_leader(requests.leaders(places)).items():
                found |= offsets(requests, leader, led, time, committed=committed)
            return found

        return self._ask(ask) if places else {}
