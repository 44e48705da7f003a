"""Find what a MySQL server lacks for change capture, and the statement that gives it.

Changes nothing. Must not know the stream of the binary log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import query, read_tables, variable
from tidemill.connect.cdc.binlog.checks import (
    account,
    check_binary_log,
    check_cascades,
    check_tables,
)
from tidemill.connect.cdc.contract import Capture, Finding
from tidemill.connect.cdc.errors import SetupError

_SYNTAX = 1064


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The end of the binary log.

    Attributes:
        file: the file that is written.
        end: the place behind its last event.
        do: databases to which the log is limited, separated by commas.
        ignore: databases that are left out.
        executed: the ids of the transactions that are visible.
    """

    file: str
    end: int
    do: str
    ignore: str
    executed: str


def log_status(connection: pymysql.Connection[Any]) -> LogStatus:
    """Return the end of the binary log. It is behind all that a read before could see."""
    try:
        rows = query(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != _SYNTAX:
            raise
        rows = query(connection, "SHOW MASTER STATUS")  # before 8.2
    if not rows:
        raise SetupError(
            "the server has no binary log",
            hint="Set log_bin in the server's configuration, and start the server again.",
        )
    file, end, do, ignore, executed = rows[0]
    return LogStatus(str(file), int(end), do or "", ignore or "", str(executed or ""))


def server_uuid(connection: pymysql.Connection[Any]) -> str:
    """Return the identity of the server."""
    ((found,),) = query(connection, "SELECT @@server_uuid")
    return str(found)


_OLDEST = (8, 0, 23)
_LOGGED_CASCADES = (9, 6)
"""Since then, cascades of foreign keys are in the binary log."""

_GTID_MODE = (
    "SET PERSIST enforce_gtid_consistency = ON; SET PERSIST gtid_mode = OFF_PERMISSIVE; "
    "SET PERSIST gtid_mode = ON_PERMISSIVE; SET PERSIST gtid_mode = ON"
)


def check_server(connection: pymysql.Connection[Any], capture: Capture) -> list[Finding]:
    """Return what is missing or unusual."""
    ((text,),) = query(connection, "SELECT VERSION()")
    findings = list(_version(text))
    if findings:
        return findings
    findings += check_binary_log(connection, "PERSIST")
    findings += _settings(connection)
    findings += _privileges(connection)
    tables = read_tables(connection)
    captured = [each for each in tables if capture.selects(each.database, each.name)]
    findings += check_tables(captured, capture, account(connection))
    if not _logs_cascades(connection, text):
        findings += check_cascades(connection, captured)
    return findings


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def _version(text: str) -> Iterator[Finding]:
    if "mariadb" in text.lower():
        yield Finding(
            "error",
            f"the server is MariaDB {text}, not MySQL",
            'The definition needs kind = "mariadb".',
        )
    elif _numbers(text) < _OLDEST:
        yield Finding(
            "error",
            f"MySQL {text} is too old",
            "Upgrade to MySQL 8.0.23 or newer.",
        )


def _settings(connection: pymysql.Connection[Any]) -> Iterator[Finding]:
    if variable(connection, "gtid_mode").upper() != "ON":
        yield Finding(
            "error",
            "gtid_mode is not ON: transactions have no ids, so a position would not survive a "
            "change of the server",
            _GTID_MODE,
        )
    options = variable(connection, "binlog_row_value_options")
    if options:
        yield Finding(
            "error",
            f"binlog_row_value_options is {options}: updates of JSON lack the new value",
            "SET PERSIST binlog_row_value_options = ''  (of the server; sessions that are open "
            "keep the old value)",
        )
    updates = variable(connection, "log_replica_updates") or variable(
        connection, "log_slave_updates"
    )
    if updates.upper() == "OFF":
        yield Finding(
            "warning",
            "log_replica_updates is OFF: changes that this server replicates from another one are "
            "not in its binary log",
            "In the server's configuration: log_replica_updates = ON  (and start the server again)",
        )


def _privileges(connection: pymysql.Connection[Any]) -> Iterator[Finding]:
    ((user, roles),) = query(connection, "SELECT CURRENT_USER(), CURRENT_ROLE()")
    statement = "SHOW GRANTS"
    if roles.upper() != "NONE":
        statement = f"SHOW GRANTS FOR CURRENT_USER() USING {roles}"
    grants = " ".join(str(row[0]).upper() for row in query(connection, statement))
    quoted_user = account(connection)
    if "ALL PRIVILEGES ON *.*" not in grants and "REPLICATION SLAVE" not in grants:
        yield Finding(
            "error",
            f"user {user} lacks the privilege REPLICATION SLAVE",
            f"GRANT REPLICATION SLAVE ON *.* TO {quoted_user}",
        )
    try:
        status = log_status(connection)
    except SetupError:
        return  # no binary log: that is reported already
    except pymysql.err.OperationalError:
        yield Finding(
            "error",
            f"user {user} lacks the privilege REPLICATION CLIENT",
            f"GRANT REPLICATION CLIENT ON *.* TO {quoted_user}",
        )
        return
    for name, value in (("binlog_do_db", status.do), ("binlog_ignore_db", status.ignore)):
        if value:
            yield Finding(
                "warning",
                f"the server has {name} = {value}: changes of other databases, or of these, are "
                "not in its binary log",
                f"Remove {name} from the server's configuration, and start the server again.",
            )


def _logs_cascades(connection: pymysql.Connection[Any], version: str) -> bool:
    is_native = variable(connection, "innodb_native_foreign_keys").upper() == "ON"
    return _numbers(version) >= _LOGGED_CASCADES and not is_native
