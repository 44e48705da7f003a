"""Turns rows of the change log into changes, or keeps them packed for the compiled encoder.

Must not know: a connection, Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tidemill.connect.cdc.contract import Change, Row, Table
from tidemill.connect.cdc.packed import VALUE_RULE, ColumnRule, Encoders
from tidemill.connect.cdc.sqlite import rows as cells
from tidemill.connect.cdc.sqlite.changelog import SHAPED, Layout
from tidemill.native import extension

LayoutOf = Callable[[int], Layout]


def decode(found: list[Any], layout_of: LayoutOf) -> tuple[list[Change], dict[str, Table]]:
    """Return the changes, and the tables that have another shape from here on, by id.

    Args:
        found: Rows of the change log: number, layout, operation, time, values.
    """
    changes: list[Change] = []
    schemas: dict[str, Table] = {}
    convert = cells.need_conversion(found)
    layout, layout_number, count = None, None, 0
    names: tuple[str, ...] = ()
    for row in found:
        if row[1] != layout_number:
            layout = layout_of(row[1])
            layout_number, names, count = layout.number, layout.names, len(layout.names)
        assert layout is not None
        number, _, op, ts = row[:4]
        if op == SHAPED:
            schemas[layout.table.id] = layout.table
            continue
        values = row[4 : 4 + (2 * count if op == "u" else count)]
        if convert:
            values = cells.json_cells(values)
        one: Row = dict(zip(names, values, strict=False))
        before: Row | None = None if op == "c" else one
        after: Row | None = one if op == "c" else None
        if op == "u":
            after = dict(zip(names, values[count:], strict=True))
        changes.append(Change(layout.table, op, before, after, ts, {"change_id": number}))
    return changes, schemas


class LoggedChanges:
    """Rows of the change log that are not unpacked (``PackedChanges``).

    Args:
        found: The rows, without notes about shapes.
    """

    def __init__(self, found: list[Any], layout_of: LayoutOf) -> None:
        self._found = found
        self._layouts = {number: layout_of(number) for number in {row[1] for row in found}}
        self.ts_ms: int = found[0][3]

    def __len__(self) -> int:
        return len(self._found)

    def tables(self) -> Collection[Table]:
        """Return the tables that the changes can be of."""
        return [layout.table for layout in self._layouts.values()]

    def unpack(self) -> list[Change]:
        """Return the changes."""
        return decode(self._found, self._layouts.__getitem__)[0]

    def encode(self, encoders: Encoders, stamp_ms: int) -> int:
        """Encode the changes, and return the number of records."""
        found = {
            number: encoders.of(layout.table, value_columns(layout.names))
            for number, layout in self._layouts.items()
        }
        return int(extension.encode_changelog(found, self._found, stamp_ms))


def value_columns(names: Collection[str]) -> tuple[ColumnRule, ...]:
    """Return the rules of columns whose values are objects already."""
    return tuple((name, VALUE_RULE, bytes.decode, False) for name in names)
