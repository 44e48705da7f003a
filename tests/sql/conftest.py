"""A broker for the tests of SQL, and topics with rows that DuckDB has, too."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

import tidemill
from tidemill.confluent.clients import Kafka

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Topics:
    """Topics at a broker."""

    kafka: Kafka

    @property
    def servers(self) -> str:
        return self.kafka.servers

    def fill(
        self,
        records: Sequence[tuple[str | bytes | None, Any]],
        *,
        partitions: int = 1,
        name: str | None = None,
        configs: dict[str, str] | None = None,
        times: Sequence[int] = (),
    ) -> str:
        """Create a topic with records: (key, JSON value, bytes or None), spread by their index."""
        name = name or f"t_{uuid.uuid4().hex[:12]}"
        self.kafka.create_topics("test", {name: (partitions, configs or {})})
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        for number, (key, value) in enumerate(records):
            given = value if value is None or isinstance(value, bytes) else json.dumps(value)
            at: Any = {"timestamp": times[number]} if times else {}
            producer.produce(name, given, key=key, partition=number % partitions, **at)
            producer.poll(0)
        assert producer.flush(60) == 0
        return name


@pytest.fixture(scope="session")
def sql_broker() -> Iterator[tidemill.Broker]:
    # Tests run the workers of views themselves.
    settings = {"log.retention_check_ms": str(24 * HOUR_MS), "views.run": "false"}
    with tidemill.Broker(settings=settings) as broker:
        yield broker


@pytest.fixture
def topics(sql_broker: tidemill.Broker) -> Topics:
    return Topics(Kafka(sql_broker.bootstrap_servers))
