"""Completes changed rows whose large values were not sent.

PostgreSQL stores large values out of line (TOAST) and leaves those that an update did not touch out
of the stream. Under REPLICA IDENTITY FULL the old row has them. Otherwise they are read from the
table by key. That gives the value at the time of the reading: if a later transaction has changed
it, an earlier row shows the later value until the stream comes to that transaction. A row that
was deleted since then stays incomplete. Must not know: the stream, snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidemill.connect.cdc.contract import Change, Row, Table
from tidemill.connect.cdc.postgres.errors import AlteredError

_KEYS = 500
"""Keys in one query."""

Incomplete = Sequence[tuple[Change, Table]]
ReadByKeys = Callable[[Table, Sequence[Sequence[Any]], Sequence[str]], list[Row]]


def fill(incomplete: Incomplete, read: ReadByKeys) -> None:
    """Complete changes in place, with one query for many keys of a table.

    Args:
        incomplete: Changes whose new row lacks values.
        read: Returns the key and the named columns of the rows with some keys. After
            AlteredError, the rows stay incomplete.
    """
    of_table: dict[int, list[tuple[Change, Table]]] = {}
    for each in incomplete:
        of_table.setdefault(id(each[1]), []).append(each)
    for found in of_table.values():
        table = found[0][1]
        for start in range(0, len(found), _KEYS):
            _fill_some([change for change, _ in found[start : start + _KEYS]], table, read)


def _fill_some(changes: list[Change], table: Table, read: ReadByKeys) -> None:
    names = [column.name for column in table.columns]
    of_key: dict[str, list[Any]] = {}
    missing: set[str] = set()
    for change in changes:
        row = change.after or {}
        missing |= {name for name in names if name not in row}
        if table.key and all(name in row for name in table.key):
            key = [row[name] for name in table.key]
            of_key[repr(key)] = key
    if not of_key:
        return
    try:
        rows = read(table, list(of_key.values()), sorted(missing))
    except AlteredError:
        return
    known = {repr([row[name] for name in table.key]): row for row in rows}
    for change in changes:
        row = change.after or {}
        values = known.get(repr([row.get(name) for name in table.key]))
        if values is not None:
            whole = {**values, **row}
            change.after = {name: whole[name] for name in names if name in whole}
