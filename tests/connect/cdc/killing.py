"""Kill the worker and the broker of a source with a binary log, and compare topics with tables.

Connections commit random transactions: REPLACE, changes of keys, large values, savepoints and
rollbacks. Meanwhile snapshots run, and a table is altered.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pymysql

from tests.connect.conftest import Records, records_of, table_of
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import poll_until
from tests.support.source_worker import SourceWorker
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter, create_topic
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.topics import SOURCES
from tidemill.errors import UnreachableError

Execute = Callable[..., None]


class Server(Protocol):
    """A database server of the tests."""

    def connect(self, **options: Any) -> Any:
        """Return a new connection of PyMySQL."""
        ...


TABLES = ("a", "b")
KEYS = 30
KILLS = rounds("CAPTURE_KILLS", 3, 200)
SEED = int(os.environ.get("CAPTURE_SEED") or chosen_seed(11))


def _random_writes(
    server: Server, shop: str, seed: int, stop: threading.Event, first: Sequence[str]
) -> None:
    rng = random.Random(seed)
    with server.connect(database=shop) as connection:
        cursor = connection.cursor()
        # ALTER TABLE can wait for one connection, which waits for a row of another, which waits for
        # the ALTER TABLE. No server sees this dead lock: by default it ends after 50 seconds.
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        for statement in first:
            cursor.execute(statement)
        while not stop.wait(rng.random() * 0.02):
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


def assert_topics_follow(
    kind: str,
    server: Server,
    shop: str,
    execute: Execute,
    section: dict[str, Any],
    folder: Path,
    *,
    first: Sequence[str] = (),
) -> None:
    """Check that the topics equal the tables after kills under load.

    Args:
        kind: the kind of source.
        server: the database server.
        shop: an empty database.
        execute: runs statements in it.
        section: the definition's section ``database``; a worker resolves its references.
        folder: an empty folder.
        first: statements that set up one of the connections that write.
    """
    for table in TABLES:
        execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v TEXT)")
        execute(*[f"INSERT INTO {table} VALUES ({i}, 0, 'first')" for i in range(KEYS)])
    definition = parse(
        {
            "name": "shop",
            "kind": kind,
            "managed": False,
            "tables": [f"{shop}.*"],
            "chunk_rows": 7,
            "heartbeat_s": 0.5,
            "database": section,
        }
    )
    topics = {table: f"shop.{shop}.{table}" for table in TABLES}
    with BrokerProcess(folder / "broker") as broker:
        kafka = Kafka(broker.bootstrap)
        create_topic(kafka, SOURCES)
        board = BoardWriter(kafka, SOURCES)
        board.define(definition)
        board.flush()
        worker = SourceWorker("shop", broker.bootstrap, folder / "worker.log")
        worker.start()
        poll_until(lambda: bool(records_of(kafka, topics["a"])), 60, "the snapshot begins", 0.2)
        try:
            _kill_under_load(server, shop, execute, broker, worker, board, first)
            execute("INSERT INTO a VALUES (1000, 0, 'last')", "INSERT INTO b (id) VALUES (1000)")

            def has_all() -> bool:
                return all(_has(kafka, topic, 1000) for topic in topics.values()) and all(
                    _stored(server, shop, table) == table_of(records_of(kafka, topic))
                    for table, topic in topics.items()
                )

            try:
                poll_until(has_all, 90, "the topics equal the tables", 0.5)
            except (TimeoutError, UnreachableError) as error:
                raise AssertionError(f"{error}\n{worker.log()}") from None
        finally:
            worker.kill()
        for topic in topics.values():
            _assert_chained(records_of(kafka, topic))


def _kill_under_load(
    server: Server,
    shop: str,
    execute: Execute,
    broker: BrokerProcess,
    worker: SourceWorker,
    board: BoardWriter,
    first: Sequence[str],
) -> None:
    """Kill worker and broker, order snapshots and alter a table, while connections write."""
    print(f"CAPTURE_SEED={SEED} CAPTURE_KILLS={KILLS}")
    chance, stop = random.Random(SEED), threading.Event()
    writers = [
        threading.Thread(
            target=_random_writes,
            args=(server, shop, SEED + number, stop, () if number else first),
        )
        for number in range(3)
    ]
    for each in writers:
        each.start()
    try:
        for number in range(KILLS):
            time.sleep(chance.uniform(0.3, 1.5))  # the moment of a kill is random
            if number % 3 == 2:
                broker.kill()
                broker.start()
            else:
                worker.kill()
                worker.start()
            if number % 4 == 1:
                board.command("shop", f"snapshot/{shop}.a", table=f"{shop}.a")
                board.flush()
            if number % 4 == 2:
                execute(f"ALTER TABLE b ADD COLUMN more{number} INT DEFAULT 5")
    finally:
        stop.set()
        for each in writers:
            each.join()


def _stored(server: Server, shop: str, table: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table, by the JSON of their keys."""
    with server.connect(database=shop, cursorclass=pymysql.cursors.DictCursor) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT * FROM {table}")
        return {json.dumps({"id": row["id"]}): row for row in cursor.fetchall()}


def _has(kafka: Kafka, topic: str, key: int) -> bool:
    return any(each == {"id": key} for each, _ in records_of(kafka, topic))


def _assert_chained(records: Records) -> None:
    """Each update begins where the change before it ended: nothing is missing, doubled or moved."""
    rows: dict[str, Any] = {}
    for key, value in records:
        at = json.dumps(key)
        if value is None:
            continue
        if value["op"] in ("u", "d") and at in rows:
            before = {name: value["before"][name] for name in rows[at]}  # without new columns
            assert before == rows[at], (value, rows[at])
        if value["op"] == "c":
            assert rows.get(at) is None
        rows[at] = value["after"]
