"""The same workload through Debezium's engine and through tidemill gives the same rows.

``comparing`` says how to run it. Each difference between the envelopes is listed here and in
docs/cdc.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.debezium.comparing import (
    Engine,
    Event,
    Record,
    debezium,
    last_keys,
    needs_debezium,
    opened,
    without_truncates,
)
from tests.connect.conftest import RunningWorker, records_of
from tests.support.ports import reserve_port
from tests.support.postgres import LOGICAL, postgres
from tests.support.processes import skip_if_missing
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.values import UNAVAILABLE

pytestmark = [needs_debezium]

SCHEMA = """
CREATE TABLE orders (
    id int PRIMARY KEY, small smallint, big bigint, flag bool, amount numeric(12, 2), free numeric,
    single real, double float8, name text, fixed char(5), raw bytea, day date,
    at timestamp(6), at_zone timestamptz(6), clock time(6), doc jsonb, uid uuid, tags text[]
);
CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b));
CREATE TABLE large (id int PRIMARY KEY, note text, body text);
CREATE TABLE done (id int PRIMARY KEY);
"""
BEFORE = """
INSERT INTO orders (id, name) VALUES (1, 'before the snapshot');
INSERT INTO pairs VALUES (1, 'x', 'old'), (2, 'y', 'old');
INSERT INTO large SELECT 1, 'n', string_agg(md5(i::text), '') FROM generate_series(1, 500) i;
"""
CHANGES = [
    """INSERT INTO orders VALUES (2, -32768, 9223372036854775807, true, -0.05, 1e20, 0.1, 0.1,
       'é😀', 'ab', '\\x00ff', '2020-02-29', '2020-01-02 03:04:05.123456',
       '2020-01-02 03:04:05.5+02', '23:59:59.999999', '{"a": [1, null]}',
       'f81d4fae-7dec-41d0-a765-00a0c91e6b00', '{a,NULL,"b c"}')""",
    "INSERT INTO orders (id, free, double, single) VALUES (3, 'NaN', 'Infinity', '-Infinity')",
    "UPDATE orders SET name = NULL, flag = false WHERE id = 2",
    "BEGIN; UPDATE pairs SET v = 'new'; DELETE FROM pairs WHERE a = 2; COMMIT",
    "BEGIN; INSERT INTO pairs VALUES (9, 'z', 'undone'); ROLLBACK",
    "UPDATE pairs SET b = 'moved' WHERE a = 1",
    "UPDATE large SET note = 'changed' WHERE id = 1",
    "DELETE FROM orders WHERE id = 1",
    "TRUNCATE large",
    "INSERT INTO done VALUES (1)",
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server: Debezium's driver can't use a Unix socket."""
    number = reserve_port()
    settings = {**LOGICAL, "listen_addresses": "127.0.0.1", "port": str(number)}
    with skip_if_missing(), postgres(tmp_path_factory.mktemp("postgres") / "log", settings):
        yield number


def properties(port: int) -> dict[str, str]:
    """Return the properties of Debezium's connector, with a slot of its own."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.port": str(port),
        "database.user": "tidemill",
        "database.password": "unused",
        "database.dbname": "postgres",
        "slot.name": "debezium",
        "publication.name": "debezium",
        "table.include.list": "public.orders,public.pairs,public.large,public.done",
    }


def test_debezium_and_tidemill_deliver_the_same_changes(
    kafka: Kafka, name: str, port: int, tmp_path: Path
) -> None:
    dsn = f"host=127.0.0.1 port={port} user=tidemill dbname=postgres"
    definition = parse(
        {
            "name": name,
            "kind": "postgres",
            "tables": ["public.*"],
            "database": {"dsn": dsn},
        }
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(BEFORE)
        with debezium(tmp_path, "debezium.public.done", properties(port)) as engine:
            with RunningWorker(definition, kafka) as worker:
                worker.wait_for_snapshots()
                worker.wait(lambda: _streams(connection, engine), "Debezium streams")
                for statement in CHANGES:
                    connection.execute(statement.encode())
                worker.wait(lambda: bool(records_of(kafka, f"{name}.public.done")), "the end")
                worker.wait_for_snapshots()  # of tables that were truncated or altered
            engine.wait_for_end()
    for table in ("orders", "pairs", "large", "done"):
        ours = [_alike(each) for each in records_of(kafka, f"{name}.public.{table}")]
        theirs = [_alike(each) for each in engine.records(table)]
        assert last_keys(ours) == last_keys(theirs), table
        if table == "large":
            ours, theirs = without_truncates(ours), without_truncates(theirs)
        for event, other in zip(ours, theirs, strict=True):
            _use_one_placeholder(event, other)
            assert event == other, table


def _streams(connection: Any, engine: Engine) -> bool:
    """Return whether the snapshot is done.

    The slot is also active while it is made. A TRUNCATE then empties the table for the snapshot.
    """
    engine.assert_runs()
    row = connection.execute(
        "SELECT count(*) FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid "
        "WHERE slot_name = 'debezium' AND state = 'streaming'"
    ).fetchone()
    return bool(row[0])


# --- the differences, each with its reason ------------------------------------------------------

DEBEZIUM_UNAVAILABLE = "__debezium_unavailable_value"
_TEMPORAL = re.compile(r"(\d{4}-\d\d-\d\d)?(T|^)?(\d\d:\d\d:\d\d(\.\d+)?)?Z?")


def _alike(record: Record) -> Event:
    """Return a record without the differences that docs/cdc.md lists."""
    key, op, before, after = opened(record, lambda _, value: _value(value))
    if op == "d" and before is not None and key is not None:
        # Without REPLICA IDENTITY FULL, a delete has the key only. Debezium adds null for the rest.
        before = {name: before[name] for name in key}
    return key, op, before, after


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value == "NAN":  # Debezium's spelling for numeric; PostgreSQL and tidemill write NaN
        return "NaN"
    if value and _TEMPORAL.fullmatch(value):
        # Debezium writes Z also behind times without a zone, and always six digits with one.
        body = value.removesuffix("Z")
        return body.rstrip("0").rstrip(".") if "." in body else body
    return value


def _use_one_placeholder(ours: Event, theirs: Event) -> None:
    """Use Debezium's placeholder for a large value that a change did not touch.

    tidemill reads the value from the table, if the row is still there.
    """
    if ours[3] is not None and theirs[3] is not None:
        for name, value in theirs[3].items():
            if value == DEBEZIUM_UNAVAILABLE:
                assert ours[3][name] == UNAVAILABLE or len(ours[3][name]) > 2000
                ours[3][name] = value
