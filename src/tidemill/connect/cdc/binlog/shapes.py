"""The versions of tables in the stream of the binary log.

Each rows event refers to a table map by a number that is valid until the server starts again. Must
not know transactions or positions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.connect.cdc.binlog.catalog import SYSTEM_DATABASES, CatalogTable, Field
from tidemill.connect.cdc.binlog.decoding import table_map as types
from tidemill.connect.cdc.binlog.decoding.character_sets import BINARY, text_decoder
from tidemill.connect.cdc.binlog.decoding.events import QueryEvent, TableMapEvent
from tidemill.connect.cdc.binlog.decoding.rows import RowDecoder
from tidemill.connect.cdc.binlog.decoding.table_map import (
    MARIADB,
    ColumnMap,
    MapRules,
    TableMap,
    parse_table_map,
)
from tidemill.connect.cdc.binlog.known import KnownTables
from tidemill.connect.cdc.contract import Capture, Column, Table
from tidemill.connect.cdc.packed import ColumnRule
from tidemill.connect.cdc.values import Kind

_MOST_NUMBERS = 10_000
"""A server gives a table another number when it opens it again, so numbers are forgotten."""

_KINDS: dict[int, Kind] = {
    **dict.fromkeys(
        (types.TINY, types.SHORT, types.INT24, types.LONG, types.LONGLONG, types.YEAR), "int"
    ),
    **dict.fromkeys((types.FLOAT, types.DOUBLE), "float"),
    types.NEWDECIMAL: "decimal",
    types.DATE: "date",
    **dict.fromkeys((types.TIME, types.TIME2), "time"),
    **dict.fromkeys((types.DATETIME, types.DATETIME2), "timestamp"),
    **dict.fromkeys((types.TIMESTAMP, types.TIMESTAMP2), "timestamptz"),
    types.ENUM: "enum",
    types.SET: "text",
    types.GEOMETRY: "bytes",
    types.VECTOR: "bytes",
    types.JSON: "json",
}


@dataclass(slots=True)
class Shape:
    """One version of a captured table.

    Attributes:
        is_new: no change of it was delivered since it became the table's shape.
        is_altered: another version of the table came before it in this stream.
        columns: the rules of the columns for the compiled encoder.
        layout: the sizes of the columns for the compiled encoder.
    """

    table: Table
    decoder: RowDecoder
    columns: tuple[ColumnRule, ...]
    layout: bytes
    is_new: bool = True
    is_altered: bool = False


class Packable(NamedTuple):
    """A table whose rows need no decision, as ``scan_binlog`` takes it.

    Attributes:
        body: its table map without the number.
        layout: the sizes of its columns; empty if it is not captured.
        shape: None if it is not captured.
    """

    body: bytes
    layout: bytes
    shape: Shape | None


def shape_of(table: Table, decoder: RowDecoder) -> Shape:
    """Return the shape of a table."""
    codecs = decoder.codecs
    columns = tuple((name, codec.rule, codec.convert, False) for name, codec in codecs)
    layout = struct.pack(f"<{len(codecs)}h", *(codec.size for _, codec in codecs))
    return Shape(table, decoder, columns, layout)


class Shapes:
    """The captured tables of a stream, by the numbers of their table maps.

    Attributes:
        packable: tables whose rows need no decision.

    Args:
        capture: says which tables are captured.
        character_sets: the character set of each collation id.
        catalog: looks a table up in the server's catalog; None if it is not there any more.
        known: what was known of the tables before.
        rules: how the server writes table maps.
    """

    def __init__(
        self,
        capture: Capture,
        character_sets: Mapping[int, str],
        catalog: Callable[[str, str], CatalogTable | None],
        known: KnownTables,
        rules: MapRules = MARIADB,
    ) -> None:
        self._rules = rules
        self._capture = capture
        self._character_sets = character_sets
        self._catalog = catalog
        self._known = known
        self._by_id: dict[int, Shape | None] = {}
        self._bodies: dict[int, bytes] = {}
        self.packable: dict[int, Packable] = {}
        self._by_body: dict[bytes, Shape] = {}
        self._latest: dict[str, Shape] = {}

    def forget_ids(self) -> None:
        """Forget the numbers: the server has perhaps started again."""
        self._by_id.clear()
        self._bodies.clear()
        self.packable.clear()

    def trim(self) -> None:
        """Forget numbers if there are many. Call it between groups: each group names its tables."""
        if len(self._by_id) > _MOST_NUMBERS:
            self.forget_ids()

    def settle(self, table_id: int) -> None:
        """Take note that rows of this number need no decision, until a table changes."""
        body = self._bodies.get(table_id)
        if body is None:
            return
        shape = self._by_id.get(table_id)
        self.packable[table_id] = Packable(body, b"" if shape is None else shape.layout, shape)

    def get(self, table_id: int) -> Shape | None:
        """Return the shape of a number; None if the table is not captured."""
        return self._by_id.get(table_id)

    def add(self, event: TableMapEvent) -> None:
        """Add a table map."""
        body = event.body[6:]  # without the number
        table_id = int.from_bytes(event.body[:6], "little")
        self.packable.pop(table_id, None)
        self._bodies[table_id] = body
        known = self._by_body.get(body)
        if known is not None:
            self._use(table_id, known)
            return
        database, name = table_name(event.body)
        if database in SYSTEM_DATABASES or not self._capture.selects(database, name):
            self._by_id[table_id] = None
            return
        table = parse_table_map(event.body, self._character_sets, self._rules)
        if not table.key and self._capture.keyless != "all-columns":
            self._by_id[table_id] = None
            return
        shape = self._shape(table)
        self._by_body[body] = shape
        self._use(table_id, shape)

    def expect(self, table: str) -> None:
        """Take note that a table is read again, so its next shape does not ask for it too."""
        self._latest.pop(table, None)

    def _use(self, table_id: int, shape: Shape) -> None:
        """Make a shape that of a number. It can be an earlier one, after ADD and DROP COLUMN."""
        self._by_id[table_id] = shape
        before = self._latest.get(shape.table.id)
        if before is not shape:
            shape.is_new, shape.is_altered = True, before is not None
            self._latest[shape.table.id] = shape
            self.packable.clear()

    def text_of(self, event: QueryEvent) -> str:
        """Return the text of a statement, which is in the character set of its client."""
        if not event.raw:
            return event.statement
        decode = text_decoder(self._character_sets.get(event.collation, ""))
        try:
            return event.statement if decode is None else decode(event.raw)
        except ValueError:  # a text in it is invalid; names can be right all the same
            return event.statement

    def _shape(self, table: TableMap) -> Shape:
        found = self._catalog(table.database, table.name)
        fields = {} if found is None else {field.name: field for field in found.fields}
        type_names = self._known.types(table.database, table.name)
        type_names |= {name: field.data_type for name, field in fields.items()}
        decoder = RowDecoder(table, type_names)
        columns = tuple(_column(each, fields.get(each.name)) for each in table.columns)
        key = tuple(table.columns[index].name for index in table.key)
        if found is not None and found.key != key:
            self._known.changed(found, "its primary key changed")
        elif found is not None:
            self._known.look(found)
        return shape_of(Table(table.database, table.database, table.name, columns, key), decoder)


def table_name(body: bytes) -> tuple[str, str]:
    """Return database and name of a table map without parsing the rest."""
    size = body[8]
    database = body[9 : 9 + size].decode("utf-8", "replace")
    start = 11 + size
    return database, body[start : start + body[start - 1]].decode("utf-8", "replace")


def _column(column: ColumnMap, field: Field | None) -> Column:
    """Return a column. Its catalog entry is used if it can be of the same version."""
    kind = _KINDS.get(column.type)
    if kind is None and column.type == types.BIT:
        kind = "bool" if column.precision == 1 else "other"
    if kind is None and field is not None and field.kind in ("uuid", "other"):
        kind = field.kind
    if kind is None:
        kind = "bytes" if column.character_set in (None, BINARY) else "text"
    type_name = field.column_type if field is not None and field.kind == kind else kind
    return Column(column.name, type_name, kind, column.nullable)
