"""The rows of the table of recovery about servers with a binary log (``docs/operations.md``).

The tests of each server have a server of their own for them: some change its settings for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.connect.cdc.binlog_servers import Server, database_section
from tests.connect.cdc.recovery import Recovery, rows_of, state_of, store_state
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import parse

SECTION = "MariaDB and MySQL"
PASSWORD = "of the test"


class Case(Recovery):
    """A source of a database, as a user with the privileges that capture needs.

    Attributes:
        reset: the statement that removes all binary logs, and what the server knows of them.
    """

    server: Server
    shop: str
    user: str
    reset: str

    def execute(self, statement: str) -> None:
        with self.server.connect(database=self.shop, autocommit=True) as connection:
            connection.cursor().execute(statement)

    def rows(self) -> dict[int, str]:
        with self.server.connect(database=self.shop) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT id, v FROM a")
            return dict(cursor.fetchall())

    def value(self, query: str) -> Any:
        with self.server.connect() as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return cursor.fetchone()


def log_purged(case: Case) -> None:
    case.captured()
    case.change()
    case.run("FLUSH BINARY LOGS")
    last = case.value("SHOW BINARY LOG STATUS" if "GTIDS" in case.reset else "SHOW MASTER STATUS")

    def is_purged() -> bool:  # the server keeps files that a session reads
        case.run(f"PURGE BINARY LOGS TO '{last[0]}'")
        return bool(case.value("SHOW BINARY LOGS")[0] == last[0])

    poll_until(is_purged, 30, "the files are removed")
    case.fails()
    case.recovers()


def history_removed(case: Case) -> None:
    case.captured()
    case.run(case.reset)
    case.change()
    case.fails()
    case.recovers()


def format_changed(case: Case) -> None:
    case.captured()
    case.change()
    case.run("SET GLOBAL binlog_format = 'MIXED'")
    try:
        case.fails()
        fix = case.finds().fix.partition("  (")[0]
    finally:
        case.run("SET GLOBAL binlog_format = 'ROW'")
    case.recovers(fix)


def change_logged_as_a_statement(case: Case) -> None:
    case.captured()
    with case.server.connect(database=case.shop, autocommit=True) as connection:
        connection.cursor().execute("SET SESSION binlog_format = 'STATEMENT'")
        connection.cursor().execute("UPDATE a SET v = 'changed' WHERE id = 1")
    case.change()
    case.fails()
    case.recovers()


def image_changed(case: Case) -> None:
    case.captured()
    case.change()
    case.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        case.fails()
        fix = case.finds().fix.partition("  (")[0]
    finally:
        case.run("SET GLOBAL binlog_row_image = 'FULL'")
    case.recovers(fix)


def change_logged_in_part(case: Case) -> None:
    case.captured()
    with case.server.connect(database=case.shop, autocommit=True) as connection:
        connection.cursor().execute("SET SESSION binlog_row_image = 'MINIMAL'")
        connection.cursor().execute("UPDATE a SET v = 'changed' WHERE id = 1")
    case.change()
    case.fails()
    case.recovers()


def metadata_changed(case: Case) -> None:
    case.captured()
    case.change()
    case.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        case.fails()
        fix = case.finds().fix.partition("  (")[0]
    finally:
        case.run("SET GLOBAL binlog_row_metadata = 'FULL'")
    case.recovers(fix)


def select_revoked(case: Case) -> None:
    case.captured()
    case.run(f"REVOKE SELECT ON {case.shop}.* FROM {case.user}")
    case.change()
    case.fails()
    case.recovers(case.finds().fix)


def replication_revoked(case: Case) -> None:
    case.captured()
    case.run(f"REVOKE REPLICATION SLAVE ON *.* FROM {case.user}")
    case.change()
    case.fails()
    case.recovers(case.finds().fix)


def status_revoked(case: Case) -> None:
    case.captured()
    name = "REPLICATION CLIENT" if "GTIDS" in case.reset else "BINLOG MONITOR"
    case.run(f"REVOKE {name} ON *.* FROM {case.user}")
    case.change()
    case.fails()
    case.recovers(case.finds().fix)


def server_id_in_use(case: Case) -> None:
    case.captured()
    other = parse(
        {**case.definition.model_dump(exclude_defaults=True), "name": f"{case.definition.name}b"}
    )
    database = {**case.definition.database, "server_id": 4711}
    case.definition = case.definition.model_copy(update={"database": database})
    other = other.model_copy(update={"database": database})
    second = Recovery(case.kafka, other, "", case.run, case.select, case.row)
    with case.start() as running:
        running.wait_for_snapshots()
        with second.start() as newer:
            newer.wait_for_snapshots()
            case.fails(running)
    database = {**database, "server_id": 4712}
    case.definition = case.definition.model_copy(update={"database": database})
    case.change()
    case.recovers("SELECT 1")


def other_server(case: Case) -> None:
    case.captured()
    ((before, *_),) = [case.value("SELECT @@global.server_id")]
    case.run("SET GLOBAL server_id = 77")
    state = state_of(case.kafka, case.definition)
    if "server" in state["position"]:  # a UUID changes while the server is down
        state["position"]["server"] = "00000000-0000-0000-0000-000000000000"
        store_state(case.kafka, case.definition, state)
    try:
        case.change()
        case.recovers()
    finally:
        case.run(f"SET GLOBAL server_id = {before}")


def database_created_again(case: Case) -> None:
    case.captured()
    case.run(f"DROP DATABASE {case.shop}")
    with case.server.connect(autocommit=True) as connection:
        connection.cursor().execute(f"CREATE DATABASE {case.shop}")
    case.run("CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(100))")
    case.run("INSERT INTO a VALUES (3, 'restored')")
    case.recovers()


CASES: dict[str, Callable[[Case], None]] = {
    "The binary log was purged before it was captured": log_purged,
    "The server's history of transactions was removed or is another one: RESET, a backup": (
        history_removed
    ),
    "`binlog_format` was changed to STATEMENT or MIXED": format_changed,
    "A session has logged a change as a statement": change_logged_as_a_statement,
    "`binlog_row_image` was changed to MINIMAL or NOBLOB": image_changed,
    "A session has logged rows without all columns": change_logged_in_part,
    "`binlog_row_metadata` was changed to MINIMAL": metadata_changed,
    "SELECT was revoked": select_revoked,
    "REPLICATION SLAVE was revoked": replication_revoked,
    "BINLOG MONITOR (MariaDB) or REPLICATION CLIENT (MySQL) was revoked": status_revoked,
    "Another replica uses the source's `server_id`": server_id_in_use,
    "Another server with all transactions took over, or `server_id` or UUID changed": other_server,
    "The database was dropped, and created again or restored from a dump": database_created_again,
}

ALIKE = frozenset(
    {
        format_changed,
        change_logged_as_a_statement,
        image_changed,
        change_logged_in_part,
        metadata_changed,
        select_revoked,
        replication_revoked,
        database_created_again,
    }
)
"""Rows for which both servers run the same code."""


def run_case(kind: str, reset: str, server: Server, shop: str, kafka: Kafka, state: str) -> None:
    """Run the test of a row.

    Args:
        kind: of the source, also a part of its name.
        reset: as in ``Case``.
    """
    name = f"{kind}{shop.replace('_', '')}"
    user = f"'{name[:30]}'@'%'"
    section = database_section(server, user=name[:30], password=f"${{env:{kind}}}")
    definition = parse({"name": name, "kind": kind, "tables": [f"{shop}.*"], "database": section})
    case = Case(
        kafka, definition, f"{name}.{shop}.a", lambda _: None, dict, rows_of(SECTION)[state]
    )
    case.server, case.shop, case.user, case.reset = server, shop, user, reset
    case.run, case.select = case.execute, case.rows
    case.run(f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'")
    monitor = "BINLOG MONITOR" if kind == "mariadb" else "REPLICATION CLIENT"
    case.run(f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO {user}")
    case.run(f"GRANT SELECT ON {shop}.* TO {user}")
    try:
        CASES[state](case)
    finally:
        with server.connect(autocommit=True) as connection:
            connection.cursor().execute(f"DROP USER {user}")
