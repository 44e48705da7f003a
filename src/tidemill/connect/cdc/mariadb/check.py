"""Find what a MariaDB server lacks for change capture, and the statement that gives it.

Changes nothing. Must not know the stream of the binary log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pymysql

from tidemill.connect.cdc.contract import Capture, Finding
from tidemill.connect.cdc.mariadb.catalog import CatalogTable, query, quoted, read_tables, variable

_OLDEST = (10, 5)
_DAY_S = 86_400
_REPLICA = ("REPLICATION SLAVE", "REPLICATION REPLICA")
_CASCADE = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")
_STATUS = ("BINLOG MONITOR", "REPLICATION CLIENT", "SUPER")


def check_server(connection: pymysql.Connection[Any], capture: Capture) -> list[Finding]:
    """Return what is missing or unusual."""
    findings = list(_version(connection))
    if findings:
        return findings
    findings += _binary_log(connection)
    findings += _privileges(connection)
    tables = read_tables(connection)
    captured = [each for each in tables if capture.selects(each.database, each.name)]
    if not captured:
        findings.append(
            Finding(
                "error",
                "no table is selected: none that the user can read matches the patterns",
                "GRANT SELECT ON <database>.* TO <user>",
            )
        )
    findings += _tables(captured, capture)
    findings += _cascades(connection, captured)
    return findings


def _version(connection: pymysql.Connection[Any]) -> Iterator[Finding]:
    ((text,),) = query(connection, "SELECT VERSION()")
    if "mariadb" not in text.lower():
        yield Finding(
            "error",
            f"the server is not MariaDB (version {text}). MySQL is not supported yet: it has other "
            "transaction ids and no consistent snapshot with a position.",
        )
        return
    match = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", text)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        yield Finding(
            "error",
            f"MariaDB {text} is too old: its binary log has no names of columns",
            "Upgrade to MariaDB 10.5 or newer.",
        )


def _binary_log(connection: pymysql.Connection[Any]) -> Iterator[Finding]:
    if variable(connection, "log_bin").upper() != "ON":
        yield Finding(
            "error",
            "the server writes no binary log",
            "In the server's configuration: log_bin = binlog  (and start the server again)",
        )
        return
    for name, wanted, others in (
        ("binlog_format", "ROW", ()),
        ("binlog_row_image", "FULL", ("FULL_NODUP",)),
        ("binlog_row_metadata", "FULL", ()),
    ):
        value = variable(connection, name).upper()
        if value != wanted and value not in others:
            yield Finding(
                "error",
                f"{name} is {value or 'missing'}, not {wanted}",
                f"SET GLOBAL {name} = '{wanted}'  (and in the server's configuration; sessions "
                "that are open keep the old value)",
            )
    seconds = int(float(variable(connection, "binlog_expire_logs_seconds") or 0))
    days = float(variable(connection, "expire_logs_days") or 0)
    kept_s = seconds or days * _DAY_S
    if 0 < kept_s < _DAY_S:
        yield Finding(
            "warning",
            f"the server removes its binary logs after {kept_s:.0f} seconds; a worker that is "
            "stopped for longer needs a new snapshot",
            "SET GLOBAL binlog_expire_logs_seconds = 604800",
        )
    if variable(connection, "sync_binlog") != "1":
        yield Finding(
            "warning",
            "sync_binlog is not 1: after a power cut the server can have transactions that its "
            "binary log lost, and capture would not see them",
            "SET GLOBAL sync_binlog = 1",
        )


def _privileges(connection: pymysql.Connection[Any]) -> Iterator[Finding]:
    grants = " ".join(str(row[0]).upper() for row in query(connection, "SHOW GRANTS"))
    if "ALL PRIVILEGES ON *.*" in grants:
        return
    ((user,),) = query(connection, "SELECT CURRENT_USER()")
    for names, grant in ((_REPLICA, "REPLICATION SLAVE"), (_STATUS, "BINLOG MONITOR")):
        if not any(name in grants for name in names):
            yield Finding(
                "error",
                f"user {user} lacks the privilege {grant}",
                f"GRANT {grant} ON *.* TO {user}",
            )


def _tables(tables: list[CatalogTable], capture: Capture) -> Iterator[Finding]:
    for table in tables:
        name = f"{table.database}.{table.name}"
        if not table.key:
            severity, text = {
                "refuse": ("error", "has no primary key"),
                "skip": ("note", "has no primary key and is not captured"),
                "all-columns": ("note", "has no primary key; all columns are the key"),
            }[capture.keyless]
            yield Finding(
                "error" if severity == "error" else "note",
                f"table {name} {text}",
                f"ALTER TABLE {name} ADD PRIMARY KEY (...), or set keyless in the definition",
            )
        if table.engine.lower() not in ("innodb", ""):
            yield Finding(
                "warning",
                f"table {name} uses {table.engine}, which has no transactions: a snapshot of it is "
                "not exact while it is written to",
                f"ALTER TABLE {name} ENGINE = InnoDB",
            )
        for field in table.fields:
            if field.kind is None:
                yield Finding(
                    "error",
                    f"column {name}.{field.name} has the type {field.column_type}, which is not "
                    "supported",
                    "Exclude the table.",
                )


def _cascades(connection: pymysql.Connection[Any], tables: list[CatalogTable]) -> Iterator[Finding]:
    # The catalog's view of foreign keys needs more privileges than capture does.
    for table in tables:
        name = f"{table.database}.{table.name}"
        place = f"{quoted(table.database)}.{quoted(table.name)}"
        ((_, definition),) = query(connection, f"SHOW CREATE TABLE {place}")
        if _CASCADE.search(definition):
            yield Finding(
                "warning",
                f"a foreign key changes rows of {name} by a cascade. The server does not write "
                "those changes to its binary log, so they are not captured.",
                "Change these rows in the application, or restart the source with --resnapshot "
                "after such changes.",
            )
