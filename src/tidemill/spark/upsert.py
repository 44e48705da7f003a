"""Upserts into a database's table: what is the same for all of them.

A batch is one transaction of the database. Each row carries ``_version``, which grows from batch to
batch and from checkpoint to checkpoint; only a newer version replaces a row. So a batch that is
run again changes nothing, and one that comes late (a driver that hung, an old checkpoint) undoes
nothing. Of a row that is deleted the key and the version stay, in a table of their own:
``<table>__deleted``. Must not know: Kafka, pipelines, any one database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tidemill.errors import CheckpointRestoredError, SchemaError, SinkError
from tidemill.spark.options import noted
from tidemill.spark.plans import Begun
from tidemill.spark.upsert_rows import (
    DELETED,
    TOMBSTONES,
    VERSION,
    Column,
    Layout,
    collect,
    layout_of,
)
from tidemill.spark.upsert_version import batch_of, last_of, made_at, version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

STAGE = "_tidemill_batch"
"""Name under which a database sees the batch's rows."""

Connection = TypeVar("Connection")


@dataclass(frozen=True, slots=True)
class Found:
    """A table that is there: its columns, and those of its primary key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]


class UpsertTable(ABC, Generic[Connection]):
    """A table that rows are upserted into by key; made from the first batch's columns if missing.

    Args:
        table: name, ``schema.name`` where the database has schemas.
        key: column or columns that identify a row; they become the primary key.
        order_by: where a key may occur more than once in a batch: columns of which the greatest
            values win. Without it that is an error, as nothing says which row is the last.
    """

    types: ClassVar[dict[str, str]]
    """Spark's name of a type -> the database's. Nested ones are ``json``."""
    folds_case = True
    """Whether the database holds ``A`` and ``a`` for the same name even in quotes."""

    def __init__(self, table: str, key: str | Sequence[str], order_by: str | Sequence[str] = ()):
        self.table = table
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        self._has_written = False
        self._has_begun = False

    @property
    @abstractmethod
    def target(self) -> str:
        """What it writes to, for messages."""

    def write(
        self, df: DataFrame, batch_id: int, created_ms: int, begun: Begun | None = None
    ) -> int:
        """Write a batch: upserts, and deletions where ``_deleted`` is true. All of it or nothing.

        Args:
            df: with the key's columns; its rows come to the driver, as Arrow.
            batch_id: as ``foreachBatch`` gives it.
            created_ms: when the query's checkpoint was made, in milliseconds since 1970. Rows of an
                earlier checkpoint are replaced, those of a later one are not.
            begun: which batch was begun last: with it, a batch that the checkpoint has planned
                anew, after it was put back from a backup, is not taken for the one that was
                written.

        Returns:
            The number of rows in the batch, whether or not they were newer.

        Raises:
            SchemaError: columns are missing, of a type that the table can't hold, or the table that
                is there is another one.
            RowError: rows have no key or the same key.
            SinkError: the database refused. Or the checkpoint begins, and the table holds what one
                that is not older wrote.
            CheckpointRestoredError: it was put back, and the table holds the batch.
        """
        layout = layout_of(df.schema, self._key, self._order_by)
        number = version(created_ms, batch_id)
        rows = collect(df, layout, self.target)
        # Later it may be a batch that comes late: that is ignored.
        begins = batch_id == 0 and not self._has_written
        # Behind a batch that was found to be the first, this query's own follow.
        is_new = begun is not None and not self._has_begun and begun.is_new(batch_id)

        def begin() -> None:
            if begun is not None:
                begun.keep(batch_id)

        self.apply(rows, layout, number, begins=begins, is_new=is_new, begin=begin)
        self._has_written = True
        self._has_begun |= is_new
        return int(rows.num_rows)

    def apply(
        self,
        rows: pa.Table,
        layout: Layout,
        number: int,
        *,
        begins: bool = False,
        is_new: bool = False,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Write rows that are collected, in a version.

        Args:
            begins: the version is the first of a checkpoint: nothing newer may be there.
            is_new: the version was never begun: neither it nor a later one of its checkpoint may be
                there.
            begin: called when that is known, before anything is written.

        Raises:
            SchemaError: the table that is there is another one.
            SinkError: the database refused, or there is something newer.
        """
        with self._transaction() as connection:
            tombstones = self._prepare(connection, layout)
            if begins:
                self._check_latest(connection, number, tombstones=tombstones)
            if is_new:
                self._check_new(connection, number, tombstones=tombstones)
            begin()
            if rows.num_rows:
                self._stage(connection, rows, layout)
                for statement in self._statements(layout, number, tombstones=tombstones):
                    self._execute(connection, statement)

    def close(self) -> None:
        """Let go of what is kept between batches; the next batch takes it up again."""

    # --- what a database does ---------------------------------------------------------------------

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """A connection in a transaction: committed at the end, rolled back by an error.

        Raises:
            SinkError: instead of the database's own errors.
        """

    @abstractmethod
    def _execute(self, connection: Connection, statement: str) -> None:
        """Run one statement."""

    @abstractmethod
    def _find(self, connection: Connection, table: str) -> Found | None:
        """What is there under a table's name."""

    @abstractmethod
    def _number(self, connection: Connection, query: str) -> int | None:
        """The one number that a query finds."""

    @abstractmethod
    def _stage(self, connection: Connection, rows: pa.Table, layout: Layout) -> None:
        """Make the rows readable as the table ``STAGE``, with ``_deleted``."""

    # --- the table --------------------------------------------------------------------------------

    @property
    def _tombstones(self) -> str:
        return f"{self.table}{TOMBSTONES}"

    def _prepare(self, connection: Connection, layout: Layout) -> bool:
        """Make or check the table; returns whether there are keys of deleted rows to look at."""
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
        """A column's declaration."""
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
        """Whether rows fit a table that is there.

        Raises:
            SchemaError: they do not.
        """
        there = set(map(self._folded, found.columns))
        wanted = [column for column in layout.columns if self._folded(column.name) not in there]
        if VERSION not in there:
            raise noted(
                SchemaError(
                    f"{self.target} has no column {VERSION}: it was not made by tidemill",
                    hint="Choose another name, or add the column: "
                    f"ALTER TABLE {self.table} ADD COLUMN {VERSION} BIGINT.",
                )
            )
        if wanted:
            missing = ", ".join(column.name for column in wanted)
            adding = "; ".join(
                f"ALTER TABLE {self.table} ADD COLUMN {self.column(column)}" for column in wanted
            )
            raise noted(SchemaError(f"{self.target} has no column {missing}", hint=f"{adding}."))
        if set(map(self._folded, found.key)) != set(map(self._folded, layout.key)):
            raise noted(
                SchemaError(
                    f"{self.target} has the primary key ({', '.join(found.key)}), "
                    f"and the sink the key ({', '.join(layout.key)})",
                    hint="Give the sink the table's key, or another table.",
                )
            )

    def _check_latest(self, connection: Connection, number: int, *, tombstones: bool) -> None:
        """Whether a checkpoint's first batch is the newest, as it should.

        Raises:
            SinkError: it is not; all of the checkpoint's rows would be ignored in silence.
        """
        latest = self._latest(connection, tombstones=tombstones)
        if latest is not None and latest > number:
            raise noted(
                SinkError(
                    f"{self.target} holds rows written by a checkpoint made at {made_at(latest)}; "
                    f"those of this one, made at {made_at(number)}, would be taken for old ones",
                    hint="If this machine's clock is behind, set it right and start the query "
                    "afresh: tidemill pipeline reset. If another query writes to the table, give "
                    "each its own.",
                )
            )

    def _check_new(self, connection: Connection, number: int, *, tombstones: bool) -> None:
        """Whether a batch that is begun for the first time is the newest of its checkpoint.

        Raises:
            CheckpointRestoredError: it is not; its rows would be taken for written, or old.
        """
        last = last_of(number)
        latest = self._latest(connection, tombstones=tombstones, upto=last)
        if latest is not None and latest >= number:
            raise noted(
                CheckpointRestoredError(
                    f"{self.target} holds rows of batch {batch_of(latest)}, and the checkpoint has "
                    f"planned batch {batch_of(number)} anew: it was put back from a backup, or "
                    "copied",
                    hint="Start the query afresh: tidemill pipeline reset.",
                )
            )

    def _latest(
        self, connection: Connection, *, tombstones: bool, upto: int | None = None
    ) -> int | None:
        """The greatest version that is there."""
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
        """SQL that brings the table up to date with ``STAGE``; ``number`` is the version.

        A key is in the table or among the tombstones, never in both.
        """
        table, dead = name(self.table), name(self._tombstones)
        names = [quoted(column.name) for column in layout.columns]
        keys = ", ".join(map(quoted, layout.key))
        live = f"NOT s.{DELETED}"
        if tombstones:
            live += f" AND NOT {self._has_newer(dead, layout, number)}"
        changes = [f"{column} = excluded.{column}" for column in (*names, VERSION)]
        yield (
            f"INSERT INTO {table} AS t ({', '.join(names)}, {VERSION}) "
            f"SELECT {', '.join(f's.{column}' for column in names)}, {number} "
            f"FROM {STAGE} AS s WHERE {live} ON CONFLICT ({keys}) DO UPDATE SET "
            f"{', '.join(changes)} WHERE coalesce(t.{VERSION}, -1) < excluded.{VERSION}"
        )
        if not tombstones:
            return
        yield self._delete(dead, layout, number, f"NOT s.{DELETED}")
        if layout.deletes:
            yield (
                f"INSERT INTO {dead} AS t ({keys}, {VERSION}) "
                f"SELECT {', '.join(f's.{quoted(k)}' for k in layout.key)}, {number} "
                f"FROM {STAGE} AS s "
                f"WHERE s.{DELETED} AND NOT {self._has_newer(table, layout, number)} "
                f"ON CONFLICT ({keys}) DO UPDATE SET {VERSION} = excluded.{VERSION} "
                f"WHERE t.{VERSION} < excluded.{VERSION}"
            )
            yield self._delete(table, layout, number, f"s.{DELETED}")

    def _has_newer(self, table: str, layout: Layout, number: int) -> str:
        """Whether a table has a row's key in this version or a later one."""
        return (
            f"EXISTS (SELECT 1 FROM {table} AS d WHERE {_same_key('d', layout)} "
            f"AND d.{VERSION} >= {number})"
        )

    def _delete(self, table: str, layout: Layout, number: int, which: str) -> str:
        return (
            f"DELETE FROM {table} WHERE coalesce({VERSION}, -1) < {number} AND EXISTS "
            f"(SELECT 1 FROM {STAGE} AS s WHERE {which} AND {_same_key(table, layout)})"
        )


def refused(target: str, error: BaseException, hint: str = "") -> SinkError:
    """A database's error as ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return noted(SinkError(f"{target} can't be written: {lines[0]}", hint=hint))


def quoted(identifier: str) -> str:
    """An identifier of SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def name(table: str) -> str:
    """A table's name, with its schema where there is one."""
    return ".".join(map(quoted, table.split(".")))


def _same_key(other: str, layout: Layout) -> str:
    return " AND ".join(f"{other}.{quoted(k)} = s.{quoted(k)}" for k in layout.key)
