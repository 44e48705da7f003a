"""Read the results that the pipeline has published so far.

The pipeline writes in transactions, so only committed records are read. The caller polls: there is
no thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
from confluent_kafka import KafkaException, Message

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower
from tidemill.demo.check import Record
from tidemill.demo.topics import DEAD_LETTERS, PUBLISHED
from tidemill.errors import TidemillError


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
        self._plain: dict[str, list[Record]] = {
            query: [] for query, topic in PUBLISHED.items() if not topic.is_changelog
        }
        self._tables: dict[str, dict[bytes, Record]] = {
            query: {} for query, topic in PUBLISHED.items() if topic.is_changelog
        }
        self._unreadable: dict[str, list[bytes]] = {topic.name: [] for topic in DEAD_LETTERS}
        self._counts = dict.fromkeys((*PUBLISHED, *self._unreadable), 0)
        places = [
            (topic.name, number)
            for topic in (*PUBLISHED.values(), *DEAD_LETTERS)
            for number in range(topic.partitions)
        ]
        self._follower = Follower.of(Kafka(bootstrap_servers), "tidemill-demo-results", places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._follower.close()

    @property
    def results(self) -> Results:
        """The results so far. The lists grow with each poll."""
        tables = {query: list(rows.values()) for query, rows in self._tables.items()}
        return Results({**self._plain, **tables}, dict(self._counts), self._unreadable)

    def poll(self, timeout_s: float) -> None:
        """Read the new records. Wait up to ``timeout_s`` for the first one."""
        self._take(self._follower.poll(timeout_s))

    def read_up_to(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Read until each partition has been read to its end. Other topics are ignored."""
        self._take(self._follower.to_end(ends))

    def _take(self, messages: Iterable[Message]) -> None:
        try:
            for message in messages:
                self._add(message, str(message.topic()))
        except KafkaException as error:
            raise ResultsError(f"the results can't be read: {error.args[0].str()}") from error

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
    """Parse a result, which is a JSON object."""
    result = orjson.loads(value)
    if not isinstance(result, dict):
        raise ValueError(f"not a JSON object: {value[:80]!r}")  # noqa: TRY004 - of its content
    return result


def _bytes(given: str | bytes | None) -> bytes:
    return given.encode() if isinstance(given, str) else given or b""
