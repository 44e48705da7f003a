"""Brokers for the tests of ``spark/``.

Every test against a broker runs against tidemill and, with ``APACHE_KAFKA_TESTS=1`` and installed
jars, against Apache Kafka: nothing in ``spark/`` may depend on which of the two it talks to.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until, skip_if_missing


@dataclass(frozen=True)
class Broker:
    """A running broker, and the few things that tests do to it besides what they test."""

    name: str
    bootstrap: str
    admin: AdminClient

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic and wait until its partitions have leaders. Returns its name."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, partitions, 1, config=settings)
        self.admin.create_topics([new])[name].result(60)
        poll_until(lambda: self._leads(name, partitions), 90, f"leaders of {name}")
        return name

    def _leads(self, name: str, partitions: int) -> bool:
        from confluent_kafka import KafkaException, TopicPartition

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        try:
            asked = {TopicPartition(name, p): latest for p in range(partitions)}
            for answer in self.admin.list_offsets(asked).values():
                answer.result(60)
        except KafkaException:
            return False
        return True

    def produce(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        partition: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Write values, or dicts of ``produce``'s arguments, and wait until they are there."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 50, **(settings or {})}
        )
        for value in values:
            extra = value if isinstance(value, dict) else {"value": value}
            producer.produce(topic, partition=partition, **extra)
        assert producer.flush(60) == 0


def _broker(name: str, bootstrap: str) -> Broker:
    return Broker(name, bootstrap, AdminClient({"bootstrap.servers": bootstrap, "log_level": 2}))


@pytest.fixture(scope="session")
def tidemill_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """tidemill in a process of its own."""
    settings = {"log.cleaner_backoff_ms": "100"}
    with BrokerProcess(tmp_path_factory.mktemp("tidemill"), settings=settings) as process:
        yield _broker("tidemill", process.bootstrap)


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Apache Kafka, or a skip that says what is missing.

    On demand only: it takes memory and minutes, and what is tested is tidemill.
    """
    if not os.environ.get("APACHE_KAFKA_TESTS"):
        pytest.skip("only with APACHE_KAFKA_TESTS=1 in the environment")
    properties = {"log.cleaner.backoff.ms": "100", "log.cleaner.dedupe.buffer.size": "2097152"}
    with skip_if_missing():
        kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), properties=properties)
    with kafka:
        yield _broker("kafka", kafka.bootstrap)


@pytest.fixture(
    scope="session", params=["tidemill", pytest.param("kafka", marks=pytest.mark.apache_kafka)]
)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the brokers in turn."""
    name = "tidemill_broker" if request.param == "tidemill" else "apache_kafka"
    found: Broker = request.getfixturevalue(name)
    return found
