"""Upserts of Arrow rows into a database's table: the SQL that all databases share.

A batch is one transaction of the database. Each row has the column ``_version``, which grows from
batch to batch and from checkpoint to checkpoint, and only a newer version replaces a row. So a
batch that is run again changes nothing, and a late batch (of a driver that hung, or of an old
checkpoint) undoes nothing. When a row is deleted, its key and version are kept in a second table,
``<table>__deleted``. A row that brings its own version (``Layout.versioned``) is written unless the
table has a later one. Must not know: Spark, Kafka, pipelines, any one database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tidemill.spark.errors import SchemaError, SinkError
from tidemill.spark.sinks.base import DELETED
from tidemill.spark.sinks.database.rows import (
    TOMBSTONES,
    VERSION,
    Column,
    Layout,
)
from tidemill.spark.sinks.database.version import check_versions, last_of

if TYPE_CHECKING:
    import pyarrow as pa

STAGE = "_tidemill_batch"
"""Name of the temporary table with the rows of the batch."""

Connection = TypeVar("Connection")


@dataclass(frozen=True, slots=True)
class Found:
    """A table that exists in the database.

    Attributes:
        columns: Names of its columns.
        key: Names of the columns of its primary key.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]


class UpsertTable(ABC, Generic[Connection]):
    """A table that rows are upserted into by key. It is created if it is missing.

    Args:
        table: Name of the table; ``schema.name`` if the database has schemas.
        key: Column or columns that identify a row. They become the primary key.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Without ``order_by`` such a batch is an error.
    """

    types: ClassVar[dict[str, str]]
    """Spark's name of a type -> the database's name. Nested types are ``json``."""
    folds_case = True
    """Whether ``A`` and ``a`` are the same name to the database, even in quotes."""

    def __init__(self, table: str, key: str | Sequence[str], order_by: str | Sequence[str] = ()):
        self.table = table
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)

    @property
    @abstractmethod
    def target(self) -> str:
        """The name of the table, for messages."""

    def apply(
        self,
        rows: pa.Table,
        layout: Layout,
        number: int,
        *,
        is_first: bool = False,
        is_new: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the rows of a batch in one transaction.

        Args:
            rows: Rows as ``rows.prepare`` returns them.
            number: Version of the batch.
            is_first: Whether this is the first batch of its checkpoint. Then the table must not
                contain a newer version.
            is_new: Whether this batch was never started. Then the table must contain neither its
                version nor a later one of the same checkpoint.
            on_start: Called after these checks and before anything is written.

        Raises:
            SchemaError: The table in the database has other columns or another key.
            SinkError: The database rejected the batch, or contains a newer version.
            CheckpointRestoredError: The batch is new, but the table contains its version.
        """
        with self._transaction() as connection:
            tombstones = self._prepare(connection, layout)
            if layout.versioned or is_first or is_new:
                latest = self._latest(connection, tombstones=tombstones)
                upto = last_of(number)
                of_checkpoint = latest
                if is_new and not layout.versioned and latest is not None and latest > upto:
                    of_checkpoint = self._latest(connection, tombstones=tombstones, upto=upto)
                check_versions(
                    self.target,
                    latest,
                    number,
                    layout,
                    is_first=is_first,
                    is_new=is_new,
                    of_checkpoint=of_checkpoint,
                )
            on_start()
            if rows.num_rows:
                self._stage(connection, rows, layout)
                for statement in self._statements(layout, number, tombstones=tombstones):
                    self._execute(connection, statement)

    def close(self) -> None:
        """Release what is kept between batches. The next batch acquires it again."""

    def switch(self, other: str) -> None:
        """Put another table in the place of this one, which is dropped, in one step.

        Nothing happens if the other table does not exist. Columns, indexes, privileges and views
        that others have added to the old table are not taken over.

        Args:
            other: Name of the other table, in the same schema.
        """
        with self._transaction() as connection:
            if self._find(connection, other) is not None:
                self._swap(connection, other)

    def drop(self, other: str) -> None:
        """Drop another table with its table of deleted keys, if they exist."""
        with self._transaction() as connection:
            for each in (other, f"{other}{TOMBSTONES}"):
                self._execute(connection, f"DROP TABLE IF EXISTS {name(each)}")

    def _swap(self, connection: Connection, other: str) -> None:
        for mine, theirs in self._pairs(other):
            self._execute(connection, f"DROP TABLE IF EXISTS {name(mine)}")
            if self._find(connection, theirs) is not None:
                new = quoted(mine.rpartition(".")[2])
                self._execute(connection, f"ALTER TABLE {name(theirs)} RENAME TO {new}")

    def _pairs(self, other: str) -> list[tuple[str, str]]:
        """Return this table and its table of deleted keys, each with that of another table."""
        return [(self.table, other), (self._tombstones, f"{other}{TOMBSTONES}")]

    # --- implemented by each database -------------------------------------------------------------

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Open a transaction that is committed at the end and rolled back by an error."""

    @abstractmethod
    def _execute(self, connection: Connection, statement: str) -> None:
        """Run one statement."""

    @abstractmethod
    def _find(self, connection: Connection, table: str) -> Found | None:
        """Return the table of a name, or None if it does not exist."""

    @abstractmethod
    def _number(self, connection: Connection, query: str) -> int | None:
        """Return the one number that a query selects."""

    @abstractmethod
    def _stage(self, connection: Connection, rows: pa.Table, layout: Layout) -> None:
        """Make the rows readable as the table ``STAGE``, with the column ``_deleted``."""

    # --- the table --------------------------------------------------------------------------------

    @property
    def _tombstones(self) -> str:
        return f"{self.table}{TOMBSTONES}"

    def _prepare(self, connection: Connection, layout: Layout) -> bool:
        """Create or check the table. Return whether there is a table of deleted keys."""
        found = self._find(connection, self.table)
        if found is None:
            self._execute(connection, self._create(self.table, layout.columns, layout.key))
        else:
            self._check(found, layout)
        if self._find(connection, self._tombstones) is not None:
            return True
        if layout.deletes:
            keys = [column for column in layout.columns if column.name in layout.key]
            self._execute(connection, self._create(self._tombstones, keys, layout.key))
        return layout.deletes

    def column(self, column: Column) -> str:
        """Return the declaration of a column in SQL."""
        return f"{quoted(column.name)} {self._type(column)}"

    def _type(self, column: Column) -> str:
        known = self.types[column.type]
        return f"{known}({column.precision}, {column.scale})" if known == "DECIMAL" else known

    def _create(self, table: str, columns: Sequence[Column], key: Sequence[str]) -> str:
        declared = ", ".join(self.column(column) for column in columns)
        primary = ", ".join(map(quoted, key))
        return (
            f"CREATE TABLE IF NOT EXISTS {name(table)} "
            f"({declared}, {VERSION} BIGINT NOT NULL, PRIMARY KEY ({primary}))"
        )

    def _check(self, found: Found, layout: Layout) -> None:
        """Check that the rows match an existing table."""
        existing = set(map(self._folded, found.columns))
        wanted = [column for column in layout.columns if self._folded(column.name) not in existing]
        if VERSION not in existing:
            raise SchemaError(
                f"{self.target} has no column {VERSION}: tidemill did not create it",
                hint="Use another name, or add the column: "
                f"ALTER TABLE {self.table} ADD COLUMN {VERSION} BIGINT.",
            )
        if wanted:
            missing = ", ".join(column.name for column in wanted)
            adding = "; ".join(
                f"ALTER TABLE {self.table} ADD COLUMN {self.column(column)}" for column in wanted
            )
            raise SchemaError(f"{self.target} has no column {missing}", hint=f"{adding}.")
        if set(map(self._folded, found.key)) != set(map(self._folded, layout.key)):
            raise SchemaError(
                f"{self.target} has the primary key ({', '.join(found.key)}), "
                f"and the sink has the key ({', '.join(layout.key)})",
                hint="Give the sink the key of the table, or another table.",
            )

    def _latest(
        self, connection: Connection, *, tombstones: bool, upto: int | None = None
    ) -> int | None:
        """Return the greatest version in the table, or None if it is empty."""
        where = "" if upto is None else f" WHERE {VERSION} <= {upto}"
        query = f"SELECT max({VERSION}) FROM {name(self.table)}{where}"
        if tombstones:
            query = (
                f"SELECT max(v) FROM (SELECT max({VERSION}) AS v FROM {name(self.table)}{where} "
                f"UNION ALL SELECT max({VERSION}) FROM {name(self._tombstones)}{where}) "
                "AS both_of_them"
            )
        return self._number(connection, query)

    def _folded(self, column: str) -> str:
        return column.lower() if self.folds_case else column

    # --- the batch --------------------------------------------------------------------------------

    def _statements(self, layout: Layout, number: int, *, tombstones: bool) -> Iterator[str]:
        """Yield the SQL that writes ``STAGE`` to the table in the version ``number``.

        A key is in the table or in the table of deleted keys, never in both.
        """
        table, deleted_keys = name(self.table), name(self._tombstones)
        names = [quoted(column.name) for column in layout.columns]
        keys = [quoted(column) for column in layout.key]
        version = f"s.{VERSION}" if layout.versioned else str(number)
        is_live = f"NOT s.{DELETED}"
        if tombstones:
            is_live += f" AND NOT {_has_newer(deleted_keys, layout, version)}"
        values = ", ".join(f"s.{column}" for column in names)
        rows = f"SELECT {values}, {version} FROM {STAGE} AS s WHERE {is_live}"
        yield self._insert(table, names, keys, rows, layout)
        if not tombstones:
            return
        yield self._delete(deleted_keys, layout, version, f"NOT s.{DELETED}")
        if layout.deletes:
            if layout.versioned:
                known = f"SELECT d.{VERSION} FROM {table} AS d WHERE {same_key('d', layout)}"
                last = f"coalesce({version}, ({known}))"
            else:
                last = version
            of_key = ", ".join(f"s.{column}" for column in keys)
            gone = (
                f"SELECT {of_key}, {last} FROM {STAGE} AS s WHERE s.{DELETED} AND {last} IS NOT "
                f"NULL AND NOT {_has_newer(table, layout, version)}"
            )
            yield self._insert(deleted_keys, keys, keys, gone, layout)
            yield self._delete(table, layout, version, f"s.{DELETED}")

    def _delete(self, table: str, layout: Layout, version: str, which: str) -> str:
        """Return the SQL that deletes the keys of some rows of the batch, in older versions.

        Args:
            table: The quoted name of the table.
            which: A condition on rows ``s`` of the batch.
        """
        return (
            f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {STAGE} AS s WHERE {which} AND "
            f"{same_key(table, layout)} AND {is_older(table, layout, version)})"
        )

    def _insert(
        self, table: str, names: Sequence[str], keys: Sequence[str], rows: str, layout: Layout
    ) -> str:
        """Return the SQL that inserts rows, and replaces older ones of their keys.

        Args:
            table: The quoted name of the table.
            names: The quoted names of its columns without ``_version``.
            keys: The quoted names of the key columns.
            rows: A SELECT of the columns and of the version.
        """
        older = "<=" if layout.versioned else "<"
        changes = [f"{column} = excluded.{column}" for column in (*names, VERSION)]
        return (
            f"INSERT INTO {table} AS t ({', '.join(names)}, {VERSION}) {rows} "
            f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(changes)} "
            f"WHERE coalesce(t.{VERSION}, -1) {older} excluded.{VERSION}"
        )


def _has_newer(table: str, layout: Layout, version: str) -> str:
    """Return a condition: the table has the key of a row in a version that is kept."""
    newer = ">" if layout.versioned else ">="
    return (
        f"EXISTS (SELECT 1 FROM {table} AS d WHERE {same_key('d', layout)} "
        f"AND d.{VERSION} {newer} {version})"
    )


def is_older(table: str, layout: Layout, version: str) -> str:
    """Return a condition: a row of the table may be deleted in a version."""
    stored = f"coalesce({table}.{VERSION}, -1)"
    if layout.versioned:
        return f"({version} IS NULL OR {stored} <= {version})"
    return f"{stored} < {version}"


def write_error(target: str, error: BaseException, hint: str = "") -> SinkError:
    """Return the ``SinkError`` for an error of a database."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return SinkError(f"can't write {target}: {lines[0]}", hint=hint)


def quoted(identifier: str) -> str:
    """Return a name as a quoted identifier of SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def name(table: str) -> str:
    """Return a table's name quoted, with its schema if it has one."""
    return ".".join(map(quoted, table.split(".")))


def same_key(other: str, layout: Layout) -> str:
    return " AND ".join(f"{other}.{quoted(k)} = s.{quoted(k)}" for k in layout.key)
