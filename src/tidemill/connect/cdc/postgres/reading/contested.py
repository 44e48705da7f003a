"""Settles deletes of keys that two rows had within one transaction.

PostgreSQL checks a deferrable primary key at the end of a transaction, so rows can swap their keys:
one row gets a key before the other one gives it up. The topic has one record for a key, and the
stream does not say which of the two rows gives it up. So the table is read by the key. If a row
has it, that row is written instead of the delete. It can be newer than the transaction: then its
changes follow, as with values that are stored out of line. Must not know: the stream, snapshots.
"""

from __future__ import annotations

from tidemill.connect.cdc.contract import Change, Table
from tidemill.connect.cdc.postgres.errors import AlteredError
from tidemill.connect.cdc.postgres.reading.toast import Incomplete, ReadByKeys

_KEYS = 500
"""Keys in one query."""


def settle(deletes: Incomplete, read: ReadByKeys) -> None:
    """Turn deletes into updates, in place, where a row has the key.

    Args:
        deletes: Deletes of contested keys, with their tables.
        read: Returns the key and the named columns of the rows with some keys. After
            AlteredError, the deletes stay.
    """
    of_table: dict[int, tuple[Table, list[Change]]] = {}
    for change, table in deletes:
        of_table.setdefault(id(table), (table, []))[1].append(change)
    for table, changes in of_table.values():
        for start in range(0, len(changes), _KEYS):
            _settle_some(changes[start : start + _KEYS], table, read)


def _settle_some(changes: list[Change], table: Table, read: ReadByKeys) -> None:
    names = [column.name for column in table.columns]
    keys = [[(change.before or {}).get(name) for name in table.key] for change in changes]
    try:
        rows = read(table, list({repr(key): key for key in keys}.values()), names)
    except AlteredError:
        return
    known = {repr([row[name] for name in table.key]): row for row in rows}
    for change, key in zip(changes, keys, strict=True):
        row = known.get(repr(key))
        if row is not None:
            change.op, change.before = "u", None
            change.after = {name: row[name] for name in names if name in row}
