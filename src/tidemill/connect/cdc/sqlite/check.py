"""Find what prevents or endangers the capture of a SQLite database. Must not change anything."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tidemill.connect.cdc.contract import Capture, Finding
from tidemill.connect.cdc.sqlite.changelog import MAX_WIDTH
from tidemill.connect.cdc.sqlite.schema import (
    SCHEMA,
    Shape,
    column_of,
    quoted,
    read_shape,
    table_names,
)


def findings(db: sqlite3.Connection, path: Path, capture: Capture, *, trust: bool) -> list[Finding]:
    """Return what is wrong with the database, the worst first.

    Args:
        trust: whether tables with a unique index on an expression are captured all the same.
    """
    found: list[Finding] = []
    if not os.access(path, os.W_OK) or not os.access(path.absolute().parent, os.W_OK):
        found.append(
            Finding(
                "error",
                f"this user can't write to {path}, and capture installs triggers",
                f"chmod u+w {path}",
            )
        )
    if sqlite3.sqlite_version_info < (3, 15):
        found.append(
            Finding("error", f"SQLite {sqlite3.sqlite_version} is older than 3.15", "Update it.")
        )
    shapes = [read_shape(db, name) for name in table_names(db)]
    chosen = [
        shape for shape in shapes if shape is not None and capture.selects(SCHEMA, shape.name)
    ]
    if not chosen:
        found.append(
            Finding(
                "warning",
                f"no table matches {', '.join(capture.include)}",
                "Correct tables = [...] in the definition.",
            )
        )
    for shape in chosen:
        found += _of_table(db, shape, capture, trust=trust)
    mode = db.execute("PRAGMA main.journal_mode").fetchone()[0]
    if mode != "wal":
        found.append(
            Finding(
                "warning",
                f"the journal mode is {mode}: readers and writers block each other",
                "PRAGMA journal_mode = WAL",
            )
        )
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda each: order[each.severity])


def _of_table(
    db: sqlite3.Connection, shape: Shape, capture: Capture, *, trust: bool
) -> list[Finding]:
    found: list[Finding] = []
    if not shape.key and capture.keyless == "refuse":
        found.append(
            Finding(
                "error",
                f"table {shape.name} has no primary key",
                'Choose keyless = "all-columns" or "skip" in the definition, or leave it out: '
                f'exclude = ["{shape.name}"]',
            )
        )
    if 2 * len(shape.columns) > MAX_WIDTH:
        found.append(
            Finding(
                "error",
                f"table {shape.name} has more than {MAX_WIDTH // 2} columns",
                f'exclude = ["{shape.name}"]',
            )
        )
    hidden = [each.name for each in shape.uniques if not each.columns]
    if hidden and not trust:
        found.append(
            Finding(
                "error",
                f"table {shape.name} has a unique index on an expression ({hidden[0]}): rows that "
                "REPLACE deletes because of it can't be seen",
                "If no writer uses REPLACE on it, set trust_expression_indexes = true under "
                f'[database]; else leave the table out: exclude = ["{shape.name}"]',
            )
        )
    found += [
        Finding(
            "warning",
            f"table {shape.name} has texts and blobs in the key's column {column}: two of them can "
            "have the same record key, as a blob becomes base64",
            f"Store one of both. Find the others: SELECT * FROM {quoted(shape.name)} "
            f"WHERE typeof({quoted(column)}) = 'blob'",
        )
        for column in shape.key[:1]
        if _has_text_and_blobs(db, shape.name, column)
    ]
    if _can_be_null(db, shape):
        found.append(
            Finding(
                "warning",
                f"table {shape.name} allows NULL in its primary key, which capture refuses",
                f"Declare {', '.join(shape.key)} NOT NULL.",
            )
        )
    return found


def _has_text_and_blobs(db: sqlite3.Connection, table: str, column: str) -> bool:
    """Return whether the first column of a key has both. Its index sorts texts before blobs."""
    name = column_of(table, column)
    query = f"SELECT EXISTS (SELECT 1 FROM main.{quoted(table)} WHERE {name} >= x'') AND EXISTS"
    query += f" (SELECT 1 FROM main.{quoted(table)} WHERE {name} >= '' AND {name} < x'')"
    return bool(db.execute(query).fetchone()[0])


def _can_be_null(db: sqlite3.Connection, shape: Shape) -> bool:
    """Return whether SQLite lets the key be NULL: not for INTEGER PRIMARY KEY and WITHOUT ROWID."""
    columns = {each.name: each for each in shape.columns}
    nullable = [key for key in shape.key if columns[key].nullable]
    if not nullable:
        return False
    if len(shape.key) == 1 and columns[shape.key[0]].type_name.upper() == "INTEGER":
        return False
    indexes = db.execute(f"PRAGMA main.index_list({quoted(shape.name)})").fetchall()
    own = [row[1] for row in indexes if row[3] == "pk"]
    # The index of a WITHOUT ROWID table's key is the table itself: it has no rowid column (-1).
    return any(
        row[1] == -1
        for name in own
        for row in db.execute(f"PRAGMA main.index_xinfo({quoted(name)})")
    )
