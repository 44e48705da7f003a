"""``check`` names what the server lacks, and the statement that gives it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading
from tests.support.postgres import postgres
from tidemill.connect.cdc.contract import Capture, Finding
from tidemill.connect.cdc.errors import DefinitionError, SetupError, SourceUnavailableError
from tidemill.connect.cdc.postgres import PostgresSource
from tidemill.connect.cdc.postgres.settings import settings_of

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]


def errors(found: list[Finding]) -> list[Finding]:
    return [each for each in found if each.severity == "error"]


def test_a_server_that_is_set_up_has_no_errors(sql: Sql, reading: Make) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = reading().source.check()
    assert errors(found) == []
    assert any("max_slot_wal_keep_size" in each.text for each in found)
    assert sql.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


@pytest.mark.parametrize(
    ("table", "options", "severity", "text"),
    [
        ("(a int)", {}, "error", "public.t has no primary key"),
        ("(a int)", {"keyless": "skip"}, "note", "is skipped"),
        ("(a int)", {"keyless": "all-columns"}, "error", "replica identity is not FULL"),
        ("(a int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", {}, "error", "NOTHING"),
        ("(a int PRIMARY KEY DEFERRABLE)", {}, "error", "deferrable primary key"),
        (
            "(a int PRIMARY KEY, b int NOT NULL UNIQUE); ALTER TABLE t REPLICA IDENTITY USING INDEX"
            " t_b_key; ALTER TABLE t DROP CONSTRAINT t_b_key",
            {},
            "error",
            "the index was dropped",
        ),
        (
            "(a int PRIMARY KEY) PARTITION BY LIST (a); CREATE UNLOGGED TABLE u PARTITION OF t"
            " DEFAULT",
            {},
            "warning",
            "public.u, a partition of public.t, is unlogged",
        ),
        (
            "(a int PRIMARY KEY DEFERRABLE) PARTITION BY LIST (a); CREATE TABLE u PARTITION OF t"
            " DEFAULT",
            {},
            "error",
            "public.u, a partition of public.t, has a deferrable primary key",
        ),
        ("(a int PRIMARY KEY, b text)", {}, "note", "out of line"),
        ("(a int PRIMARY KEY)", {"include": ("nope",)}, "warning", "select no table"),
        ("(a int PRIMARY KEY)", {"failover": True}, "error", "needs PostgreSQL 17"),
    ],
)
def test_tables_are_checked(
    sql: Sql, reading: Make, table: str, options: dict[str, Any], severity: str, text: str
) -> None:
    sql.execute(f"CREATE TABLE t {table}".encode())
    found = [each for each in reading(**options).source.check() if text in each.text]
    has_failover = "failover" in options and sql.info.server_version >= 170000
    assert [each.severity for each in found] == ([] if has_failover else [severity])


@pytest.fixture
def role(sql: Sql) -> Iterator[str]:
    """A role without privileges."""
    sql.execute("CREATE ROLE poor LOGIN")
    yield "poor"
    sql.execute("DROP OWNED BY poor")
    sql.execute("DROP ROLE poor")


def test_the_statements_give_a_role_what_it_lacks(sql: Sql, dsn: str, role: str) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    sql.execute("INSERT INTO t VALUES (1, 1)")
    theirs = dsn.replace("user=tidemill", f"user={role}")
    read = Reading(theirs)
    missing = errors(read.source.check())
    assert [each.text for each in missing] == [
        "the role poor is not allowed to replicate",
        f"the publication tidemill_{read.capture.name} does not exist, and the role does not own "
        "public.t",
        "the role is not allowed to read public.t, which a snapshot needs",
    ]
    with pytest.raises(SetupError, match="can't create the publication") as caught:
        read.start()
    assert "CREATE PUBLICATION" in caught.value.hint
    for each in missing:
        sql.execute(each.fix.encode())
    assert errors(read.source.check()) == []
    read.start()
    (table,) = read.source.tables()
    assert read.source.read_chunk(table, None, 10).rows == [{"id": 1, "v": 1}]
    sql.execute("INSERT INTO t VALUES (2, 2)")
    assert [each.op for each in read.changes(1)] == ["c"]
    read.source.drop()
    sql.execute(f"DROP PUBLICATION tidemill_{read.capture.name}".encode())


def test_a_later_table_of_another_role_stops_nothing(sql: Sql, dsn: str, role: str) -> None:
    sql.execute(f"ALTER ROLE {role} REPLICATION".encode())
    sql.execute(f"GRANT CREATE ON DATABASE {sql.info.dbname} TO {role}".encode())
    sql.execute(f"GRANT ALL ON SCHEMA public TO {role}".encode())
    sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute(f"ALTER TABLE t OWNER TO {role}".encode())
    read = Reading(dsn.replace("user=tidemill", f"user={role}"))
    read.start()
    sql.execute("CREATE TABLE later (id int PRIMARY KEY)")
    sql.execute("INSERT INTO t VALUES (1)")
    assert [each.after for each in read.look().changes] == [{"id": 1}]
    assert list(read.source.left_out()) == ["public.later"]
    (found,) = [each for each in read.source.check() if "does not own public.later" in each.text]
    sql.execute(found.fix.encode())
    assert read.look().resync == ["public.later"]
    assert read.source.left_out() == {}
    read.source.drop()


def test_a_server_without_logical_decoding_is_named(tmp_path_factory: Any) -> None:
    few = {"max_wal_senders": "0", "max_replication_slots": "0", "wal_level": "minimal"}
    with (
        postgres(tmp_path_factory.mktemp("minimal") / "log", few) as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        read = Reading(dsn)
        texts = [each.text for each in errors(read.source.check())]
        assert texts == [
            "wal_level is minimal, so the log has no row changes",
            "all 0 replication slots are in use",
            "all 0 WAL senders are in use",
        ]
        with pytest.raises((SetupError, SourceUnavailableError)):
            read.start()
        read.source.close()


@pytest.mark.parametrize(
    ("database", "text"),
    [
        ({"dsn": "postgresql://u:hunter2@h/d?bad=1"}, "can't parse the dsn"),
        ({"dsn": "host=x", "slot": "Upper"}, "invalid slot name"),
        ({"dsn": "host=x", "publication": ""}, "invalid publication"),
        ({"dsn": "host=x", "heartbeat_s": -1}, "invalid database.heartbeat_s"),
        ({"dsn": "host=x", "streaming": "on"}, "invalid database.streaming"),
        ({"dsn": "host=x", "sloot": "a"}, "unknown key database.sloot"),
        ({"dsn": 5}, "must be a string"),
    ],
)
def test_a_definition_is_checked_without_connecting(database: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text) as caught:
        PostgresSource(Capture("a", database=database))
    assert "hunter2" not in str(caught.value) + caught.value.hint


def test_a_password_is_in_no_error(tmp_path: Any) -> None:
    source = PostgresSource(
        Capture("a", database={"host": str(tmp_path), "user": "u", "password": "hunter2"})
    )
    with pytest.raises(SourceUnavailableError) as caught:
        source.check()
    assert "hunter2" not in str(caught.value) + caught.value.hint + repr(caught.value.__dict__)


def test_names_are_made_of_the_sources_name() -> None:
    found = settings_of(Capture("My-Shop.v2", database={"dsn": "host=x"}))
    assert (found.slot, found.publication) == ("tidemill_my_shop_v2", "tidemill_my_shop_v2")
    assert "timezone=UTC" in found.conninfo
