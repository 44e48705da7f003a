"""The topics of a database with a binary log, compared with its tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from tests.connect.cdc.binlog_servers import Server
from tests.connect.conftest import Records, RunningWorker, table_of
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower
from tidemill.errors import TidemillError


class Topics:
    """The topics of a database, and its tables."""

    def __init__(self, kafka: Kafka, server: Server, shop: str, prefix: str) -> None:
        self._kafka, self._server, self._shop, self._prefix = kafka, server, shop, prefix

    def records(self, tables: Iterable[str]) -> dict[str, Records]:
        """Return (key, value) of all committed records, by table."""
        found: dict[str, Records] = {f"{self._prefix}.{self._shop}.{each}": [] for each in tables}
        places = [(topic, 0) for topic in found]
        ends = {
            place: end for place, end in self._kafka.end_offsets("tests", places).items() if end
        }
        follower = Follower.of(self._kafka, "tests", ends, fetch_wait_max_ms=20)
        with closing(follower):
            while follower.behind(ends):
                for message in follower.poll(0.05):
                    key, value = message.key(), message.value()
                    found[str(message.topic())].append(
                        (json.loads(key or b"null"), json.loads(value) if value else None)
                    )
        return {topic.rpartition(".")[2]: records for topic, records in found.items()}

    def counts(self, tables: Iterable[str]) -> dict[str, int]:
        """Return the number of records of each table."""
        return {table: len(records) for table, records in self.records(tables).items()}

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """Return the last row of each key in a topic."""
        return table_of(self.records([table])[table])

    def stored(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the rows of all tables, by the JSON of their keys."""
        with self._server.connect(database=self._shop) as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW TABLES")
            return {name: self._rows(cursor, name) for (name,) in list(cursor.fetchall())}

    def _rows(self, cursor: Any, table: str) -> dict[str, dict[str, Any]]:
        cursor.execute(f"SHOW INDEX FROM `{table}` WHERE Key_name = 'PRIMARY'")
        key = [row[4] for row in sorted(cursor.fetchall(), key=lambda row: int(row[3]))]
        cursor.execute(f"SELECT * FROM `{table}`")
        names = [each[0] for each in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return {json.dumps({name: row[name] for name in key}): row for row in rows}

    def differing(self) -> dict[str, Any]:
        """Return the tables whose topics differ, with what both have."""
        stored = self.stored()
        try:
            found = {table: table_of(each) for table, each in self.records(stored).items()}
        except TidemillError as error:  # a topic is not there yet
            return {"": error}
        return {
            table: (found[table], rows) for table, rows in stored.items() if found[table] != rows
        }

    def wait_until_equal(self, worker: RunningWorker) -> None:
        """Wait until each topic has the rows of its table."""
        try:
            worker.wait(lambda: not self.differing(), "the topics equal the tables")
        except TimeoutError:
            raise AssertionError(f"topic and table differ: {self.differing()}") from None
