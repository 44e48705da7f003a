"""Brokers for the tests of ``spark/``.

Every test against a broker runs against tidemill and, with ``APACHE_KAFKA_TESTS=1`` and installed
jars, against Apache Kafka: nothing in ``spark/`` may depend on which of the two it talks to.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until, skip_if_missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Broker:
    """A running broker, and the few things that tests do to it besides what they test."""

    name: str
    kafka: dict[str, str]
    """Settings of a client."""
    admin: AdminClient

    @property
    def bootstrap(self) -> str:
        return self.kafka["bootstrap.servers"]

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic and wait until its partitions have leaders. Returns its name."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, partitions, 1, config=settings)
        self.admin.create_topics([new])[name].result(60)
        poll_until(lambda: self._leads(name, partitions), 90, f"leaders of {name}")
        return name

    def _leads(self, name: str, partitions: int) -> bool:
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
        producer = Producer({**self.kafka, "linger.ms": 50, **(settings or {})})
        for value in values:
            extra = value if isinstance(value, dict) else {"value": value}
            producer.produce(topic, partition=partition, **extra)
        assert producer.flush(60) == 0

    def stream(self, spark: SparkSession, topic: str) -> DataFrame:
        """Return the records of a topic from its beginning as a stream."""
        reader = spark.readStream.format("tidemill").option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("startingOffsets", "earliest").load()


def broker_at(bootstrap: str, name: str = "tidemill", **security: str) -> Broker:
    """Return a running broker."""
    kafka = {**security, "bootstrap.servers": bootstrap}
    return Broker(name, kafka, AdminClient({**kafka, "log_level": 2}))


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Make Spark send rows in many small Arrow batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture(scope="session")
def tidemill_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """tidemill in a process of its own."""
    settings = {"log.cleaner_backoff_ms": "100"}
    with BrokerProcess(tmp_path_factory.mktemp("tidemill"), settings=settings) as process:
        yield broker_at(process.bootstrap)


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
        yield broker_at(kafka.bootstrap, "kafka")


@pytest.fixture(
    scope="session", params=["tidemill", pytest.param("kafka", marks=pytest.mark.apache_kafka)]
)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the brokers in turn."""
    name = "tidemill_broker" if request.param == "tidemill" else "apache_kafka"
    found: Broker = request.getfixturevalue(name)
    return found
