"""Nothing is lost, doubled or out of order while workers and the broker are killed.

Connections commit random transactions on several tables, with savepoints, rollbacks, changes of
keys, large values, TRUNCATE and ALTER TABLE, while snapshots run and the worker and the broker get
SIGKILL. Others attach, detach and truncate partitions, change types, keys and replica identities,
and rename labels (``alterations``). Afterwards each topic, read with read_committed and replayed by
key, equals its table.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.connect.cdc.postgres import alterations, traffic
from tests.connect.cdc.postgres.alterations import Alterer
from tests.connect.cdc.postgres.folding import selected, text_of
from tests.connect.cdc.postgres.traffic import TABLES, Ledger, Writer
from tests.connect.conftest import Records, records_of, table_of
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import poll_until
from tests.support.source_worker import SourceWorker
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter
from tidemill.connect.cdc.topics import SOURCES

KILLS = rounds("CRASH_CAPTURE_KILLS", 4, 300)
ROUNDS = rounds("CRASH_CAPTURE_ROUNDS", 1, 6)
SEED = chosen_seed(1)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.separate
@pytest.mark.parametrize("turn", range(ROUNDS))
def test_topics_equal_tables_after_kills(
    dsn: str, sql: psycopg.Connection[Any], tmp_path: Path, turn: int
) -> None:
    seed = SEED + turn
    print(f"CRASH_SEED={seed} CRASH_CAPTURE_KILLS={KILLS}")
    chance = random.Random(seed)
    traffic.create(sql, 400)
    sql.execute("CREATE TABLE marks (stamp bigint PRIMARY KEY)")
    alterations.create(sql)
    with BrokerProcess(tmp_path / "broker") as broker:
        create_source(tmp_path, broker, dsn)
        kafka = Kafka(broker.bootstrap)
        workers = SourceWorker("shop", broker.bootstrap, tmp_path / "worker.log")
        ledger, stamps = Ledger(), itertools.count(1)
        writers: list[Writer | Alterer] = [
            *(Writer(dsn, seed + n, ledger, stamps, ddl=n == 0) for n in range(3)),
            *(Alterer(dsn, seed + n) for n in range(2)),
        ]
        workers.start()
        try:
            slots = "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
            slots += " AND confirmed_flush_lsn IS NOT NULL"
            poll_until(lambda: bool(sql.execute(slots.encode()).fetchall()), 60, "the slot")
            for each in writers:
                each.start()
            for number in range(KILLS):
                time.sleep(chance.uniform(0.3, 2.0))  # the moment of a kill is random
                if number % 12 == 11:
                    time.sleep(11)  # a worker that runs looks at the catalog every ten seconds
                if number % 4 == 2:
                    broker.kill()
                    broker.start()
                else:
                    workers.kill()
                    workers.start()
                if number % 3 == 1:
                    order_snapshot(kafka, chance.choice(TABLES))
            for each in writers:
                each.stop.set()
            for each in writers:
                each.join(30)
                assert each.error is None, each.error
            workers.kill()  # the next one compares the catalog as it starts
            workers.start()
            wait_until_equal(sql, kafka)
        finally:
            for each in writers:
                each.stop.set()
            workers.kill()
        assert ledger.transactions > 20
        done = sum(each.done for each in writers if isinstance(each, Alterer))
        print(f"{ledger.transactions} transactions of writers, {done} with DDL among them")
        assert done > 20
        for table in TABLES:
            check_events(table, records_of(kafka, f"shop.public.{table}"), ledger)


def create_source(folder: Path, broker: BrokerProcess, dsn: str) -> None:
    path = folder / "shop.toml"
    path.write_text(
        'name = "shop"\nkind = "postgres"\nmanaged = false\nchunk_rows = 15\nheartbeat_s = 0.5\n'
        f'exclude = ["marks"]\n[database]\ndsn = "{dsn}"\n'
    )
    command = [sys.executable, "-m", "tidemill", "source", "create", str(path)]
    subprocess.run([*command, "--bootstrap-servers", broker.bootstrap], check=True, timeout=300)


def order_snapshot(kafka: Kafka, table: str) -> None:
    writer = BoardWriter(kafka, SOURCES)
    writer.command("shop", f"snapshot/public.{table}", table=f"public.{table}")
    writer.flush()


def wait_until_equal(sql: psycopg.Connection[Any], kafka: Kafka) -> None:
    def differences() -> list[str]:
        return [
            *(text for table in TABLES for text in compared(sql, kafka, table)),
            *(text for table in altered(sql) for text in compared_as_text(sql, kafka, table)),
        ]

    try:
        poll_until(lambda: not differences(), 60, "the topics equal the tables", 0.5)
    except TimeoutError:
        pytest.fail("\n".join(differences()[:20]))


def compared(sql: psycopg.Connection[Any], kafka: Kafka, table: str) -> list[str]:
    """Return how a topic and its table differ."""
    with sql.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(f"SELECT * FROM {table}".encode()).fetchall()
    there = {row["id"]: row for row in rows}
    found = table_of(records_of(kafka, f"shop.public.{table}"))
    here = {row["id"]: row for row in found.values()}
    texts = [f"{table}: keys {sorted(here.keys() ^ there.keys())} are in one only"]
    texts = texts if here.keys() ^ there.keys() else []
    for key in here.keys() & there.keys():
        for column, value in there[key].items():
            if here[key].get(column) != value:
                texts.append(f"{table} {key} {column}: {value!r}, topic {here[key].get(column)!r}")
    return texts


def altered(sql: psycopg.Connection[Any]) -> list[str]:
    """Return the tables of ``alterations``, with the partitions that are detached."""
    found = sql.execute(
        "SELECT relname FROM pg_class WHERE relname ~ '^p[0-9]$' AND NOT relispartition"
    ).fetchall()
    return [*alterations.TABLES, *(name for (name,) in found)]


def compared_as_text(sql: psycopg.Connection[Any], kafka: Kafka, table: str) -> list[str]:
    """Return how a topic and its table differ; a column that the topic lacks is NULL."""
    names, expected = selected(sql, table)
    topic = table_of(records_of(kafka, f"shop.public.{table}"))
    found = [tuple(text_of(row.get(name)) for name in names) for row in topic.values()]
    more, less = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    return [f"{table}: only in the topic {dict(more)}, only in the table {dict(less)}"] * bool(
        more or less
    )


def check_events(table: str, records: Records, ledger: Ledger) -> None:
    """Check the order per key, and that each committed write is there once."""
    stamps: Counter[int] = Counter()
    last: dict[Any, tuple[int, int]] = {}
    for key, value in records:
        if value is None:
            continue
        source = value["source"]
        assert source["connector"] == "postgresql"
        if value["op"] in "cud" and "commit_lsn" in source:
            place = (source["commit_lsn"], source["lsn"])
            assert last.get(key["id"], (0, 0)) <= place, (table, key, value)
            last[key["id"]] = place
        if value["op"] in "cu":
            stamps[value["after"]["stamp"]] += 1
        elif value["op"] == "r" and value["after"]["stamp"] > 0:
            assert value["after"]["stamp"] in ledger.committed[table]
    written = {stamp for stamp in stamps if stamp > 0}
    assert written <= ledger.committed[table], "a write that was rolled back is in the topic"
    assert ledger.committed[table] - written == set(), "writes are missing"
    assert [stamp for stamp, count in stamps.items() if count > 1] == [], "writes are doubled"
