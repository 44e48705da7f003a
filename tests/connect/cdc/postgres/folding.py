"""Follows a PostgreSQL source as a worker does, without Kafka: its topics by key."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg

from tests.connect.cdc.postgres.reading import Reading
from tidemill.connect.cdc.contract import Batch
from tidemill.connect.cdc.envelope import Encoder, decode

Rows = list[dict[str, Any]]


class Folded:
    """The topics of a source, by key.

    Attributes:
        reading: The source. ``crash`` replaces it.
        reasons: Why tables were read again, in order, with their ids.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.reasons: list[tuple[str, str]] = []
        self._topics: dict[str, dict[bytes, Any]] = {}
        self._again: dict[str, None] = {}
        reading.start()
        for table in reading.source.tables():
            self._again[table.id] = None
        self.follow()

    def follow(self, *, looks: bool = False) -> None:
        """Take everything that was committed, and read again what must be read again.

        Args:
            looks: Whether the source looks for changed tables first.
        """
        if looks:
            self.reading.source._due["refresh"] = 0.0
        self._take(self.reading.source.poll(0))
        self._take_up_to_now()
        while self._again:
            name = next(iter(self._again))
            del self._again[name]
            self._read(name)
            self._take_up_to_now()

    def crash(self, *, before_a_batch: bool = False) -> None:
        """Start another source with what was stored.

        Args:
            before_a_batch: Whether it stops too, before anything that it returns is stored.
        """
        self.reading = self.reading.again()
        if before_a_batch:
            self.reading.source.poll(0)
            self.reading = self.reading.again()

    def rows(self, name: str) -> Rows:
        """Return the rows of a table's topic, in the order of their keys."""
        found = self._topics.get(name, {})
        return [found[key] for key in sorted(found)]

    def keys(self, name: str) -> list[Any]:
        """Return the keys of a table's topic."""
        return [json.loads(key) for key in sorted(self._topics.get(name, {}))]

    def _take(self, batch: Batch | None) -> None:
        if batch is None:
            return
        self.reading.take(batch)
        self.reasons += batch.reasons.items()
        self._again |= dict.fromkeys(batch.resync)
        encoder = Encoder("postgres", "t", plain=False)
        for change in batch.changes:
            if change.table is None:
                continue
            topic = self._topics.setdefault(change.table.id, {})
            for record in encoder.encode(change):
                assert record.key is not None
                if record.value is None:
                    topic.pop(record.key, None)
                elif (after := decode(record.value)["after"]) is not None:
                    topic[record.key] = after

    def _take_up_to_now(self) -> None:
        """Poll until the place that a read names was reached."""
        source, deadline = self.reading.source, time.monotonic() + 60
        tables = [each for each in source.tables() if each.key]
        if not tables:
            return
        high = source.read_chunk(tables[0], None, 1).high
        while not source.reached(self.reading.position, high):
            assert time.monotonic() < deadline, "the stream does not reach the present"
            self._take(source.poll(0.05))

    def _read(self, name: str) -> None:
        """Replace a topic by the rows of its table."""
        source, encoder = self.reading.source, Encoder("postgres", "t")
        table = source.find_table(*name.split(".", 1))
        if table is None or not table.key:
            return
        topic = self._topics[name] = {}
        after: list[Any] | None = None
        while True:
            chunk = source.read_chunk(table, after, 3)
            for row in chunk.rows:
                topic[encoder.key_of(table, row)] = row
            after = chunk.last_key
            if after is None:
                return


Texts = list[tuple[str | None, ...]]


def selected(sql: psycopg.Connection[Any], table: str) -> tuple[list[str], Texts]:
    """Return the columns of a table, and its rows as texts."""
    found = sql.execute(f"SELECT * FROM {table} LIMIT 0".encode()).description or []
    names = [each.name for each in found]
    columns = ", ".join(f'"{name}"::text' for name in names)
    rows = sql.execute(f"SELECT {columns} FROM {table}".encode()).fetchall()
    return names, sorted(rows, key=str)


def assert_equal(folded: Folded, sql: psycopg.Connection[Any], table: str) -> None:
    """Check that a topic has the rows of its table. A column that it lacks is NULL."""
    names, expected = selected(sql, table)
    found = folded.rows(table if "." in table else f"public.{table}")
    here = [tuple(text_of(row.get(name)) for name in names) for row in found]
    assert sorted(here, key=str) == expected, table


def text_of(value: Any) -> str | None:
    """Return what PostgreSQL writes for a value of a topic."""
    if isinstance(value, list):
        return "{" + ",".join(str(each) for each in value) + "}"
    return None if value is None else str(value)
