"""The definition of a table as the binary log has it: column types, names, keys, character sets.

The names and keys are there only if the server runs with ``binlog_row_metadata=FULL``. Must not
know a connection or how values are decoded.

Source: MySQL source documentation, "Table_map_event"; MariaDB documentation, "TABLE_MAP_EVENT".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidemill.connect.cdc.binlog.decoding.character_sets import decode_utf8, text_decoder
from tidemill.connect.cdc.binlog.decoding.reader import BinlogError, Reader

TINY, SHORT, LONG, FLOAT, DOUBLE = 1, 2, 3, 4, 5
TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR, NEWDATE = 7, 8, 9, 10, 11, 12, 13, 14
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET = 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = range(249, 256)

_NUMERIC = frozenset({TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, YEAR, NEWDECIMAL})
_TEXT = frozenset(
    {VARCHAR, VARCHAR_COMPRESSED, VAR_STRING, STRING, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB}
    | {BLOB_COMPRESSED}
)
_METADATA_BYTES = {
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, GEOMETRY, JSON, VECTOR), 1),
    **dict.fromkeys((TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, BLOB_COMPRESSED), 1),
    **dict.fromkeys((VARCHAR, VARCHAR_COMPRESSED, BIT, NEWDECIMAL, STRING, VAR_STRING), 2),
    **dict.fromkeys((ENUM, SET), 2),
}

SIGNEDNESS, DEFAULT_CHARSET, COLUMN_CHARSET, COLUMN_NAME = 1, 2, 3, 4
SET_VALUES, ENUM_VALUES, SIMPLE_KEY, PREFIX_KEY = 5, 6, 8, 9
ENUM_DEFAULT_CHARSET, ENUM_COLUMN_CHARSET = 10, 11

MOST_COLUMNS = 4096


@dataclass(frozen=True, slots=True)
class MapRules:
    """The differences between the table maps of servers.

    Attributes:
        text: the types of which the lists of character sets have entries.
    """

    text: frozenset[int]


MARIADB = MapRules(_TEXT | {GEOMETRY})
MYSQL = MapRules(_TEXT | {VECTOR})


@dataclass(slots=True)
class ColumnMap:
    """One column.

    Attributes:
        type: the type code.
        size: bytes of the value's length prefix (blobs), of the value (ENUM, SET), or the longest
            value in bytes (VARCHAR, STRING).
        precision: digits of a decimal, or bits of a BIT.
        decimals: digits behind the decimal point, or of fractional seconds.
        name: empty without full metadata.
        is_unsigned: for numeric types.
        character_set: of text; None for types without one.
        labels: the values of an ENUM or SET.
    """

    type: int
    size: int = 0
    precision: int = 0
    decimals: int = 0
    nullable: bool = True
    name: str = ""
    is_unsigned: bool = False
    character_set: str | None = None
    labels: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table.

    Attributes:
        key: the positions of the primary key's columns, in the key's order; empty if it has none.
    """

    table_id: int
    database: str
    name: str
    columns: list[ColumnMap]
    key: list[int]


def parse_table_map(
    body: bytes, character_sets: Mapping[int, str], rules: MapRules = MARIADB
) -> TableMap:
    """Parse the body of a table map event.

    Args:
        character_sets: the character set of each collation id.
        rules: those of the server that wrote it.
    """
    reader = Reader(body)
    table_id = reader.uint(6)
    reader.raw(2)
    database = reader.raw(reader.uint(1)).decode("utf-8", "replace")
    reader.raw(1)
    name = reader.raw(reader.uint(1)).decode("utf-8", "replace")
    reader.raw(1)
    count = reader.length()
    if count > MOST_COLUMNS:
        raise BinlogError(f"the binary log says that {database}.{name} has {count} columns")
    types = reader.raw(count)
    metadata = Reader(reader.raw(reader.length()))
    columns = [_column(each, metadata, f"{database}.{name}") for each in types]
    if metadata.remaining:
        raise BinlogError(f"the binary log has unread metadata about {database}.{name}")
    nulls = int.from_bytes(reader.raw((count + 7) // 8), "little")
    for index, column in enumerate(columns):
        column.nullable = bool(nulls >> index & 1)
    optional = _Optional(columns, character_sets, rules)
    optional.read(reader)
    return TableMap(table_id, database, name, columns, optional.key)


def _column(code: int, metadata: Reader, table: str) -> ColumnMap:
    size = _METADATA_BYTES.get(code)
    if size is None:
        if code not in (TINY, SHORT, LONG, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR):
            raise BinlogError(
                f"table {table} has a column of the type {code}, which is not supported",
                hint="Exclude the table, or change the column's type.",
            )
        return ColumnMap(code)
    raw = metadata.raw(size)
    if code in (STRING, VAR_STRING, ENUM, SET):
        return _string_column(code, raw[0], raw[1])
    if code == NEWDECIMAL:
        return ColumnMap(code, precision=raw[0], decimals=raw[1])
    if code == BIT:
        return ColumnMap(code, precision=raw[1] * 8 + raw[0])
    if code in (TIMESTAMP2, DATETIME2, TIME2):
        return ColumnMap(code, decimals=raw[0])
    return ColumnMap(code, size=int.from_bytes(raw, "little"))


def _string_column(code: int, first: int, second: int) -> ColumnMap:
    # Two bits of the length of a CHAR can be in the first byte, inverted.
    if first & 0x30 != 0x30:
        return ColumnMap(first | 0x30, size=second | ((first & 0x30) ^ 0x30) << 4)
    return ColumnMap(first or code, size=second)


class _Optional:
    """Reads the optional metadata: one field after the other, each with type and length."""

    def __init__(
        self, columns: list[ColumnMap], character_sets: Mapping[int, str], rules: MapRules
    ) -> None:
        self._columns = columns
        self._character_sets = character_sets
        self._numeric = [each for each in columns if each.type in _NUMERIC]
        self._texts = [each for each in columns if each.type in rules.text]
        self._enums = [each for each in columns if each.type in (ENUM, SET)]
        self._labels: list[tuple[ColumnMap, list[bytes]]] = []
        self.key: list[int] = []

    def read(self, reader: Reader) -> None:
        handlers: dict[int, Callable[[Reader], None]] = {
            SIGNEDNESS: self._signedness,
            DEFAULT_CHARSET: lambda field: self._default_charset(field, self._texts),
            COLUMN_CHARSET: lambda field: self._column_charsets(field, self._texts),
            COLUMN_NAME: self._names,
            SET_VALUES: lambda field: self._values(field, SET),
            ENUM_VALUES: lambda field: self._values(field, ENUM),
            SIMPLE_KEY: self._simple_key,
            PREFIX_KEY: self._prefix_key,
            ENUM_DEFAULT_CHARSET: lambda field: self._default_charset(field, self._enums),
            ENUM_COLUMN_CHARSET: lambda field: self._column_charsets(field, self._enums),
        }
        while reader.remaining:
            kind = reader.uint(1)
            content = Reader(reader.raw(reader.length()))
            handler = handlers.get(kind)
            if handler is not None:
                handler(content)
        self._decode_labels()

    def _signedness(self, content: Reader) -> None:
        bits = content.rest()
        numeric = self._numeric
        if len(bits) < (len(numeric) + 7) // 8:
            raise BinlogError("the metadata of a table lacks signs of numeric columns")
        for index, column in enumerate(numeric):
            column.is_unsigned = bool(bits[index // 8] & 0x80 >> index % 8)

    def _character_set(self, collation: int) -> str:
        name = self._character_sets.get(collation)
        if name is None:
            raise BinlogError(f"the binary log has the unknown collation id {collation}")
        return name

    def _default_charset(self, content: Reader, columns: list[ColumnMap]) -> None:
        default = self._character_set(content.length())
        for column in columns:
            column.character_set = default
        while content.remaining:
            index = content.length()
            _at(columns, index).character_set = self._character_set(content.length())

    def _column_charsets(self, content: Reader, columns: list[ColumnMap]) -> None:
        for column in columns:
            column.character_set = self._character_set(content.length())

    def _names(self, content: Reader) -> None:
        for column in self._columns:
            column.name = content.raw(content.length()).decode("utf-8", "replace")

    def _values(self, content: Reader, code: int) -> None:
        for column in self._columns:
            if column.type == code:
                count = content.length()
                if count > content.remaining:
                    raise BinlogError(
                        f"the metadata of a table says that a type has {count} values"
                    )
                labels = [content.raw(content.length()) for _ in range(count)]
                self._labels.append((column, labels))

    def _decode_labels(self) -> None:
        for column, labels in self._labels:
            decode = text_decoder(column.character_set or "utf8mb4") or decode_utf8
            column.labels = [decode(each) for each in labels]

    def _simple_key(self, content: Reader) -> None:
        while content.remaining:
            self.key.append(self._key_column(content.length()))

    def _prefix_key(self, content: Reader) -> None:
        while content.remaining:
            self.key.append(self._key_column(content.length()))
            content.length()  # the length of the prefix: only a part of the value is unique

    def _key_column(self, index: int) -> int:
        _at(self._columns, index)
        return index


def _at(columns: list[ColumnMap], index: int) -> ColumnMap:
    if index >= len(columns):
        raise BinlogError(f"the metadata of a table refers to a column with the number {index}")
    return columns[index]
