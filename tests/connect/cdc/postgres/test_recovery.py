"""The rows of the table of recovery about PostgreSQL (``docs/operations.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.connect.cdc.recovery import Recovery, assert_rows_are_tested, rows_of
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.errors import SourceUnavailableError
from tidemill.connect.cdc.postgres import publication, slot
from tidemill.connect.cdc.postgres import source as module
from tidemill.connect.cdc.postgres.connection import ReplicationConnection


class Case(Recovery):
    """A source of a database, as a role that owns its table."""

    dsn: str
    role: str

    @property
    def slot(self) -> str:
        return f"tidemill_{self.definition.name}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"SET ROLE {self.role}".encode())
            connection.execute(statement.encode())

    def admin(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def captured(self) -> None:
        super().captured()

        def is_free() -> bool:
            with psycopg.connect(self.dsn) as connection:
                query = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
                return connection.execute(query, (self.slot,)).fetchone() == (True,)

        poll_until(is_free, 30, "the session of the worker has ended")

    def rows(self) -> dict[int, str]:
        with psycopg.connect(self.dsn) as connection:
            return dict(connection.execute("SELECT id, v FROM a").fetchall())

    @contextmanager
    def fast(self) -> Iterator[None]:
        """Let sources look at the catalog all the time."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_REFRESH_S", 0.05)
            yield


def slot_dropped(case: Case) -> None:
    case.captured()
    case.admin(f"SELECT pg_drop_replication_slot('{case.slot}')")
    case.change()
    case.fails()
    case.recovers()


def slot_invalidated(case: Case) -> None:
    case.captured()
    case.change()
    case.admin("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    case.admin("SELECT pg_reload_conf()")
    try:

        def is_lost() -> bool:
            case.admin("SELECT pg_logical_emit_message(true, 'fill', '')")
            case.admin("SELECT pg_switch_wal()")
            case.admin("CHECKPOINT")
            with psycopg.connect(case.dsn) as connection:
                found = connection.execute(
                    "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (case.slot,)
                ).fetchone()
            return found == ("lost",)

        poll_until(is_lost, 60, "the slot is lost")
        case.fails()
        case.finds()
    finally:
        case.admin("ALTER SYSTEM RESET max_slot_wal_keep_size")
        case.admin("SELECT pg_reload_conf()")
    case.recovers()


def slot_in_use(case: Case) -> None:
    case.captured()
    other = ReplicationConnection.connect(case.definition.capture().database["dsn"])
    options = f"(proto_version '1', publication_names '{case.slot}')"

    def reads() -> bool:
        try:
            other.command(f"START_REPLICATION SLOT {case.slot} LOGICAL 0/0 {options}", "read")
        except SourceUnavailableError:  # the session of the worker has not ended yet
            return False
        return True

    try:
        poll_until(reads, 30, "another program reads the slot")
        case.change()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slot, "_FREE_S", 0.2)
            error = case.fails()
        case.admin(error.hint.partition("run: ")[2])
    finally:
        other.close()
    case.recovers("SELECT 1")


def slot_created_again(case: Case) -> None:
    case.captured()
    case.admin(f"SELECT pg_drop_replication_slot('{case.slot}')")
    case.change()
    case.admin(f"SELECT pg_create_logical_replication_slot('{case.slot}', 'pgoutput')")
    case.fails()
    case.recovers()


def publication_dropped(case: Case) -> None:
    case.captured()
    case.run(f"DROP PUBLICATION {case.slot}")
    case.change()
    case.fails()
    case.finds()
    case.fails()  # again, and nothing was made by the first attempt
    case.recovers()


def publication_dropped_while_running(case: Case) -> None:
    case.captured()
    with case.start() as running:
        running.wait_for_snapshots()
        case.run(f"DROP PUBLICATION {case.slot}")
        case.change()
        case.fails(running)
    case.recovers()


def table_removed_from_the_publication(case: Case) -> None:
    case.captured()
    case.run(f"ALTER PUBLICATION {case.slot} DROP TABLE a")
    case.change()
    with case.fast():
        case.recovers()


def kinds_left_out(case: Case) -> None:
    case.captured()
    case.run(f"ALTER PUBLICATION {case.slot} SET (publish = 'insert')")
    case.change()
    case.fails()
    case.finds()
    case.recovers()


def kinds_left_out_of_a_publication_of_the_user(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publication, "comment", lambda capture: "of another one")
        case.captured()
    case.run(f"ALTER PUBLICATION {case.slot} SET (publish = 'insert')")
    case.change()
    error = case.fails()
    case.finds()
    case.run(error.hint.partition("Run: ")[2].partition("tidemill source")[0])
    case.recovers()


def kinds_left_out_while_running(case: Case) -> None:
    case.captured()
    with case.fast(), case.start() as running:
        running.wait_for_snapshots()
        case.run(f"ALTER PUBLICATION {case.slot} SET (publish = 'insert')")
        case.change()
        case.fails(running)
    case.recovers()


def identity_nothing(case: Case) -> None:
    case.captured()
    with case.fast(), case.start() as running:
        running.wait_for_snapshots()
        case.run("ALTER TABLE a REPLICA IDENTITY NOTHING")
        poll_until(lambda: not published(case), 30, "the table is not published")
        case.change()
        found = case.finds()
        case.run(found.fix)
        running.wait(case.is_equal, "the topic has the rows of the table")


def published(case: Case) -> bool:
    with psycopg.connect(case.dsn) as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_publication_tables WHERE pubname = %s", (case.slot,)
        )
        return found.fetchone() is not None


def select_revoked(case: Case) -> None:
    case.captured()
    case.run(f"REVOKE SELECT ON a FROM {case.role}")
    case.run = case.admin
    case.change()
    running = case.start()
    running.orders.wanted = [("snapshot/public.a", "1", "public.a")]
    with running:
        error = case.fails(running)
    case.finds()
    case.recovers(error.hint.partition("Run: ")[2])


def replication_revoked(case: Case) -> None:
    case.captured()
    case.admin(f"ALTER ROLE {case.role} NOREPLICATION")
    case.change()
    case.fails()
    case.admin(case.finds().fix)
    case.recovers("SELECT 1")


def database_created_again(case: Case) -> None:
    case.captured()
    name = case.dsn.rpartition("dbname=")[2]
    elsewhere = case.dsn.replace(f"dbname={name}", "dbname=postgres")
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (case.slot,))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute(f"GRANT CREATE ON DATABASE {name} TO {case.role}".encode())
    case.admin(f"GRANT ALL ON SCHEMA public TO {case.role}")
    case.run("CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(100))")
    case.run("INSERT INTO a VALUES (3, 'restored')")
    case.fails()
    case.recovers()


CASES = {
    "The slot was dropped": slot_dropped,
    "The slot was invalidated: `max_slot_wal_keep_size`, `idle_replication_slot_timeout`": (
        slot_invalidated
    ),
    "Another program reads the slot": slot_in_use,
    "The slot was dropped and created again, or another program has read it": slot_created_again,
    "The publication was dropped while no worker ran": publication_dropped,
    "The publication is dropped while a worker runs": publication_dropped_while_running,
    "A table was removed from the publication that the source has made": (
        table_removed_from_the_publication
    ),
    "The publication that the source has made leaves out some kinds of changes": kinds_left_out,
    "The publication leaves out some kinds of changes while a worker runs": (
        kinds_left_out_while_running
    ),
    "Your own publication leaves out some kinds of changes": (
        kinds_left_out_of_a_publication_of_the_user
    ),
    "A table got REPLICA IDENTITY NOTHING": identity_nothing,
    "SELECT on a table was revoked": select_revoked,
    "REPLICATION was taken from the role": replication_revoked,
    "The database was dropped, and created again or restored from a dump": database_created_again,
}


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A role that can capture tables of its own."""
    database = dsn.rpartition("dbname=")[2]
    name = f"r{database}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN REPLICATION".encode())
        connection.execute(f"GRANT CREATE ON DATABASE {database} TO {name}".encode())
        connection.execute(f"GRANT ALL ON SCHEMA public TO {name}".encode())
    yield name
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name} CASCADE".encode())
        connection.execute(f"DROP ROLE {name}".encode())


_COVERED = (slot_invalidated, slot_created_again)
"""Rows of which each part has a test of its own in every run."""


@pytest.mark.parametrize(
    ("state", "test"),
    [
        pytest.param(*each, marks=[pytest.mark.nightly] if each[1] in _COVERED else [])
        for each in CASES.items()
    ],
)
def test_recovery(
    dsn: str, role: str, kafka: Kafka, name: str, state: str, test: Callable[[Case], None]
) -> None:
    theirs = dsn.replace("user=tidemill", f"user={role}")
    definition = parse({"name": name, "kind": "postgres", "database": {"dsn": theirs}})
    row = rows_of("PostgreSQL")[state]
    case = Case(kafka, definition, f"{name}.public.a", lambda _: None, dict, row)
    case.dsn, case.role, case.run, case.select = dsn, role, case.execute, case.rows
    test(case)


def test_each_row_is_tested() -> None:
    assert_rows_are_tested("PostgreSQL", CASES)
