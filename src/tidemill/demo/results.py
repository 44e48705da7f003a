"""Read the results that the pipeline has published so far.

The pipeline writes in transactions, so only committed records are read. The caller polls: there is
no thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tidemill.demo.check import Record
from tidemill.demo.topics import DEAD_LETTERS, PUBLISHED
from tidemill.errors import TidemillError

_BATCH = 2000


class ResultsError(TidemillError):
    """A published result can't be read."""


@dataclass
class Results:
    """The published results.

    Attributes:
        records: each query's records in the order of publication; of a changelog, the present rows.
        counts: the number of published records (of a changelog: changes), by query, and of dead
            letters, by topic.
        unreadable: the values of the dead letters, by topic.
    """

    records: dict[str, list[Record]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, list[bytes]] = field(default_factory=dict)


class ResultsFollower:
    """Reads all results from the beginning. Use it as a context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._queries = {topic.name: query for query, topic in PUBLISHED.items()}
        self._read = {
            (topic.name, number): 0
            for topic in (*PUBLISHED.values(), *DEAD_LETTERS)
            for number in range(topic.partitions)
        }
        self._plain: dict[str, list[Record]] = {
            query: [] for query, topic in PUBLISHED.items() if not topic.is_changelog
        }
        self._tables: dict[str, dict[bytes, Record]] = {
            query: {} for query, topic in PUBLISHED.items() if topic.is_changelog
        }
        self._unreadable: dict[str, list[bytes]] = {topic.name: [] for topic in DEAD_LETTERS}
        self._counts = dict.fromkeys((*PUBLISHED, *self._unreadable), 0)
        # The client requires a group id. No offsets are committed.
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": "tidemill-demo-results",
                "group.id": "tidemill-demo-results",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # The marker of a transaction has an offset and is not a message, so only this event
                # says that the end was reached.
                "enable.partition.eof": True,
                "log_level": 2,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in self._read]
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._consumer.close()

    @property
    def results(self) -> Results:
        """The results so far. The lists grow with each poll."""
        tables = {query: list(rows.values()) for query, rows in self._tables.items()}
        return Results({**self._plain, **tables}, dict(self._counts), self._unreadable)

    def poll(self, timeout_s: float) -> None:
        """Read the new records. Wait up to ``timeout_s`` for the first one.

        Raises:
            ResultsError: a topic can't be read, or a record is not a result.
        """
        messages = self._consumer.consume(1, timeout_s)
        while messages:
            for message in messages:
                self._take(message)
            messages = self._consumer.consume(_BATCH, 0)

    def read_up_to(self, ends: Mapping[tuple[str, int], int], timeout_s: float) -> None:
        """Poll until each partition has been read to its end.

        Args:
            ends: the end offsets of partitions. Those of other topics are ignored.
            timeout_s: the time limit.

        Raises:
            ResultsError: the time is over, or see ``poll``.
        """
        deadline = time.monotonic() + timeout_s
        while behind := [place for place, read in self._read.items() if read < ends.get(place, 0)]:
            if time.monotonic() > deadline:
                raise ResultsError(f"{behind} were not read to their ends within {timeout_s:g} s")
            self.poll(0.1)

    def _take(self, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        error = message.error()
        if error is None:
            self._read[topic, partition] = offset + 1
            self._add(message, topic)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._read[topic, partition] = offset
        elif not error.retriable():
            raise ResultsError(f"{topic} can't be read: {error.str()}")

    def _add(self, message: Message, topic: str) -> None:
        key, value = message.key(), message.value()
        query = self._queries.get(topic, topic)
        self._counts[query] += 1
        if topic in self._unreadable:
            self._unreadable[topic].append(_bytes(value))
            return
        try:
            if query in self._plain:
                self._plain[query].append(parse(_bytes(value)))
            elif value is None:
                self._tables[query].pop(_bytes(key), None)
            else:
                self._tables[query][_bytes(key)] = parse(_bytes(value))
        except ValueError as error:
            raise ResultsError(
                f"{topic}-{message.partition()} offset {message.offset()} is not a result: {error}"
            ) from error


def parse(value: bytes) -> dict[str, Any]:
    """Parse a result, which is a JSON object.

    Raises:
        ValueError: the value is not a JSON object.
    """
    result = orjson.loads(value)
    if not isinstance(result, dict):
        raise ValueError(f"not a JSON object: {value[:80]!r}")  # noqa: TRY004 - of its content
    return result


def _bytes(given: str | bytes | None) -> bytes:
    return given.encode() if isinstance(given, str) else given or b""
