"""Find what a MariaDB server lacks for change capture, and the statement that gives it.

Changes nothing. Must not know the stream of the binary log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import CatalogTable, query, read_tables
from tidemill.connect.cdc.binlog.checks import (
    account,
    check_binary_log,
    check_cascades,
    check_tables,
)
from tidemill.connect.cdc.contract import Capture, Finding

_OLDEST = (10, 5)
_REPLICA = ("REPLICATION SLAVE", "REPLICATION REPLICA")
_STATUS = ("BINLOG MONITOR", "REPLICATION CLIENT", "SUPER")


def check_server(connection: pymysql.Connection[Any], capture: Capture) -> list[Finding]:
    """Return what is missing or unusual."""
    findings = list(_version(connection))
    if findings:
        return findings
    findings += check_binary_log(connection)
    findings += _privileges(connection)
    tables = read_tables(connection)
    captured = [each for each in tables if capture.selects(each.database, each.name)]
    findings += check_tables(captured, capture, account(connection))
    findings += _vectors(captured)
    findings += _versioned(captured)
    findings += check_cascades(connection, captured)
    return findings


def _version(connection: pymysql.Connection[Any]) -> Iterator[Finding]:
    ((text,),) = query(connection, "SELECT VERSION()")
    if "mariadb" not in text.lower():
        yield Finding(
            "error",
            f"the server is not MariaDB (version {text})",
            'Is it MySQL? Then the definition needs kind = "mysql".',
        )
        return
    match = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", text)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        yield Finding(
            "error",
            f"MariaDB {text} is too old: its binary log has no names of columns",
            "Upgrade to MariaDB 10.5 or newer.",
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
                f"GRANT {grant} ON *.* TO {account(connection)}",
            )


def _vectors(tables: list[CatalogTable]) -> Iterator[Finding]:
    for table in tables:
        for field in table.fields:
            if field.data_type == "vector":
                yield Finding(
                    "error",
                    f"column {table.database}.{table.name}.{field.name} has the type VECTOR, which "
                    "is not supported in MariaDB",
                    "Exclude the table.",
                )


def _versioned(tables: list[CatalogTable]) -> Iterator[Finding]:
    for table in tables:
        if table.is_versioned:
            yield Finding(
                "error",
                f"table {table.database}.{table.name} is system-versioned: the binary log has "
                "earlier versions of its rows among the rows, with keys that no SELECT shows",
                "Exclude the table, or ALTER TABLE ... DROP SYSTEM VERSIONING",
            )
