"""The worker: a table becomes a topic, once, also when the worker is replaced."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.connect.conftest import (
    RunningWorker,
    records_of,
    rows_by_key,
    sqlite_definition,
    table_of,
)
from tidemill.connect.base.clients import Kafka
from tidemill.connect.cdc.errors import FencedError


def _wait_for(worker: RunningWorker, kafka: Kafka, topic: str, count: int) -> None:
    worker.wait(lambda: len(records_of(kafka, topic)) >= count, f"{count} records in {topic}")


def test_a_table_becomes_a_topic_once_across_restarts(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
    database.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"n{i}") for i in range(25)])
    definition = sqlite_definition(name, tmp_path, chunk_rows=10)
    topic = f"{name}.main.t"
    with RunningWorker(definition, kafka) as worker:
        worker.wait_for_snapshots()
        database.execute("UPDATE t SET note = 'changed' WHERE id = 3")
        _wait_for(worker, kafka, topic, 26)
    database.execute("DELETE FROM t WHERE id = 4")  # while no worker runs
    with RunningWorker(definition, kafka) as worker:
        _wait_for(worker, kafka, topic, 28)
    records = records_of(kafka, topic)
    assert [value and value["op"] for _, value in records] == ["r"] * 25 + ["u", "d", None]
    assert records[25][1] is not None
    assert records[25][1]["before"] == {"id": 3, "note": "n3"}
    assert table_of(records) == rows_by_key(database, "t", "id")


def test_a_second_worker_fences_the_first(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
    definition = sqlite_definition(name, tmp_path)
    with RunningWorker(definition, kafka) as first:
        first.wait_for_snapshots()
        with RunningWorker(definition, kafka) as second:
            second.wait_for_snapshots()
            database.execute("INSERT INTO t VALUES (1, 'a')")
            first.wait_for_end()
            assert isinstance(first.error, FencedError)
            assert "another worker of source" in str(first.error)
            _wait_for(second, kafka, f"{name}.main.t", 1)
        assert second.error is None
    assert len(records_of(kafka, f"{name}.main.t")) == 1
