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
from tidemill.connect.cdc.postgres.decoding.facts import Facts, announcement_of, note_of
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
        names_other_columns: See ``CatalogTable.names_other_columns``.
    """

    relation: Relation
    table: Table | None
    names: tuple[str, ...]
    decode: DecodeRow
    decode_identity: DecodeRow
    columns: tuple[ColumnRule, ...]
    lsn: int
    has_deferrable_key: bool = False
    names_other_columns: bool = False

    @property
    def is_packable(self) -> bool:
        """Whether the compiled encoder decodes the rows in the same way."""
        return not (self.has_deferrable_key or self.names_other_columns)

    def decode_old(self, data: bytes, at: int) -> tuple[Row, int]:
        """Decode an old row that the stream calls whole (REPLICA IDENTITY FULL)."""
        if self.names_other_columns:
            return self.decode_identity(data, at)
        return self.decode(data, at)


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
            if shape.table is not None and shape.is_packable
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
        resync: Why tables must be read again, because their topics can lack rows or values, by id.
        notes: The facts of tables, to be stored.
    """

    schemas: list[Table] = field(default_factory=list)
    resync: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.schemas or self.resync or self.notes)


class Shapes:
    """The tables that the stream has described.

    Args:
        catalog: Returns the catalog: its connection can be replaced.
        database: The name of the database.
        selects: Returns whether a table is captured.
        part: Returns a table with the columns that are captured.
        known: The facts of tables that earlier sources have stored, by OID.
        announced: Where the log was when they found that a table must be read again, by OID.
    """

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        database: str,
        selects: Callable[[CatalogTable | Relation], bool],
        part: Callable[[CatalogTable], CatalogTable] = lambda found: found,
        known: Mapping[int, Facts] | None = None,
        announced: Mapping[int, int] | None = None,
    ) -> None:
        self._catalog = catalog
        self._database = database
        self._selects = selects
        self._part = part
        self._by_oid: dict[int, Shape] = {}
        self._layouts: Layouts | None = None
        self._known = dict(known or {})
        self._announced = dict(announced or {})
        self._oid_of = {facts.id: oid for oid, facts in self._known.items()}
        self._keys = {oid: facts.key for oid, facts in self._known.items() if facts.key}
        self._described: dict[int, dict[str, int]] = {}
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

    def expect(self, found: CatalogTable) -> None:
        """Take note of a table as it is, so that later changes are recognised."""
        self._oid_of[found.id] = found.oid
        self._described[found.oid] = {each.name: each.type_oid for each in found.columns}
        facts = Facts.of(found)
        if facts.key:
            self._keys[found.oid] = facts.key
        self._note(found.oid, facts)

    def learn(self, found: CatalogTable, table: Table, here: Callable[[], int]) -> None:
        """Take note of a table that was changed, which the stream describes at its next row.

        If the table must be read again, that covers what the stream still describes from before:
        rows that were committed before now need no second reading, also after a restart.

        Args:
            here: Returns the end of the log.
        """
        columns = {each.name: each.type_oid for each in found.columns}
        if self._judge(found.oid, table, columns, found):
            self._announced[found.oid] = lsn = here()
            self.news.notes[announcement_of(found.oid)] = str(lsn)

    def leave(self, oid: int) -> None:
        """Forget a table that is not captured any more: its changes are not delivered."""
        known = self._known.pop(oid, None)
        self._described.pop(oid, None)
        self._keys.pop(oid, None)
        if self._announced.pop(oid, None) is not None:
            self.news.notes[announcement_of(oid)] = None
        if known is not None:
            self.news.notes[note_of(oid)] = None
            if self._oid_of.get(known.id) == oid:
                del self._oid_of[known.id]

    def tree_of(self, oid: int) -> str:
        """Return the digest of a table's partitions that is known."""
        known = self._known.get(oid)
        return "" if known is None else known.tree

    def describe(self, relation: Relation, lsn: int, commit_lsn: int = 0) -> None:
        """Take in a Relation message.

        An older description never replaces a newer one: a large transaction that was streamed
        early can be replayed after other transactions have described the table.

        Args:
            commit_lsn: The place where its transaction was committed; 0: it is not known.
        """
        before = self._by_oid.get(relation.oid)
        is_same = before is not None and before.relation == relation
        # With the default replica identity, a deferrable key has neither updates nor deletes.
        if before is not None and (before.lsn > lsn > 0 or (is_same and relation.identity == "d")):
            return
        here = next(iter(self._catalog().tables_by_oid([relation.oid])), None)
        if before is not None and is_same and not _decodes_differently(before, here):
            return
        shape = self._by_oid[relation.oid] = self._shape(relation, here, lsn)
        self._layouts = None
        if shape.table is not None:
            columns = {each.name: each.type_oid for each in relation.columns}
            found = None if here is None else self._part(here)
            self._judge(relation.oid, shape.table, columns, found, commit_lsn)

    def _shape(self, relation: Relation, here: CatalogTable | None, lsn: int) -> Shape:
        types = self._catalog().types
        known = {each.name: each for each in here.columns} if here else {}
        differs = here is not None and here.names_other_columns
        identity = {each.name for each in relation.columns if each.is_identity}
        if here is not None and differs:
            identity = set(here.key)
        converts = [
            (each.name, types[each.type_oid].convert, each.name in identity)
            for each in relation.columns
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
            here is not None and here.is_deferrable,
            differs,
        )

    def _judge(
        self,
        oid: int,
        table: Table,
        columns: dict[str, int],
        found: CatalogTable | None,
        commit_lsn: int = 0,
    ) -> bool:
        """Compare a table with what was known of it, and add the consequences to the news.

        Args:
            table: As the stream or the catalog describes it.
            columns: The types of its columns.
            found: As the catalog has it now, which is what is read if it is read again; None if
                the table does not exist any more.
            commit_lsn: Where the description was committed; 0: it is that of the catalog.

        Returns:
            Whether the table must be read again.
        """
        known, now = self._known.get(oid), None if found is None else Facts.of(found)
        other = self._oid_of.get(table.id)
        shown = self._described.get(oid, columns)
        # All rows get other keys in the topic. A table that is gone has no key.
        has_new_key = bool(table.key) and self._keys.get(oid, table.key) != table.key
        why = ""
        if known is not None and other != oid:
            why = "it was renamed"
        elif other not in (oid, None):
            why = "it was created again"
        elif has_new_key:
            why = "its primary key was changed"
        elif known is not None and found is not None and now is not None:
            fills = {each.name: each.fills_old_rows for each in found.columns}
            why = known.difference(now, fills)
            if not why and not 0 < commit_lsn < self._announced.get(oid, 0):
                why = now.undescribed(columns, fills)
        self._oid_of[table.id] = oid
        self._described[oid] = columns
        if table.key:
            self._keys[oid] = table.key
        if now is not None:
            self._note(oid, now)
        if why:
            self.news.resync[table.id] = why
        if other != oid or has_new_key or shown != columns:
            self.news.schemas.append(table)
        return bool(why)

    def _note(self, oid: int, facts: Facts) -> None:
        if self._known.get(oid) != facts:
            self._known[oid] = facts
            self.news.notes[note_of(oid)] = facts.encode()


def _decodes_differently(shape: Shape, here: CatalogTable | None) -> bool:
    is_deferrable = here is not None and here.is_deferrable
    differs = here is not None and here.names_other_columns
    return (shape.has_deferrable_key, shape.names_other_columns) != (is_deferrable, differs)


def _key(relation: Relation, here: CatalogTable | None) -> tuple[str, ...]:
    """Return the key's columns: the catalog's.

    If the table is gone, or the changes are from before a change of its primary key, they deliver
    another replica identity. Then that is the key. A table without one has inserts only.
    """
    delivered = tuple(each.name for each in relation.columns if each.is_identity)
    key = () if here is None else here.key
    differs = here is not None and here.names_other_columns
    if (
        delivered
        and relation.identity in "di"
        and not differs
        and not (key and set(key) <= set(delivered))
    ):
        return delivered
    return key if set(key) <= {each.name for each in relation.columns} else ()
