"""Knows the tables of the stream: what each one's rows look like, and when that changes.

The stream describes a table before its first row and after each change of it. The catalog adds the
key and the types; it can be newer than the stream. Must not know: connections, transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct, error
from typing import Any

from tidemill.connect.cdc.contract import Column, Table
from tidemill.connect.cdc.packed import VALUE_RULE, ColumnRule, Encoders
from tidemill.connect.cdc.postgres.catalog import Catalog, CatalogTable
from tidemill.connect.cdc.postgres.decoding.messages import Relation
from tidemill.connect.cdc.postgres.errors import ProtocolError
from tidemill.connect.cdc.postgres.types import RULES, Convert

Row = dict[str, Any]
DecodeRow = Callable[[bytes, int], tuple[Row, int]]
"""Takes a message and the place of its tuple; returns the row and the place behind the tuple.
A column whose value is stored out of line and was not changed is missing in the row."""

_u32 = Struct(">I").unpack_from
_u16 = Struct(">H").unpack_from
_TEXT, _NULL, _UNCHANGED = b"tnu"


def decoder(columns: Sequence[tuple[str, Convert]]) -> DecodeRow:
    """Return a decoder for rows with these columns, in this order."""
    count = len(columns)

    def decode(data: bytes, at: int) -> tuple[Row, int]:
        row: Row = {}
        try:
            if _u16(data, at)[0] != count:
                raise ProtocolError(f"a row has {_u16(data, at)[0]} columns, its table {count}")
            at += 2
            for name, convert in columns:
                kind = data[at]
                if kind == _TEXT:
                    start = at + 5
                    at = start + _u32(data, at + 1)[0]
                    row[name] = convert(data[start:at])
                elif kind == _NULL:
                    row[name] = None
                    at += 1
                elif kind == _UNCHANGED:
                    at += 1
                else:
                    raise ProtocolError(f"column {name} has a value of unknown format {kind}")
        except (IndexError, error):
            raise ProtocolError(f"a row of pgoutput is cut after {len(data)} bytes") from None
        if at > len(data):
            raise ProtocolError(f"a row needs {at} bytes, its message has {len(data)}")
        return row, at

    return decode


def identity_decoder(columns: Sequence[tuple[str, Convert, bool]]) -> DecodeRow:
    """Return a decoder for old rows that hold the replica identity only.

    The other columns are NULL in the message whatever their value was, so the row leaves them out.

    Args:
        columns: Name, conversion, and whether the column belongs to the replica identity.
    """
    decode = decoder([(name, convert) for name, convert, _ in columns])
    names = [name for name, _, is_identity in columns if is_identity]

    def decode_identity(data: bytes, at: int) -> tuple[Row, int]:
        row, at = decode(data, at)
        return {name: row[name] for name in names if name in row}, at

    return decode_identity


@dataclass(frozen=True, slots=True)
class Shape:
    """A table of the stream with its decoders.

    Attributes:
        relation: The description in the stream.
        table: The table for changes; None if it is not captured.
        names: The columns' names, in order.
        decode: Decodes new rows, and old rows under REPLICA IDENTITY FULL.
        decode_identity: Decodes old rows under other replica identities.
        columns: The columns' rules for the compiled encoder.
        lsn: The place of the description.
        has_deferrable_key: Whether two rows can have one key within a transaction.
    """

    relation: Relation
    table: Table | None
    names: tuple[str, ...]
    decode: DecodeRow
    decode_identity: DecodeRow
    columns: tuple[ColumnRule, ...]
    lsn: int
    has_deferrable_key: bool = False


class Layouts:
    """The tables that the stream has described at some place. It never changes.

    Args:
        shapes: By OID.
    """

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        self.shapes = dict(shapes)
        self.counts = {
            oid: len(shape.names)
            for oid, shape in shapes.items()
            if shape.table is not None and not shape.has_deferrable_key
        }
        self._made: tuple[Encoders, dict[int, Any]] | None = None

    def encoders(self, encoders: Encoders) -> dict[int, Any]:
        """Return the encoders of the captured tables, by OID."""
        if self._made is None or self._made[0] is not encoders:
            found = {
                oid: encoders.of(shape.table, shape.columns)
                for oid, shape in self.shapes.items()
                if shape.table is not None
            }
            self._made = encoders, found
        return self._made[1]


@dataclass(slots=True)
class News:
    """The consequences of new descriptions of tables for the reader.

    Attributes:
        schemas: Tables whose columns changed, or that are new.
        resync: Ids of tables whose topics can lack rows or values, so they must be read again.
    """

    schemas: list[Table] = field(default_factory=list)
    resync: list[str] = field(default_factory=list)


class Shapes:
    """The tables that the stream has described.

    Args:
        catalog: Returns the catalog: its connection can be replaced.
        database: The name of the database.
        selects: Returns whether a table is captured.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        database: str,
        selects: Callable[[CatalogTable | Relation], bool],
    ) -> None:
        self._catalog = catalog
        self._database = database
        self._selects = selects
        self._by_oid: dict[int, Shape] = {}
        self._layouts: Layouts | None = None
        self._oid_of: dict[str, int] = {}
        self._columns: dict[int, dict[str, int]] = {}
        self._keys: dict[int, tuple[str, ...]] = {}
        self.news = News()

    def __getitem__(self, oid: int) -> Shape:
        found = self._by_oid.get(oid)
        if found is None:
            raise ProtocolError(f"a row of the table with OID {oid} came before its description")
        return found

    def forget(self) -> None:
        """Forget the decoders after a reconnect: the server describes each table again."""
        self._by_oid.clear()
        self._layouts = None

    def layouts(self) -> Layouts:
        """Return the tables as they are described now."""
        if self._layouts is None:
            self._layouts = Layouts(self._by_oid)
        return self._layouts

    def expect(self, tables: list[CatalogTable]) -> None:
        """Take note of tables as they are at the start, so that later changes are recognised."""
        for each in tables:
            self._oid_of[each.id] = each.oid
            self._columns[each.oid] = {column.name: column.type_oid for column in each.columns}
            if set(each.key) <= self._columns[each.oid].keys():
                self._keys[each.oid] = each.key

    def learn(self, found: CatalogTable, table: Table) -> None:
        """Take note of a table that was changed, which the stream describes at its next row."""
        fills = {each.name: each.fills_old_rows for each in found.columns}
        columns = {each.name: each.type_oid for each in found.columns}
        self._judge(found.oid, table, columns, fills)

    def describe(self, relation: Relation, lsn: int) -> None:
        """Take in a Relation message.

        An older description never replaces a newer one: a large transaction that was streamed
        early can be replayed after other transactions have described the table.
        """
        before = self._by_oid.get(relation.oid)
        is_same = before is not None and before.relation == relation
        # With the default replica identity, a deferrable key has neither updates nor deletes.
        if before is not None and (before.lsn > lsn > 0 or (is_same and relation.identity == "d")):
            return
        here = next(iter(self._catalog().tables_by_oid([relation.oid])), None)
        if before is not None and is_same and before.has_deferrable_key == _is_deferrable(here):
            return
        shape = self._by_oid[relation.oid] = self._shape(relation, here, lsn)
        self._layouts = None
        if shape.table is not None:
            self._compare(shape, shape.table, here)

    def _shape(self, relation: Relation, here: CatalogTable | None, lsn: int) -> Shape:
        types = self._catalog().types
        known = {each.name: each for each in here.columns} if here else {}
        converts = [
            (each.name, types[each.type_oid].convert, each.is_identity) for each in relation.columns
        ]
        columns = tuple(
            Column(
                each.name,
                known[each.name].type_name
                if each.name in known and known[each.name].type_oid == each.type_oid
                else f"oid {each.type_oid}",
                types[each.type_oid].kind,
                not (each.name in known and known[each.name].is_not_null),
            )
            for each in relation.columns
        )
        names = tuple(each.name for each in columns)
        table = None
        if self._selects(relation):
            key = _key(relation, here)
            table = Table(self._database, relation.schema, relation.name, columns, key)
        return Shape(
            relation,
            table,
            names,
            decoder([(name, convert) for name, convert, _ in converts]),
            identity_decoder(converts),
            tuple(
                (name, RULES.get(convert, VALUE_RULE), convert, is_identity)
                for name, convert, is_identity in converts
            ),
            lsn,
            _is_deferrable(here),
        )

    def _compare(self, shape: Shape, table: Table, here: CatalogTable | None) -> None:
        relation = shape.relation
        fills = {each.name: each.fills_old_rows for each in here.columns} if here else {}
        columns = {each.name: each.type_oid for each in relation.columns}
        self._judge(relation.oid, table, columns, fills)

    def _judge(
        self, oid: int, table: Table, columns: dict[str, int], fills: dict[str, bool]
    ) -> None:
        """Compare a table with what was known of it, and add the consequences to the news."""
        known = self._columns.get(oid, columns)
        other = self._oid_of.get(table.id)
        is_renamed = other != oid and oid in self._columns
        is_replaced = other not in (oid, None)
        self._oid_of[table.id] = oid
        self._columns[oid] = columns
        # All rows get other keys in the topic. A table that is gone has no key.
        has_new_key = bool(table.key) and self._keys.get(oid, table.key) != table.key
        if table.key:
            self._keys[oid] = table.key
        if is_renamed or is_replaced or has_new_key or _changes_old_rows(known, columns, fills):
            self.news.resync.append(table.id)
        if other != oid or has_new_key or known != columns:
            self.news.schemas.append(table)


def _is_deferrable(here: CatalogTable | None) -> bool:
    return here is not None and here.is_deferrable


def _changes_old_rows(
    known: dict[str, int], columns: dict[str, int], fills: dict[str, bool]
) -> bool:
    """Return whether rows that no change touched have other values now.

    That is so for a column with another type, for a new column with a default, and for a renamed
    column. A rename looks like a dropped and an added column.
    """
    added = [name for name in columns if name not in known]
    if any(fills.get(name, True) for name in added):
        return True
    if added and any(name not in columns for name in known):
        return True
    return any(known[name] != oid for name, oid in columns.items() if name in known)


def _key(relation: Relation, here: CatalogTable | None) -> tuple[str, ...]:
    """Return the key's columns: the catalog's.

    If the table is gone, or the changes are from before a change of its primary key, they deliver
    another replica identity. Then that is the key. A table without one has inserts only.
    """
    delivered = tuple(each.name for each in relation.columns if each.is_identity)
    key = () if here is None else here.key
    if delivered and relation.identity in "di" and not (key and set(key) <= set(delivered)):
        return delivered
    return key if set(key) <= {each.name for each in relation.columns} else ()
