"""A digest of a query's result that does not depend on the order of its rows.

Rows of a topic and rows of a batch computation have one canonical form: a JSON array of the values
in the order of the query's columns. Times are microseconds since 1970 in it. Must not know: Spark,
how results are computed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from bench.nexmark.queries import Kind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MODULUS = 1 << 128
_READ_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Digest:
    """Count and hash of a multiset of rows.

    Attributes:
        rows: Number of rows.
        hash: Sum of the hashes of all rows, modulo 2^128, in hexadecimal digits.
    """

    rows: int
    hash: str


def digest(rows: Iterable[Sequence[Any]]) -> Digest:
    """Return the digest of canonical rows: tuples of int, float, str and None."""
    count = total = 0
    for row in rows:
        hashed = hashlib.blake2b(orjson.dumps(row), digest_size=16).digest()
        total = (total + int.from_bytes(hashed)) % _MODULUS
        count += 1
    return Digest(count, f"{total:032x}")


def canonical(values: Iterable[bytes], columns: Mapping[str, Kind]) -> Iterable[list[Any]]:
    """Return the canonical rows of JSON records.

    Raises:
        ValueError: A record has other columns than the query.
    """
    names = list(columns)
    times = [index for index, name in enumerate(names) if columns[name] == "time"]
    floats = [index for index, name in enumerate(names) if columns[name] == "number"]
    for value in values:
        record = orjson.loads(value)
        if len(record) != len(names):
            raise ValueError(f"a result has the columns {', '.join(record)}: expected {names}")
        row = [record[name] for name in names]
        for index in times:
            row[index] = microseconds(row[index])
        for index in floats:
            row[index] = float(row[index])
        yield row


def microseconds(text: str) -> int:
    """Return a time of ISO 8601 as microseconds since 1970."""
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


def read_topic(bootstrap: str, topic: str) -> Iterable[bytes]:
    """Return the values of all committed records of a topic.

    Raises:
        TimeoutError: The broker was silent for a minute before the end of a partition.
        confluent_kafka.KafkaException: The broker returned an error.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nexmark-check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 3,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        unread, heard = set(partitions), time.monotonic()
        while unread:
            for message in consumer.consume(10_000, 0.2):
                heard = time.monotonic()
                if (error := message.error()) is None:
                    yield message.value() or b""
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
            if time.monotonic() - heard > _READ_TIMEOUT_S:
                raise TimeoutError(f"topic {topic} was not read to its end")
    finally:
        consumer.close()
