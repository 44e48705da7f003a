"""Random transactions from several connections, captured by workers that are replaced at random."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import pymysql
import pytest

from tests.connect.cdc.mariadb.conftest import Execute, database_section
from tests.connect.conftest import RunningWorker, records_of, table_of
from tests.support.effort import rounds
from tests.support.mariadb import PASSWORD, MariaDb
from tests.support.processes import poll_until
from tidemill.connect.base.clients import Kafka
from tidemill.connect.cdc.definition import parse

TABLES = ("a", "b")
KEYS = 30


def _random_writes(server: MariaDb, shop: str, seed: int, transactions: int) -> None:
    rng = random.Random(seed)
    with server.connect(database=shop) as connection:
        cursor = connection.cursor()
        for _ in range(transactions):
            try:
                for _ in range(rng.randint(1, 6)):
                    _random_statement(cursor, rng)
                (connection.commit if rng.random() < 0.85 else connection.rollback)()
            except (pymysql.err.OperationalError, pymysql.err.IntegrityError):
                connection.rollback()  # a dead lock, an altered table, or a key that exists


def _random_statement(cursor: Any, rng: random.Random) -> None:
    table, key = rng.choice(TABLES), rng.randrange(KEYS)
    value = rng.choice(["x" * rng.randint(0, 50), "é😀", "y" * 20_000])
    match rng.randrange(8):
        case 0 | 1 | 2:
            cursor.execute(f"REPLACE INTO {table} (id, n, v) VALUES (%s, 0, %s)", (key, value))
        case 3 | 4:
            cursor.execute(f"UPDATE {table} SET n = n + 1 WHERE id >= %s LIMIT 5", (key,))
        case 5:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
        case 6:
            cursor.execute(f"UPDATE {table} SET id = %s WHERE id = %s", (rng.randrange(KEYS), key))
        case 7:
            cursor.execute("SAVEPOINT s")
            cursor.execute(f"UPDATE {table} SET v = 'undone' WHERE id < %s", (key,))
            cursor.execute("ROLLBACK TO SAVEPOINT s")


@pytest.mark.slow
def test_topics_equal_the_tables_after_random_transactions_and_restarts(
    kafka: Kafka,
    name: str,
    server: MariaDb,
    shop: str,
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    for table in TABLES:
        execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v TEXT)")
        execute(*[f"INSERT INTO {table} VALUES ({i}, 0, 'first')" for i in range(KEYS)])
    definition = parse(
        {
            "name": name,
            "kind": "mariadb",
            "tables": [f"{shop}.*"],
            "chunk_rows": 7,
            "database": database_section(server, password="${env:SHOP_PASSWORD}"),
        }
    )
    restarts = rounds("CAPTURE_RESTARTS", 4, 40)
    writers = [
        threading.Thread(target=_random_writes, args=(server, shop, seed, 60 * restarts))
        for seed in range(3)
    ]
    for each in writers:
        each.start()
    try:
        for turn in range(restarts):
            with RunningWorker(definition, kafka) as worker:
                if turn % 4 == 1:
                    worker.orders.wanted.append(("again", str(turn), f"{shop}.a"))
                if turn % 4 == 2:
                    execute(f"ALTER TABLE b ADD COLUMN more{turn} INT DEFAULT 5")
                before = worker.worker.state.position
                worker.wait(lambda: worker.worker.state.position != before, "the position moves")  # noqa: B023
    finally:
        for each in writers:
            each.join()
    execute("INSERT INTO a VALUES (1000, 0, 'last')", "INSERT INTO b (id) VALUES (1000)")
    topics = {table: f"{name}.{shop}.{table}" for table in TABLES}
    with RunningWorker(definition, kafka) as worker:
        worker.wait_for_snapshots()
        for topic in topics.values():
            poll_until(lambda: _has(kafka, topic, 1000), 60, f"the last row in {topic}", 0.3)  # noqa: B023
    with server.connect(database=shop, cursorclass=pymysql.cursors.DictCursor) as connection:
        for table, topic in topics.items():
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {table}")
            stored = {json.dumps({"id": row["id"]}): row for row in cursor.fetchall()}
            records = records_of(kafka, topic)
            assert {key: {**row} for key, row in table_of(records).items()} == stored
            _assert_chained(records)


def _has(kafka: Kafka, topic: str, key: int) -> bool:
    return any(each == {"id": key} for each, _ in records_of(kafka, topic))


def _assert_chained(records: Any) -> None:
    """Each update begins where the change before it ended: nothing is missing, doubled or moved."""
    rows: dict[str, Any] = {}
    for key, value in records:
        at = json.dumps(key)
        if value is None:
            continue
        if value["op"] in ("u", "d") and at in rows:
            assert value["before"] == rows[at], (value, rows[at])
        if value["op"] == "c":
            assert rows.get(at) is None
        rows[at] = value["after"]
