"""SQLite is captured exactly once while the worker and the broker are killed.

Several connections write random transactions: savepoints, rollbacks, REPLACE, changes of keys,
large values, schema changes. The worker gets SIGKILL and starts again, a snapshot runs. In the end
the topics by key equal the tables, the order of each key is that of the commits, and each committed
change is in the topic once.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.capture.load import KEYS, Load
from tests.support.broker_process import BrokerProcess
from tests.support.effort import rounds
from tests.support.processes import poll_until
from tests.support.source_worker import SourceWorker
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_table, read_to_end
from tidemill.connect.base.board import BoardWriter, create_topic
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.sqlite.rows import json_cells
from tidemill.connect.cdc.topics import SOURCES, state_topic

pytestmark = pytest.mark.crash

KILLS = rounds("CDC_KILLS", 3, 150)
SEEDS = range(1, 1 + rounds("CDC_ROUNDS", 1, 6))
BROKER_KILLS = rounds("CDC_BROKER_KILLS", 1, 30)


def last_position(kafka: Kafka, name: str) -> dict[str, Any]:
    """Return the worker's stored state."""
    found = read_table(kafka, "tests", state_topic(name)).get(b"state")
    state: dict[str, Any] = json.loads(found) if found else {}
    return state


def settle(kafka: Kafka, name: str, db: sqlite3.Connection, worker: SourceWorker) -> None:
    """Wait until the topics have everything that the change log has."""

    def done() -> bool:
        state = last_position(kafka, name)
        last = db.execute(f"SELECT max(id) FROM _tidemill_{name}_changes").fetchone()[0]
        position = state.get("position") or {"id": -1}
        return bool(not state["snapshots"] and position["id"] >= (last or 0)) if state else False

    try:
        # Twice: a schema change that is found late adds to the change log.
        for _ in range(2):
            poll_until(done, 90, "the worker has caught up", interval=0.3)
            time.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"{last_position(kafka, name)}\n{worker.log()}") from None


def run_load(
    broker: BrokerProcess, name: str, folder: Path, *, with_ddl: bool, seed: int
) -> tuple[Kafka, sqlite3.Connection, Load]:
    """Run the load while worker and broker are killed, and wait until all is captured."""
    path = folder / "load.db"
    load = Load(path, seed, with_ddl=with_ddl)
    kafka = Kafka(broker.bootstrap)
    definition = parse(
        {
            "name": name,
            "kind": "sqlite",
            "managed": False,
            "chunk_rows": 7,
            "heartbeat_s": 1,
            "database": {"path": str(path)},
        }
    )
    create_topic(kafka, SOURCES)
    board = BoardWriter(kafka, SOURCES)
    board.define(definition)
    board.flush()
    worker = SourceWorker(name, kafka.servers, folder / "worker.log")
    worker.start()
    poll_until(lambda: bool(last_position(kafka, name)), 60, "the source has started")
    chance = random.Random(seed)
    load.start()
    try:
        for number in range(KILLS):
            time.sleep(chance.random() * 1.2 + 0.3)
            worker.kill()
            if number < BROKER_KILLS:
                broker.kill()
                broker.start()
            worker.start()
            if number % 2:
                board.command(name, "snapshot/main.plain", table="main.plain")
        time.sleep(1.0)
        load.stop()
        db = sqlite3.connect(path)
        settle(kafka, name, db, worker)
    finally:
        if load._threads[0].is_alive():
            load._stop.set()
        worker.kill()
    return kafka, db, load


def table_rows(db: sqlite3.Connection, table: str) -> dict[str, dict[str, Any]]:
    cursor = db.execute(f"SELECT * FROM {table}")
    names = [each[0] for each in cursor.description]
    rows = [dict(zip(names, json_cells(row), strict=True)) for row in cursor.fetchall()]
    return {json.dumps({key: row[key] for key in KEYS[table]}): row for row in rows}


def check_topic(
    records: list[tuple[bytes, bytes | None]], rows: dict[str, dict[str, Any]]
) -> list[int]:
    """Check the topic of a table, and return the versions of its creates and updates."""
    live: dict[str, dict[str, Any]] = {}
    newest: dict[str, int] = {}
    versions: list[int] = []
    for raw, value in records:
        key = json.dumps(json.loads(raw))
        if value is None:
            live.pop(key, None)
            continue
        event = json.loads(value)
        if event["op"] == "d":
            continue
        version = event["after"]["ver"]
        assert version >= newest.get(key, 0), f"{key} goes back from {newest[key]} to {version}"
        newest[key] = version
        live[key] = event["after"]
        if event["op"] != "r":
            versions.append(version)
    assert live.keys() == rows.keys()
    assert live == rows
    return versions


@pytest.mark.parametrize("seed", SEEDS)
def test_each_change_is_captured_once_under_kills(
    start_broker: Any, tmp_path: Path, seed: int
) -> None:
    kafka, db, load = run_load(start_broker(), "once", tmp_path, with_ddl=False, seed=seed)
    for table in KEYS:
        records = list(read_to_end(kafka, "tests", f"once.main.{table}"))
        versions = check_topic(records, table_rows(db, table))
        written = load.written[table]
        assert len(versions) == len(set(versions)), "a change is in the topic twice"
        assert len(written) > 50
        # A version that a later write of the same transaction overwrote is there, too.
        assert set(versions) == written
    db.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_topics_equal_the_tables_after_schema_changes(
    start_broker: Any, tmp_path: Path, seed: int
) -> None:
    kafka, db, _ = run_load(start_broker(), "ddl", tmp_path, with_ddl=True, seed=seed + 1)
    for table in KEYS:
        records = list(read_to_end(kafka, "tests", f"ddl.main.{table}"))
        check_topic(records, table_rows(db, table))
    db.close()
