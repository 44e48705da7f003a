"""Changelog topics for tests: rows written and deleted, and the table that they make."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from tidemill.spark.pipelines.inputs import TableInput, changelog_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Broker

Row = dict[str, Any]


@dataclass
class Changelog:
    """A topic of two partitions; ``rows`` is the table as it should be."""

    broker: Broker
    schema: str
    key: tuple[str, ...]
    topic: str = ""
    rows: dict[Any, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topic = self.topic or self.broker.topic(2)
        self._producer = Producer({**self.broker.kafka, "linger.ms": 5})

    def put(self, *rows: Row, at: int | None = None, partition: int | None = None) -> None:
        """Insert or update rows; ``at`` is the records' time in milliseconds."""
        for row in rows:
            values = tuple(row[name] for name in self.key)
            self._write(values, json.dumps(row).encode(), at, partition)
            self.rows[values] = row

    def delete(self, *values: Any, at: int | None = None, partition: int | None = None) -> None:
        """Delete the row of a key."""
        self._write(values, None, at, partition)
        self.rows.pop(values, None)

    def flush(self) -> None:
        """Wait until all is in the log."""
        assert self._producer.flush(60) == 0

    def table(self, spark: SparkSession, **options: Any) -> TableInput:
        """The table that the topic is."""
        return changelog_table(
            spark,
            self.topic,
            schema=self.schema,
            key=self.key,
            kafka=self.broker.kafka,
            **options,
        )

    def _write(
        self, values: tuple[Any, ...], value: bytes | None, at: int | None, partition: int | None
    ) -> None:
        one = len(self.key) == 1
        text = str(values[0]) if one else json.dumps(dict(zip(self.key, values, strict=True)))
        stamp: dict[str, Any] = {} if at is None else {"timestamp": at}
        if partition is None:
            partition = sum(text.encode()) % 2
        self._producer.produce(self.topic, value, text.encode(), partition=partition, **stamp)


class Capture:
    """A captured topic of two partitions with rows that have an ``id``."""

    def __init__(self, broker: Broker) -> None:
        self.topic = broker.topic(2)
        self._producer = Producer(broker.kafka)

    def write(self, number: int, value: Row | None) -> None:
        """Write an envelope, or a tombstone, of the row with this id."""
        text = None if value is None else json.dumps(value).encode()
        key = json.dumps({"id": number}).encode()
        self._producer.produce(self.topic, text, key, partition=number % 2)

    def flush(self) -> None:
        """Wait until all is in the log."""
        assert self._producer.flush(60) == 0


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    """A batch's rows, in order."""
    return sorted((tuple(row) for row in df.collect()), key=repr)
