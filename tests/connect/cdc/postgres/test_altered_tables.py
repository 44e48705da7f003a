"""Topics follow ALTER TABLE: new columns and keys reach rows that nobody writes afterwards."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.connect.conftest import RunningWorker, records_of, table_of
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import Definition, parse
from tidemill.connect.cdc.postgres.connection import ReplicationConnection

Sql = psycopg.Connection[Any]


def definition(name: str, dsn: str) -> Definition:
    return parse(
        {
            "name": name,
            "kind": "postgres",
            "chunk_rows": 2,
            "heartbeat_s": 0.2,
            "database": {"dsn": dsn},
        }
    )


def create(sql: Sql, rows: int) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)")
    sql.execute("INSERT INTO t SELECT i, -i FROM generate_series(1, %s) i", (rows,))


def rows_of(kafka: Kafka, name: str) -> dict[str, dict[str, Any]]:
    """Return the table as its topic has it, by the keys of the records."""
    return table_of(records_of(kafka, f"{name}.public.t"))


def new_values(kafka: Kafka, name: str) -> set[Any]:
    return {row.get("b") for row in rows_of(kafka, name).values()}


def test_a_column_that_was_added_while_no_worker_ran_is_read_behind_older_changes(
    kafka: Kafka, name: str, dsn: str, sql: Sql
) -> None:
    """The worker first meets a change that describes the table as it was before."""
    create(sql, 7)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait_for_snapshots()
    sql.execute("UPDATE t SET a = -30 WHERE id = 3")
    sql.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 7")
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait(lambda: new_values(kafka, name) == {7}, "the new column")
    rows = sql.execute("SELECT id, a, b FROM t").fetchall()
    found = rows_of(kafka, name).values()
    assert sorted((row["id"], row["a"], row["b"]) for row in found) == sorted(rows)


def test_a_column_that_is_added_while_a_worker_runs_is_read(
    kafka: Kafka, name: str, dsn: str, sql: Sql
) -> None:
    """The changed row comes long before the next look at the catalog."""
    create(sql, 7)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait_for_snapshots()
        sql.execute("ALTER TABLE t ADD COLUMN b int DEFAULT 7")
        sql.execute("UPDATE t SET a = -30 WHERE id = 3")
        worker.wait(lambda: new_values(kafka, name) == {7}, "the new column")


def test_a_snapshot_begins_again_when_the_key_was_changed_while_no_worker_ran(
    kafka: Kafka, name: str, dsn: str, sql: Sql
) -> None:
    create(sql, 6)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait(lambda: worker.worker.state.snapshot_rows > 0, "the first chunk")
    sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a, id)")
    expected = {(-number, number) for number in range(1, 7)}

    def keys() -> set[tuple[int, int]]:
        found = [key for key, _ in records_of(kafka, f"{name}.public.t")]
        return {(key["a"], key["id"]) for key in found if "a" in key}

    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait(lambda: keys() == expected, "the new keys")
        worker.wait_for_snapshots()
    assert keys() == expected


NEW_KEYS = {f'{{"a": {-number}}}' for number in range(1, 7)}


def test_records_move_to_a_changed_primary_key(kafka: Kafka, name: str, dsn: str, sql: Sql) -> None:
    create(sql, 6)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait_for_snapshots()
        sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)")
        sql.execute("UPDATE t SET id = 30 WHERE a = -3")
        worker.wait(lambda: set(rows_of(kafka, name)) == NEW_KEYS, "the new keys")


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)"],
        [
            "DROP TABLE t",
            "CREATE TABLE t (a int PRIMARY KEY, b text)",
            "INSERT INTO t SELECT -i, 'x' FROM generate_series(1, 6) i",
        ],
    ],
    ids=["another key", "another table"],
)
def test_changes_before_a_new_primary_key_leave_no_keys_of_before(
    kafka: Kafka, name: str, dsn: str, sql: Sql, statements: list[str]
) -> None:
    """The worker was stopped, and meets them after it has seen the new key in the catalog."""
    create(sql, 5)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait_for_snapshots()
    sql.execute("INSERT INTO t VALUES (6, -6), (7, -7)")
    sql.execute("UPDATE t SET id = 20 WHERE id = 2")
    sql.execute("DELETE FROM t WHERE id IN (1, 7)")
    sql.execute("INSERT INTO t VALUES (10, -1)")
    for statement in statements:
        sql.execute(statement.encode())
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait(lambda: set(rows_of(kafka, name)) == NEW_KEYS, "the new keys")
        worker.wait_for_snapshots()
    assert set(rows_of(kafka, name)) == NEW_KEYS


class OneByOne(ReplicationConnection):
    """Receives each message alone, as from a busy server: the source has nothing more after it."""

    _has_received = _pauses = False

    def receive_many(self, most: int) -> list[bytes]:
        self._pauses, found = self._has_received, []
        if not self._pauses:
            found = super().receive_many(1)
        self._has_received = bool(found)
        return found

    def wait(self, timeout_s: float) -> bool:
        return timeout_s > 0 if self._pauses else super().wait(timeout_s)


@pytest.mark.parametrize(
    ("key", "statements"),
    [
        ("id", ["ALTER TABLE t ADD b int DEFAULT 7"]),
        ("id", ["ALTER TABLE t ALTER a TYPE text"]),
        ("id", ["ALTER TABLE t RENAME a TO b"]),
        ("a", ["ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)"]),
        (
            "id",
            [
                "DROP TABLE t",
                "CREATE TABLE t (id int PRIMARY KEY, b text)",
                "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 6) i",
            ],
        ),
    ],
    ids=["a column", "a type", "a name", "a key", "a table"],
)
def test_no_change_of_before_replaces_a_row_of_the_altered_table(
    kafka: Kafka,
    name: str,
    dsn: str,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    statements: list[str],
) -> None:
    """Each of them comes in a batch of its own, while the table is to be read again."""
    create(sql, 5)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait_for_snapshots()
    sql.execute("INSERT INTO t VALUES (6, -6), (7, -7)")
    sql.execute("UPDATE t SET a = -20 WHERE id = 1")
    sql.execute("UPDATE t SET a = -1 WHERE id = 1")
    for statement in statements:
        sql.execute(statement.encode())
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        rows = connection.execute("SELECT * FROM t").fetchall()
    expected = {json.dumps({key: row[key]}): row for row in rows}
    monkeypatch.setattr("tidemill.connect.cdc.postgres.source.ReplicationConnection", OneByOne)
    with RunningWorker(definition(name, dsn), kafka) as worker:
        worker.wait(lambda: rows_of(kafka, name) == expected, "the rows of now")
        worker.wait_for_snapshots()
    assert rows_of(kafka, name) == expected
