"""Reads the catalog: tables, their columns and keys, types, and what a publication publishes.

Must not know: the replication stream, changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.connect.cdc.contract import Column, Table
from tidemill.connect.cdc.postgres import queries
from tidemill.connect.cdc.postgres.errors import translating
from tidemill.connect.cdc.postgres.lsn import parse
from tidemill.connect.cdc.postgres.types import TypeRow, Types


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column in the catalog.

    Attributes:
        number: ``attnum``, which a column keeps for ever.
        type_name: The type as SQL writes it, with its modifiers.
        fills_old_rows: Whether rows from before the column was added have a value in it.
        storage: ``attstorage``; ``p`` is never stored out of line.
        collation: The OID of its collation, or 0.
        version: Number of the transaction that last changed the column.
    """

    name: str
    number: int
    type_oid: int
    type_name: str
    is_not_null: bool
    is_generated: bool
    fills_old_rows: bool
    storage: str
    collation: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in the catalog.

    Attributes:
        is_partitioned: Whether it is the root of partitions and has no rows of its own.
        identity: The replica identity: ``d``, ``f``, ``i`` or ``n``.
        primary: The columns of the primary key, in its order.
        identity_index: The columns of the index that is the replica identity.
        rows: The planner's estimate of the number of rows; -1 if it was never analysed.
        is_deferrable: Whether two rows can have one primary key within a transaction.
        constraint: The OID of the primary key, which keeps it also if its index is built again.
        filenode: The number of its file, which a rewrite of all rows changes.
        last_number: The highest number of a column that was ever there.
        last_dropped: The highest number of a column that is not there any more, or 0.
        tree: A digest of its partitions, of their files and of when each was attached; an empty
            string without partitions.
        leaves: The replica identities of the partitions that have rows, each once.
        row_filter: The SQL condition of the publication for its rows, or None.
        membership: Numbers of the publication and of the table's entry in it.
    """

    oid: int
    schema: str
    name: str
    is_partitioned: bool
    identity: str
    columns: tuple[CatalogColumn, ...]
    primary: tuple[str, ...]
    identity_index: tuple[str, ...]
    rows: float
    is_deferrable: bool = False
    constraint: int = 0
    filenode: int = 0
    last_number: int = 0
    last_dropped: int = 0
    tree: str = ""
    leaves: str = ""
    row_filter: str | None = None
    membership: str = ""

    @property
    def delivered(self) -> str:
        """The replica identity by which old rows come: that of the partitions, if there are any.

        ``n`` if updates and deletes of a partition fail, or do not deliver the table's key.
        """
        leaves = set(self.leaves)
        if not leaves:
            return self.identity
        if leaves == {"i"} and self.identity == "i":
            return "i"
        if leaves <= {"d", "f"}:
            return "f" if leaves == {"f"} and self.identity == "f" else "d"
        return "n"

    @property
    def names_other_columns(self) -> bool:
        """Whether the stream describes another replica identity than old rows are delivered by.

        It describes that of the root of partitions. Then old rows have the primary key only.
        """
        return bool(self.leaves) and self.identity != "d" and self.delivered != self.identity

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the records' key: those of the primary key, if changes deliver them.

        Under REPLICA IDENTITY USING INDEX a delete delivers the columns of that index only, so they
        are the key unless the primary key is among them.
        """
        if self.delivered == "i" and not set(self.primary) <= set(self.identity_index):
            return self.identity_index
        return self.primary or self.identity_index

    @property
    def id(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Published:
    """The part of a table that a publication publishes.

    Attributes:
        columns: The columns of its column list; None for all.
        row_filter: The SQL condition of its row filter, or None.
        membership: Numbers of the publication and of the table's entry in it. A table that is
            removed and added again gets another entry.
    """

    oid: int
    columns: tuple[str, ...] | None
    row_filter: str | None
    membership: str = ""


@dataclass(frozen=True, slots=True)
class UsedType:
    """An enum or a composite type.

    Attributes:
        form: Its labels by OID, each with the transaction that changed it last, because two can be
            renamed there and back; or the types of its columns by number.
        relations: OIDs of the tables with columns that contain it.
        is_composite: Whether it is a composite type. Another column changes the text of its values.
    """

    oid: int
    name: str
    form: dict[str, str]
    relations: frozenset[int]
    is_composite: bool


class Catalog:
    """The catalog of the database behind a connection.

    Args:
        connection: A psycopg connection in autocommit mode, for queries.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.version: int = connection.info.server_version
        self.types = Types(self._type)

    def rows(self, query: Any, parameters: Sequence[Any] = (), *, doing: str) -> list[Any]:
        """Run a query and return its rows."""
        with translating(doing):
            found: list[Any] = self.connection.execute(query, parameters or None).fetchall()
            return found

    def value(self, query: Any, parameters: Sequence[Any] = (), *, doing: str) -> Any:
        """Run a query and return the first value of the first row, or None."""
        found = self.rows(query, parameters, doing=doing)
        return found[0][0] if found else None

    def user_tables(self) -> list[CatalogTable]:
        """Return all permanent tables of users. From version 13, partitions count as their root."""
        roots = self.version >= 130000
        condition = queries.USER_TABLES.format(
            kinds="'r', 'p'" if roots else "'r'",
            partitions="AND NOT c.relispartition" if roots else "",
        )
        return self._tables(condition, ())

    def tables_by_oid(self, oids: Sequence[int]) -> list[CatalogTable]:
        """Return the tables with these OIDs; those that do not exist any more are left out."""
        return self._tables("c.oid = ANY(%s::oid[])", (list(oids),))

    def table(self, schema: str, name: str) -> CatalogTable | None:
        """Return a table by its name, or None if it does not exist."""
        found = self._tables("n.nspname = %s AND c.relname = %s", (schema, name))
        return found[0] if found else None

    def horizon(self) -> int:
        """Return the number of the oldest transaction that can still change a table."""
        new = self.version >= 130000
        function = "pg_current_snapshot()" if new else "txid_current_snapshot()"
        snapshot = self.value(f"SELECT {function}::text", doing="can't read the transactions")
        return int(snapshot.partition(":")[0])

    def log_end(self) -> int:
        """Return the place behind the last record of the write-ahead log."""
        query = "SELECT pg_current_wal_insert_lsn()::text"
        return parse(self.value(query, doing="can't read the end of the log"))

    def changed_since(self, horizon: int, publication: str) -> set[int]:
        """Return the OIDs of tables that newer transactions have changed or published.

        Numbers of transactions wrap around after 2**32. Composite types are among the tables, and
        so are tables after some statements that change no column, e.g. GRANT.
        """
        values = (horizon, horizon, horizon, publication, horizon)
        return {
            oid
            for (oid,) in self.rows(queries.CHANGED, values, doing="can't look for changed tables")
        }

    def published(self, publication: str) -> list[Published] | None:
        """Return what a publication publishes, or None if it does not exist."""
        doing = "can't read the publications"
        exists = self.value(
            "SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,), doing=doing
        )
        if exists is None:
            return None
        extra = "NULL, NULL"
        if self.version >= 150000:  # without a list, the view names the columns of now
            extra = (
                "CASE WHEN EXISTS (SELECT FROM pg_publication_rel l WHERE l.prpubid = b.oid"
                " AND l.prattrs IS NOT NULL) THEN p.attnames::text[] END, p.rowfilter"
            )
        query = (
            f"SELECT c.oid::int8, {extra}, concat_ws(' ', b.oid, r.oid)"
            " FROM pg_publication_tables p"
            " JOIN pg_publication b ON b.pubname = p.pubname"
            " JOIN pg_namespace n ON n.nspname = p.schemaname"
            " JOIN pg_class c ON c.relname = p.tablename AND c.relnamespace = n.oid"
            " LEFT JOIN pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = c.oid"
            " WHERE p.pubname = %s"
        )
        return [
            Published(oid, tuple(names) if names is not None else None, row_filter, membership)
            for oid, names, row_filter, membership in self.rows(query, (publication,), doing=doing)
        ]

    def failing(self, publication: str) -> list[int]:
        """Return the OIDs of the tables of which a publication makes updates and deletes fail."""
        found = self.rows(queries.FAILING, (publication,), doing="can't read the publications")
        return [oid for (oid,) in found]

    def trees(self, oids: Sequence[int]) -> dict[int, str]:
        """Return the digests of the partitions of tables (``CatalogTable.tree``)."""
        query = f"SELECT c.oid::int8, {self._tree()} FROM pg_class c WHERE c.oid = ANY(%s::oid[])"
        found = self.rows(query, (list(oids),), doing="can't read the partitions")
        return {oid: _tree(tree)[0] for oid, tree in found}

    def partitions(self, oid: int) -> list[tuple[str, str, str, str, str]]:
        """Return schema, name, replica identity, kind and persistence of partitions with rows."""
        query = (
            "WITH RECURSIVE tree AS (SELECT inhrelid FROM pg_inherits WHERE inhparent = %s::oid"
            " UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i"
            " ON i.inhparent = t.inhrelid)"
            " SELECT n.nspname, c.relname, c.relreplident::text, c.relkind::text,"
            " c.relpersistence::text FROM tree t JOIN pg_class c ON c.oid = t.inhrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind <> 'p' ORDER BY 1, 2"
        )
        return self.rows(query, (oid,), doing="can't read the partitions")

    def has_changed_labels(self, horizon: int) -> bool:
        """Return whether newer transactions have changed labels of enums."""
        found = self.value(queries.CHANGED_LABELS, (horizon,), doing="can't look for changed types")
        return bool(found)

    def used_types(self, oids: Sequence[int]) -> list[UsedType]:
        """Return the types in the columns of tables whose values can change without a write.

        These are enums, whose labels can be renamed, and composite types, also those within arrays,
        domains and ranges.
        """
        multi = " OR r.rngmultitypid = t.oid" if self.version >= 140000 else ""
        query = queries.USED_TYPES.format(multirange=multi)
        return [
            UsedType(oid, name, form or {}, frozenset(relations), is_composite)
            for oid, name, form, relations, is_composite in self.rows(
                query, (list(oids),), doing="can't read the types of the tables"
            )
        ]

    def _tables(self, condition: str, parameters: Sequence[Any]) -> list[CatalogTable]:
        query = queries.TABLES.format(condition=condition, tree=self._tree())
        return [
            CatalogTable(
                oid, schema, name, partitioned, _char(identity),
                tuple(CatalogColumn(*each) for each in columns),
                tuple(primary or ()), tuple(index or ()), rows, deferrable,
                constraint, filenode, last, dropped, *_tree(tree),
            )
            for oid, schema, name, partitioned, identity, rows, columns, primary, index, deferrable,
            constraint, filenode, last, dropped, tree
            in self.rows(query, parameters, doing="can't read the tables of the catalog")
        ]  # fmt: skip

    def _tree(self) -> str:
        # A partition that is being detached concurrently is not read any more.
        return queries.TREE.format(
            pending="i.inhdetachpending" if self.version >= 140000 else "false"
        )

    def _type(self, oid: int) -> TypeRow | None:
        found = self.rows(queries.TYPE, (oid,), doing="can't read a type of the catalog")
        if not found:
            return None
        name, typtype, category, element, base, delimiter, is_array = found[0]
        return TypeRow(
            name, _char(typtype), _char(category), element, base, _char(delimiter), is_array
        )


def _tree(found: list[str | None] | None) -> tuple[str, str]:
    """Return the digest of partitions, and the replica identities, of ``queries.TREE``."""
    digest, identities = found or (None, None)
    return digest or "", identities or ""


def captured_part(found: CatalogTable, published: Published | None) -> CatalogTable:
    """Return a table with those columns only that the stream delivers."""
    names = None if published is None or published.columns is None else set(published.columns)
    columns = tuple(
        each
        for each in found.columns
        if not each.is_generated and (names is None or each.name in names)
    )
    if published is None:
        return replace(found, columns=columns)
    return replace(
        found,
        columns=columns,
        row_filter=published.row_filter,
        membership=published.membership,
    )


def described(found: CatalogTable, database: str, types: Types) -> Table:
    """Return a catalog's table as the contract's table."""
    columns = tuple(
        Column(each.name, each.type_name, types[each.type_oid].kind, not each.is_not_null)
        for each in found.columns
    )
    here = {each.name for each in columns}
    key = found.key if set(found.key) <= here else ()
    return Table(database, found.schema, found.name, columns, key)


def _char(value: str | bytes) -> str:
    """Return a value of PostgreSQL's type "char", which psycopg can deliver as bytes."""
    return value.decode() if isinstance(value, bytes) else value
