"""A source continues where its position is, and notices when that is not possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading
from tests.support.processes import poll_until
from tidemill.connect.cdc.errors import PositionLostError, SetupError, SourceUnavailableError
from tidemill.connect.cdc.postgres.lsn import place_of

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]


@pytest.fixture
def read(sql: Sql, started: Make) -> Reading:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return started()


def ids(reading: Reading, count: int) -> list[int]:
    return [each.after["id"] for each in reading.changes(count) if each.after]


@pytest.mark.parametrize("streaming", [True, False])
def test_every_place_of_a_large_transaction_can_be_resumed(
    sql: Sql, started: Make, streaming: bool
) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = started(streaming=streaming)
    sql.execute("INSERT INTO t VALUES (0)")
    with sql.transaction():
        sql.execute("INSERT INTO t SELECT generate_series(1, 6000)")
        with sql.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            copy.write("".join(f"{i}\n" for i in range(6001, 12001)))  # many rows in one record
    sql.execute("INSERT INTO t VALUES (12001)")
    read.changes(12002)
    everything = [each for batch in read.batches for each in batch.changes]
    assert [each.after["id"] for each in everything if each.after] == list(range(12002))
    parts = [batch.position for batch in read.batches if "commit" in batch.position]
    assert len(parts) >= 2
    seen = 0
    for batch in list(read.batches)[:-1]:
        seen += len(batch.changes)
        read = read.again(batch.position)
        left = 12002 - seen
        assert ids(read, left) == list(range(seen, 12002))
    read.source.close()


def test_a_new_table_does_not_move_the_place_within_a_large_transaction(
    sql: Sql, read: Reading
) -> None:
    """The source reports the table before the server has sent the transaction again."""
    sql.execute("INSERT INTO t SELECT generate_series(1, 12000)")
    found = read.changes(1)
    place = place_of(read.position)
    sql.execute("CREATE TABLE later (id int PRIMARY KEY)")
    read = read.again()
    batch = read.look()
    assert "public.later" in batch.resync
    assert place_of(batch.position) >= place
    found += batch.changes
    read = read.again(batch.position)
    found += read.changes(12000 - len(found))
    assert [each.after["id"] for each in found if each.after] == list(range(1, 12001))
    read.source.close()


def test_what_is_not_confirmed_comes_again_and_what_is_confirmed_does_not(
    sql: Sql, read: Reading
) -> None:
    start = dict(read.position)
    sql.execute("INSERT INTO t VALUES (1)")
    assert ids(read, 1) == [1]
    read = read.again(start)
    assert ids(read, 1) == [1]
    read.confirm()
    sql.execute("INSERT INTO t VALUES (2)")
    read = read.again()
    assert ids(read, 1) == [2]
    read.source.close()


def test_the_slot_moves_when_changes_are_confirmed_and_when_other_tables_change(
    sql: Sql, read: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.connect.cdc.postgres.source._HEARTBEAT_S", 0.0)

    def confirmed() -> int:
        query = "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::int8 FROM pg_replication_slots"
        query += " WHERE slot_name LIKE 'tidemill_t%' AND database = current_database()"
        return int(sql.execute(query.encode()).fetchall()[0][0])

    def polled() -> bool:
        batch = read.source.poll(0.05)
        if batch is not None:
            read.take(batch)
        read.confirm()
        return confirmed() > before

    sql.execute("CREATE UNLOGGED TABLE busy (id int)")
    sql.execute("INSERT INTO t VALUES (1)")
    read.changes(1)
    before = confirmed()
    assert read.source.lag().bytes
    poll_until(polled, 20, "the slot moves")
    before = confirmed()
    sql.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 1000)")
    poll_until(polled, 20, "the slot of idle tables moves")
    assert not read.batches[-1].changes


def test_heartbeats_move_a_slot_while_nothing_is_written(sql: Sql, reading: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    read = reading(heartbeat_s=0.05)
    first = dict(read.start())

    def moved() -> bool:
        batch = read.source.poll(0.1)
        return batch is not None and batch.position["lsn"] != first["lsn"]

    poll_until(moved, 20, "the position moves")


def test_a_dropped_slot_is_noticed(sql: Sql, read: Reading) -> None:
    position = read.position
    read.source.close()
    drop(sql)
    with pytest.raises(PositionLostError, match="does not exist any more") as caught:
        read.source.start(position)
    assert "resnapshot" in caught.value.hint
    read.source.start(None)


def test_a_slot_that_was_created_again_is_noticed(sql: Sql, read: Reading) -> None:
    position = read.position
    read.source.close()
    name = drop(sql)
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    with pytest.raises(PositionLostError, match="it was created again"):
        read.source.start(position)


def test_a_slot_whose_log_was_removed_is_noticed(sql: Sql, read: Reading) -> None:
    position = read.position
    read.source.close()
    sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    try:
        sql.execute("SELECT pg_reload_conf()")
        sql.execute("CREATE TABLE filler (id serial PRIMARY KEY, v text)")

        def is_lost() -> bool:
            sql.execute(
                "INSERT INTO filler (v) SELECT repeat('x', 8000) FROM generate_series(1, 5000)"
            )
            sql.execute("SELECT pg_switch_wal()")
            sql.execute("CHECKPOINT")
            query = "SELECT wal_status FROM pg_replication_slots WHERE database=current_database()"
            return sql.execute(query).fetchall() == [("lost",)]

        poll_until(is_lost, 60, "the slot is lost")
    finally:
        sql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        sql.execute("SELECT pg_reload_conf()")
    with pytest.raises(PositionLostError, match="max_slot_wal_keep_size"):
        read.source.start(position)
    assert read.source.check()[0].severity == "error"
    read.source.start(None)
    sql.execute("INSERT INTO t VALUES (1)")
    assert ids(read, 1) == [1]


def test_a_position_of_another_server_or_slot_is_refused(read: Reading) -> None:
    position = dict(read.position)
    for wrong, text in (
        ({"system": "1"}, "another server"),
        ({"database": "x"}, "another server"),
        ({"slot": "other"}, "of the slot other"),
        ({"timeline": 7}, "does not descend"),
        ({"lsn": "what"}, "can't be used"),
    ):
        with pytest.raises(PositionLostError, match=text):
            read.source.start({**position, **wrong})
    with pytest.raises(PositionLostError, match="can't be used"):
        read.source.start({"file": "a.db", "id": 3})


def test_two_readers_of_one_slot_are_refused_with_the_reason(read: Reading, sql: Sql) -> None:
    from tidemill.connect.cdc.postgres import PostgresSource

    sql.execute("INSERT INTO t VALUES (1)")
    read.changes(1)
    other = PostgresSource(read.capture)
    with pytest.raises(SourceUnavailableError, match="another program reads"):
        other.start(read.position)
    other.close()


def test_a_broken_connection_is_reported_and_another_start_continues(
    sql: Sql, read: Reading
) -> None:
    sql.execute("INSERT INTO t VALUES (1)")
    assert ids(read, 1) == [1]
    sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with pytest.raises(SourceUnavailableError):
        read.nothing(20)
    sql.execute("INSERT INTO t VALUES (2)")
    read = read.again()
    assert ids(read, 1) == [2]
    read.source.close()


def test_drop_removes_the_slot_and_the_publication_and_can_be_repeated(
    sql: Sql, read: Reading
) -> None:
    read.source.drop()
    read.source.drop()
    for catalog in ("pg_replication_slots WHERE database = current_database()", "pg_publication"):
        assert sql.execute(f"SELECT count(*) FROM {catalog}".encode()).fetchone() == (0,)


def test_a_slot_with_a_chosen_name_is_never_replaced(sql: Sql, reading: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute(
        "SELECT pg_create_logical_replication_slot('precious_' || oid, 'pgoutput')"
        " FROM pg_database WHERE datname = current_database()"
    )
    name = sql.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    ).fetchall()[0][0]
    read = reading(slot=name)
    with pytest.raises(SetupError, match="there is no position for it"):
        read.start()


def drop(sql: Sql) -> str:
    """Drop the only slot of the database when it is free, and return its name."""
    query = "SELECT slot_name, active FROM pg_replication_slots WHERE database=current_database()"
    poll_until(lambda: not sql.execute(query).fetchall()[0][1], 20, "the slot is free")
    name = str(sql.execute(query).fetchall()[0][0])
    sql.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return name
