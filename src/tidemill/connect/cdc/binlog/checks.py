"""Find what servers with a binary log lack for change capture, as far as they are alike.

Changes nothing. Must not know the stream of the binary log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import CatalogTable, query, quoted, variable
from tidemill.connect.cdc.binlog.decoding.character_sets import text_decoder
from tidemill.connect.cdc.contract import Capture, Finding

_DAY_S = 86_400
_CASCADE = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")


def check_binary_log(
    connection: pymysql.Connection[Any], setting: str = "GLOBAL"
) -> Iterator[Finding]:
    """Find settings of the binary log with which rows would be missing.

    Args:
        setting: the word behind SET for a setting that lasts.
    """
    if variable(connection, "log_bin").upper() != "ON":
        yield Finding(
            "error",
            "the server writes no binary log",
            "In the server's configuration: log_bin = binlog  (and start the server again)",
        )
        return
    note = "(and in the server's configuration" if setting == "GLOBAL" else "(of the server"
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
                f"SET {setting} {name} = '{wanted}'  {note}; sessions that are open keep the old "
                "value)",
            )
    seconds = int(float(variable(connection, "binlog_expire_logs_seconds") or 0))
    days = float(variable(connection, "expire_logs_days") or 0)
    kept_s = seconds or days * _DAY_S
    if 0 < kept_s < _DAY_S:
        yield Finding(
            "warning",
            f"the server removes its binary logs after {kept_s:.0f} seconds; a worker that is "
            "stopped for longer needs a new snapshot",
            f"SET {setting} binlog_expire_logs_seconds = 604800",
        )
    if variable(connection, "sync_binlog") != "1":
        yield Finding(
            "warning",
            "sync_binlog is not 1: after a power cut the server can have transactions that its "
            "binary log lost, and capture would not see them",
            f"SET {setting} sync_binlog = 1",
        )


def account(connection: pymysql.Connection[Any]) -> str:
    """Return the user of a connection as statements name it."""
    ((user,),) = query(connection, "SELECT CURRENT_USER()")
    return "@".join(f"'{part}'" for part in user.rsplit("@", 1))


def _grant_select(capture: Capture, user: str) -> str:
    """Return the statements that let the user read the tables of the patterns."""
    parts = [each.partition(".") for each in capture.include]
    names = sorted({database for database, dot, _ in parts if dot and _is_name(database)})
    places = [f"{quoted(each)}.*" for each in names] or ["*.*"]
    return "; ".join(f"GRANT SELECT ON {place} TO {user}" for place in places)


def _is_name(pattern: str) -> bool:
    return not any(each in pattern for each in "*?[")


def check_tables(tables: list[CatalogTable], capture: Capture, user: str) -> Iterator[Finding]:
    """Find tables without a key or without transactions, and types that are not supported.

    Args:
        user: the user of the source, as statements name it.
    """
    if not tables:
        yield Finding(
            "error",
            "no table is selected: none that the user can read matches the patterns",
            _grant_select(capture, user),
        )
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
            if field.character_set is not None and text_decoder(field.character_set) is None:
                yield Finding(
                    "error",
                    f"column {name}.{field.name} has the character set {field.character_set}, "
                    "which is not supported",
                    f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4, or exclude the table",
                )


def check_cascades(
    connection: pymysql.Connection[Any], tables: list[CatalogTable]
) -> Iterator[Finding]:
    """Find tables that a foreign key changes without an event."""
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
