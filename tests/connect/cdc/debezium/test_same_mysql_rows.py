"""The same workload through Debezium's MySQL connector and through tidemill gives the same rows.

``comparing`` says how to run it. Each difference between the events is listed here and in
docs/cdc-mysql.md.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.connect.cdc.debezium.comparing import (
    Engine,
    Event,
    Record,
    Row,
    debezium,
    last_keys,
    needs_debezium,
    opened,
    without_truncates,
)
from tests.connect.conftest import RunningWorker, records_of
from tests.support.mysql import PASSWORD, USER, MySql, mysql
from tests.support.processes import skip_if_missing
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import parse

pytestmark = [needs_debezium]

SCHEMA = """
CREATE TABLE orders (
    id int PRIMARY KEY, tiny tinyint, tiny_u tinyint unsigned, small smallint,
    small_u smallint unsigned, medium mediumint, medium_u mediumint unsigned, int_u int unsigned,
    big bigint, big_u bigint unsigned, flag bool, amount decimal(12, 2), exact decimal(65, 30),
    single float, twice double, name varchar(100), fixed char(5), latin varchar(9) charset latin1,
    note text, raw varbinary(9), padded binary(4), body blob, day date, at datetime(6),
    at_s datetime, at_zone timestamp(6) NULL, at_zone_s timestamp NULL, clock time(6),
    clock_s time, made year, doc json, size enum('small', 'größer'), tags set('a', 'b', 'c'),
    bit1 bit(1), bits bit(10), place point, numbers vector(3), next_id int AS (id + 1) STORED
) CHARACTER SET utf8mb4;
CREATE TABLE pairs (a int, b varchar(20), v text, PRIMARY KEY (a, b)) CHARACTER SET utf8mb4;
CREATE TABLE large (huge bigint unsigned PRIMARY KEY, note text, body longtext);
CREATE TABLE emptied (id int PRIMARY KEY, note text);
CREATE TABLE grown (id int PRIMARY KEY, note text);
CREATE TABLE done (id int PRIMARY KEY)
"""
TABLES = ("orders", "pairs", "large", "emptied", "grown")
USER_OF_DEBEZIUM = [
    f"CREATE USER debezium@'%' IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'",
    "GRANT SELECT, RELOAD, SHOW DATABASES, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT "
    "ON *.* TO debezium@'%'",
]
ORDER = """
INSERT INTO orders VALUES (
    {id}, -128, 255, -32768, 65535, -8388608, 16777215, 4294967295,
    -9223372036854775808, 18446744073709551615, true, -0.05, 12345678901234567890.5,
    0.1, 0.1, 'é😀', 'ab ', 'é€', 'a\\nb', x'00ff', x'01', x'00010200', '2020-02-29',
    '2020-01-02 03:04:05.123456', '9999-12-31 23:59:59', '2020-01-02 03:04:05.5',
    '2038-01-19 03:14:07', '23:59:59.999999', '-12:30:00', 2020,
    '{{"b": [1, null, 2.50, "é"], "a": {{"big": 18446744073709551615}}}}', 'größer', 'c,a',
    b'1', b'1000000001', point(1, 2), string_to_vector('[1, 2.5, -3]'), DEFAULT)
"""
BEFORE = [
    ORDER.format(id=1),
    "INSERT INTO orders (id, name) VALUES (2, 'before the snapshot')",
    "INSERT INTO pairs VALUES (1, 'x', 'old'), (2, 'y', 'old'), (3, 'z', 'old')",
    "INSERT INTO large VALUES (18446744073709551614, 'n', repeat('é', 50000))",
    "INSERT INTO emptied VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO grown VALUES (1, 'one'), (2, 'two')",
]
CHANGES = [
    ORDER.format(id=3),
    "INSERT INTO orders (id) VALUES (4)",
    "INSERT INTO orders (id, at, at_s, at_zone, at_zone_s, clock) VALUES "
    "(7, '2020-01-02 03:04:05.5', '2020-01-02', '2020-01-02', '2020-01-02', '00:00:00.5')",
    "INSERT INTO orders (id, twice, single, big_u, clock, clock_s, tags, fixed, body, doc) VALUES "
    "(5, -1.7976931348623157e308, 3.4e38, 7, '-838:59:59', '838:59:59', '', '', '', 'null')",
    "SET sql_mode = ''",
    "INSERT INTO orders (id, day, at, at_zone, made, size) VALUES "
    "(6, '0000-00-00', '2020-00-00', '0000-00-00', 0, 'wrong')",
    "SET sql_mode = DEFAULT",
    "UPDATE orders SET name = NULL, flag = false, amount = amount + 1 WHERE id IN (1, 3)",
    "UPDATE orders SET doc = json_set(doc, '$.c', true), tags = 'b' WHERE id = 3",
    "BEGIN",
    "UPDATE pairs SET v = 'new'",
    "DELETE FROM pairs WHERE a = 2",
    "INSERT INTO pairs VALUES (4, 'w', 'with the others')",
    "COMMIT",
    "BEGIN",
    "INSERT INTO pairs VALUES (9, 'z', 'undone')",
    "ROLLBACK",
    "BEGIN",
    "INSERT INTO pairs VALUES (5, 'v', 'kept')",
    "SAVEPOINT here",
    "INSERT INTO pairs VALUES (6, 'u', 'undone')",
    "ROLLBACK TO here",
    "COMMIT",
    "UPDATE pairs SET b = 'moved' WHERE a = 1",
    "UPDATE pairs SET a = a + 100 ORDER BY a DESC",
    "REPLACE INTO pairs VALUES (104, 'w', 'replaced')",
    "INSERT INTO pairs VALUES (104, 'w', '') ON DUPLICATE KEY UPDATE v = 'merged'",
    "UPDATE large SET note = 'changed'",
    "INSERT INTO large VALUES (1, 'm', repeat('x', 700000))",
    "DELETE FROM large WHERE huge = 18446744073709551614",
    "INSERT INTO emptied VALUES (3, 'three')",
    "TRUNCATE TABLE emptied",
    "INSERT INTO emptied VALUES (1, 'again')",
    "INSERT INTO grown VALUES (3, 'three')",
    "ALTER TABLE grown ADD COLUMN more varchar(9) NOT NULL DEFAULT 'new'",
    "INSERT INTO grown VALUES (4, 'four', 'given')",
    "UPDATE grown SET note = 'changed' WHERE id < 3",
    "ALTER TABLE grown ADD COLUMN early bigint FIRST, MODIFY note varchar(50)",
    "INSERT INTO grown VALUES (-5, 5, 'five', 'given')",
    "DELETE FROM grown WHERE id = 2",
    "DELETE FROM orders WHERE id IN (1, 2)",
    "INSERT INTO done VALUES (1)",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    with skip_if_missing(), mysql(tmp_path_factory.mktemp("mysql") / "log") as found:
        yield found


def properties(server: MySql, folder: Path) -> dict[str, str]:
    """Return the properties of Debezium's connector, for a user of its own."""
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.port": str(server.port),
        "database.user": "debezium",
        "database.password": PASSWORD,
        "database.server.id": "223344",
        "database.include.list": "shop",
        "driver.allowPublicKeyRetrieval": "true",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / "history"),
        "include.schema.changes": "false",
        "snapshot.mode": "initial",
        "bigint.unsigned.handling.mode": "precise",
    }


def test_debezium_and_tidemill_deliver_the_same_changes_of_mysql(
    kafka: Kafka, name: str, server: MySql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", PASSWORD)
    section = {"unix_socket": server.socket, "user": USER, "password": "${env:MYSQL_PASSWORD}"}
    definition = parse({"name": name, "kind": "mysql", "tables": ["shop.*"], "database": section})
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("USE shop")
        cursor.execute("SET time_zone = '+00:00'")
        for statement in [*SCHEMA.split(";"), *USER_OF_DEBEZIUM, *BEFORE]:
            cursor.execute(statement)
        with debezium(tmp_path, "debezium.shop.done", properties(server, tmp_path)) as engine:
            with RunningWorker(definition, kafka) as worker:
                worker.wait_for_snapshots()
                worker.wait(lambda: _streams(cursor, engine), "Debezium streams")
                for statement in CHANGES:
                    cursor.execute(statement)
                worker.wait(lambda: bool(records_of(kafka, f"{name}.shop.done")), "the end")
                worker.wait_for_snapshots()  # of tables that were truncated or altered
            engine.wait_for_end()
    for table in TABLES:
        _compare(table, records_of(kafka, f"{name}.shop.{table}"), engine.records(table))


def _streams(cursor: Any, engine: Engine) -> bool:
    engine.assert_runs()
    cursor.execute("SHOW PROCESSLIST")
    return any(row[1] == "debezium" and row[4].startswith("Binlog Dump") for row in cursor)


def _compare(table: str, ours: Sequence[Record], theirs: Sequence[Record]) -> None:
    found = [opened(each) for each in ours]
    expected = [opened(each, _as_tidemill) for each in theirs]
    assert found, table
    assert last_keys(found) == last_keys(expected), table
    for event, other in zip(_streamed(table, found), _streamed(table, expected), strict=True):
        complete = _with_lost_values(other, event)
        assert event == complete, table
        assert json.dumps(event) == json.dumps(complete), table  # also the order of columns
    assert _places(ours) == _places(theirs), table


# --- the differences, each with its reason ------------------------------------------------------

_LOST = {
    "clock": {"-838:59:59.000000"},
    "clock_s": {"-12:30:00", "838:59:59"},
    "day": {"0000-00-00"},
    "at": {"2020-00-00T00:00:00.000000"},
    "at_zone": {"0000-00-00T00:00:00.000000Z"},
}
"""Values of MySQL that Java's types don't have: Debezium delivers null."""


def _as_tidemill(column: str, value: Any) -> Any:
    """Return a value of Debezium in the form that tidemill gives it.

    Debezium's form is that of a type of Kafka Connect, which the JSON does not name.
    """
    if value is None:
        return None
    match column:
        case "big_u" | "huge":  # "precise" makes a decimal, with its bytes in base64
            number = int.from_bytes(base64.b64decode(value), "big", signed=True)
            return number if number < 2**63 else str(number)
        case "bits":  # bytes, the lowest first; here it is the digits that MySQL shows
            return f"{int.from_bytes(base64.b64decode(value), 'little'):010b}"
        case "day" | "at_s":  # "isostring" writes Z behind times without a zone, too
            return value.removesuffix("Z")
        case (
            "at" | "at_zone" | "clock"
        ):  # as many digits as the value needs; here as many as the column has
            whole, _, fraction = value.removesuffix("Z").partition(".")
            return f"{whole}.{fraction:0<6}" + "Z" * (column == "at_zone")
        case "made":  # it takes 0 for the year 1900; MySQL shows 0000
            return 0 if value == 1900 else value
        case "doc":  # the stream has no spaces, the snapshot has the server's text
            return json.dumps(json.loads(value), ensure_ascii=False)
        case "place":  # an object with x, y, wkb and srid; here the bytes that are stored
            srid = (value["srid"] or 0).to_bytes(4, "little")
            return base64.b64encode(srid + base64.b64decode(value["wkb"])).decode()
        case "numbers":  # a list; here the bytes that are stored
            return base64.b64encode(struct.pack(f"<{len(value)}f", *value)).decode()
    return value


def _with_lost_values(theirs: Event, ours: Event) -> Event:
    """Return Debezium's event with the values of tidemill that it can't deliver."""

    def row(values: Row | None, others: Row | None) -> Row | None:
        if values is None or others is None:
            return values
        return {
            name: others[name] if each is None and others[name] in _LOST.get(name, ()) else each
            for name, each in values.items()
        }

    return theirs[0], theirs[1], row(theirs[2], ours[2]), row(theirs[3], ours[3])


def _streamed(table: str, events: list[Event]) -> list[Event]:
    """Return a table's events without those that only one of both writes."""
    if table not in ("emptied", "grown"):
        return events
    # After TRUNCATE and ALTER TABLE, tidemill reads the table again.
    first = next(at for at, event in enumerate(events) if event[1] != "r")
    return without_truncates(
        events[:first] + [event for event in events[first:] if event[1] != "r"]
    )


def _places(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Return where the changes are in the binary log, and when they were committed.

    ``pos`` is the begin of the event in Debezium's records, and its end in ours.
    """
    sources = [
        value["source"]
        for _, value in records
        if value is not None and value["op"] != "t" and value["source"].get("gtid")
    ]
    fields = ("gtid", "server_id", "file", "row", "ts_ms")
    return [tuple(each[field] for field in fields) for each in sources]
