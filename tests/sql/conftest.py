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
NAMES = ["ann", "ben", "cai", "dan", "eve", "flo", "gus"]
ROWS: list[dict[str, Any]] = [
    {
        "n": n,
        "x": n / 2,
        "s": None if n % 10 == 0 else f"s{n}",
        "who": {"name": NAMES[n % 7]},
        "flag": n % 2 == 0,
        "tags": ["a", "b"],
    }
    for n in range(1000)
]
EVENTS: list[dict[str, Any]] = [
    {"n": n, "who": f"u{n % 5}", "t": f"2026-01-01T00:{s // 60:02}:{s % 60:02}Z"}
    for n, s in enumerate(n * 7 % 100 for n in range(300))
]
"""They have times of 100 seconds, not in order."""
LATER = {"n": 1000, "who": "x", "t": "2026-01-01T01:00:00Z"}
"""An event that ends all windows of the others."""


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


@pytest.fixture(scope="module")
def table(sql_broker: Any) -> str:
    """A topic with ``ROWS``."""
    rows = [(f"k{row['n'] % 50}", row) for row in ROWS]
    return Topics(Kafka(sql_broker.bootstrap_servers)).fill(rows, partitions=3)


@pytest.fixture(scope="module")
def events(sql_broker: Any) -> str:
    """A topic with ``EVENTS``."""
    rows = [(str(row["who"]), row) for row in EVENTS]
    return Topics(Kafka(sql_broker.bootstrap_servers)).fill(rows, partitions=5)


@pytest.fixture(scope="module")
def ended(sql_broker: Any) -> str:
    """A topic with ``EVENTS``, and one that is an hour later."""
    rows = [(str(row["who"]), row) for row in [*EVENTS, LATER]]
    return Topics(Kafka(sql_broker.bootstrap_servers)).fill(rows, partitions=5)
