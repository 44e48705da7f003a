"""Fetch rows, and turn SQLite's values into JSON values.

An integer is a number, a text a string, a blob base64. Of the reals, the infinities are strings;
SQLite stores NaN as NULL. A text that is not UTF-8, which SQLite does not prevent, keeps its valid
parts and shows each invalid byte as ``\\xNN``. Must not know: the change log.
"""

from __future__ import annotations

import math
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

_INFINITIES = frozenset({math.inf, -math.inf})


def fetch(db: sqlite3.Connection, query: str, values: Sequence[Any]) -> list[Any]:
    """Return all rows of a query, also if a text in them is not UTF-8."""
    try:
        return db.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    try:
        db.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        return db.execute(query, values).fetchall()
    finally:
        db.text_factory = str


def need_conversion(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether a row has a blob or an infinity."""
    kinds: set[type] = set()
    for row in rows:
        kinds.update(map(type, row))
    if bytes in kinds:
        return True
    return float in kinds and any(math.inf in row or -math.inf in row for row in rows)


def json_cells(row: tuple[Any, ...]) -> list[Any]:
    """Return the JSON values of a row's values."""
    return [_json_cell(value) for value in row]


def _json_cell(value: Any) -> Any:
    if type(value) is bytes:
        return b64encode(value).decode("ascii")
    if type(value) is float and value in _INFINITIES:
        return "Infinity" if value > 0 else "-Infinity"
    return value


def cell_key(value: Any) -> Any:
    """Return a key's value for a stored position: a blob and an infinity are objects."""
    if type(value) is bytes:
        return {"bytes": b64encode(value).decode("ascii")}
    if type(value) is float and value in _INFINITIES:
        return {"float": str(value)}
    return value


def raw_key(text: bytes) -> Any:
    """Return the key's value for a text that is possibly not UTF-8, from its bytes."""
    return {"text": b64encode(text).decode("ascii")}


def has_escape(row: Sequence[Any]) -> bool:
    """Return whether a value of a row can be a text that is not UTF-8, as ``fetch`` returns it."""
    return any(type(value) is str and "\\x" in value for value in row)


def key_cell(value: Any) -> Any:
    """Return the value of SQLite for a stored key's value, for the place of ``key_mark``."""
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    return b64decode(value["bytes"] if "bytes" in value else value["text"])


def key_mark(value: Any) -> str:
    """Return the place in an SQL statement for a stored key's value."""
    return "CAST(? AS TEXT)" if isinstance(value, dict) and "text" in value else "?"


def bytes_of_row(row: Sequence[Any]) -> int:
    """Return about how many bytes the values of a row have as JSON."""
    return sum(len(each) if isinstance(each, str | bytes) else 8 for each in row)
