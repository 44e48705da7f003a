"""The worker: a table becomes a topic, once, also when the worker is replaced."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.connect.conftest import (
    RunningWorker,
    records_of,
    rows_by_key,
    sqlite_definition,
    table_of,
)
from tests.support.logged import logged
from tests.support.spans import recorded
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.connect.cdc import worker as module
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.errors import FencedError, PositionLostError
from tidemill.connect.cdc.runner import Runner
from tidemill.connect.cdc.sqlite import SqliteSource


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
    with recorded() as spans, RunningWorker(definition, kafka) as worker:
        _wait_for(worker, kafka, topic, 28)
        worker.wait(lambda: f"capture {name}" in spans(), "the span of the batch has ended")
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


def test_what_was_not_captured_is_repaired_by_a_new_snapshot(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    definition = sqlite_definition(name, tmp_path, chunk_rows=2)
    with RunningWorker(definition, kafka) as worker:
        worker.wait_for_snapshots()
    database.execute(f"DROP TRIGGER _tidemill_{name}_ad_t")
    database.execute("DELETE FROM t WHERE id = 2")
    with RunningWorker(definition, kafka) as worker:
        _wait_for(worker, kafka, f"{name}.main.t", 5)
        worker.wait_for_snapshots()
    records = records_of(kafka, f"{name}.main.t")
    assert table_of(records) == rows_by_key(database, "t", "id")
    assert ({"id": 2}, None) in records


def test_a_lost_position_stops_until_a_new_snapshot_is_ordered(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT)")
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    definition = sqlite_definition(name, tmp_path)
    with RunningWorker(definition, kafka) as worker:
        worker.wait_for_snapshots()
    database.execute(f"DROP TABLE _tidemill_{name}_meta")
    database.execute("DELETE FROM t WHERE id = 1")
    with RunningWorker(definition, kafka) as worker:
        worker.wait_for_end()
        assert isinstance(worker.error, PositionLostError)
        assert "--resnapshot" in worker.error.hint
    again = RunningWorker(definition, kafka)
    again.orders.again = "order-1"
    with again as worker:
        worker.wait_for_snapshots()
    records = records_of(kafka, f"{name}.main.t")
    assert table_of(records) == rows_by_key(database, "t", "id")


def test_rules_an_outbox_and_tables_without_a_key_together(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, phone TEXT, country TEXT)")
    database.execute(
        "CREATE TABLE outbox (id TEXT PRIMARY KEY NOT NULL, aggregatetype, aggregateid, "
        "type, payload)"
    )
    database.execute("CREATE TABLE log (text TEXT)")
    database.execute("INSERT INTO people VALUES (1, '123', 'DE'), (2, '456', 'NL')")
    database.execute("INSERT INTO log VALUES ('a')")
    definition = sqlite_definition(
        name,
        tmp_path,
        keyless="all-columns",
        outbox={"table": "outbox", "topic_prefix": f"{name}.events"},
        table={"main.people": {"mask": {"phone": "***"}, "where": ["country = 'DE'"]}},
    )
    with RunningWorker(definition, kafka) as worker:
        worker.wait_for_snapshots()
        database.execute("BEGIN")
        database.execute("INSERT INTO outbox VALUES ('e1', 'order', '7', 'placed', '{\"n\": 1}')")
        database.execute("DELETE FROM outbox")
        database.execute("UPDATE log SET text = 'b'")
        database.execute("COMMIT")
        _wait_for(worker, kafka, f"{name}.main.log", 4)
    events = list(read_to_end(kafka, "tests", f"{name}.events.order"))
    assert events == [(b"7", b'{"n": 1}')]
    assert table_of(records_of(kafka, f"{name}.main.log")) == {'{"text": "b"}': {"text": "b"}}
    people = table_of(records_of(kafka, f"{name}.main.people"))
    assert list(people.values()) == [{"id": 1, "phone": "***", "country": "DE"}]


def test_rows_that_the_rules_do_not_let_in_any_more_leave_the_topic_with_a_new_snapshot(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, country TEXT)")
    database.execute("INSERT INTO people VALUES (1, 'DE'), (2, 'NL'), (3, 'NL')")
    with RunningWorker(sqlite_definition(name, tmp_path), kafka) as worker:
        worker.wait_for_snapshots()
    rules = {"main.people": {"where": ["country = 'DE'"]}}
    again = RunningWorker(sqlite_definition(name, tmp_path, table=rules), kafka)
    again.orders.again = "order-1"
    with again as worker:
        worker.wait_for_snapshots()
    people = table_of(records_of(kafka, f"{name}.main.people"))
    assert list(people.values()) == [{"id": 1, "country": "DE"}]


def test_the_path_of_a_database_can_be_a_reference(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    monkeypatch.setenv("SHOPS", str(tmp_path))
    given = parse({"name": "x", "kind": "sqlite", "database": {"path": "${env:SHOPS}/shop.db"}})
    source = SqliteSource(given.relative_to(tmp_path / "elsewhere").capture())
    assert [each.id for each in source.tables()] == ["main.t"]
    source.close()


def test_rules_for_a_table_that_is_not_captured_are_reported(
    kafka: Kafka, name: str, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, phone TEXT)")
    rules = {"main.poeple": {"mask": {"phone": "***"}}}
    definition = sqlite_definition(name, tmp_path, table=rules)
    with logged() as lines, RunningWorker(definition, kafka) as worker:
        worker.wait_for_snapshots()
    (found,) = [each for each in lines if each["event"] == "source.rules_without_effect"]
    assert (found["source"], found["table"]) == (name, "main.poeple")


def test_a_status_has_an_error_in_one_line_and_a_command_with_the_sources_name(
    tmp_path: Path,
) -> None:
    runner = Runner(sqlite_definition("7shop.x", tmp_path), Kafka("127.0.0.1:1"), {})
    error = PositionLostError(
        "lost\n\tfor ever", hint="Run: tidemill source restart NAME --resnapshot"
    )
    runner._failed(error, "failed")
    assert runner.status().error == "lost for ever"
    assert runner.status().hint == "Run: tidemill source restart 7shop.x --resnapshot"


def test_a_table_without_a_key_that_is_made_later_is_reported(
    kafka: Kafka,
    name: str,
    tmp_path: Path,
    database: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEFT_OUT_S", 0.05)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    definition = sqlite_definition(name, tmp_path)
    with logged() as events, RunningWorker(definition, kafka) as running:
        running.wait_for_snapshots()
        assert running.worker.left_out == {}
        database.execute("CREATE TABLE later (v)")
        running.wait(lambda: bool(running.worker.left_out), "the table is reported")
        assert running.worker.left_out == {"main.later": "it has no primary key"}
        database.execute("INSERT INTO t VALUES (1)")
        running.wait(lambda: running.worker.written == 1, "the other table is captured")
    (said,) = (each for each in events if each["event"] == "source.table_left_out")
    assert "main.later" in str(said)
