"""A sink that keeps the history of a table in DuckDB: a slowly changing dimension of type 2.

Each version of a row is a row with ``valid_from``, ``valid_to`` and ``is_current``. A version is
known by its key and ``_version``, and the periods of a key are computed from all of its versions.
So the result does not depend on the order in which versions arrive, nor on how often. Deletions are
in a second table, ``<table>__deleted``; they end a period. Must not know: Spark, Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tidemill.spark.base.ddl import escaped
from tidemill.spark.errors import PipelineError, RowError, SchemaError
from tidemill.spark.sinks.base import DELETED, Run, Writer, as_columns
from tidemill.spark.sinks.database.duckdb import DuckDBTable
from tidemill.spark.sinks.database.rows import (
    ROW_VERSIONS,
    VERSION,
    Layout,
    collect,
    layout_of,
)
from tidemill.spark.sinks.database.sink import FileTableSink
from tidemill.spark.sinks.database.upsert import STAGE, Found, UpsertTable, name, quoted

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
_TIMES = ("_commit_time", "_timestamp")
"""Columns of a table's changes with the time of a change, the best one first."""


@dataclass(frozen=True)
class DuckDBHistorySink(FileTableSink):
    """Keeps all versions of each row in a table of a DuckDB file. Replays change nothing.

    The result must have the column ``_version``, as the changes of a table have.

    Attributes:
        table: Name of the table. It is created if it is missing.
        key: Columns that identify a row; a key has one version at a time.
        path: The file. It is created if it is missing.
        valid_from: The TIMESTAMP column from which a version is valid; default: ``_commit_time``,
            or ``_timestamp`` where there is none.
    """

    valid_from: str = ""

    modes: ClassVar[tuple[str, ...]] = ("append", "update")

    def check_result(self, df: Any, checkpoint: Any) -> None:
        super().check_result(df, checkpoint)
        self.with_time(df)

    def with_time(self, df: Any) -> Any:
        """Return a result with the column ``valid_from``.

        Raises:
            SchemaError: The result has no versions or no time, or has a column that the sink adds.
        """
        names = {each.lower(): each for each in df.columns}
        if VERSION not in names:
            raise SchemaError(
                f"the result has no column {VERSION}, which a history needs",
                hint="Write the changes of a table: return aircraft.changes.",
            )
        added = [each for each in (VALID_FROM, VALID_TO, IS_CURRENT) if each in names]
        if added and added != [self.valid_from.lower()]:
            raise SchemaError(f"the sink adds the column {added[0]}", hint="Rename your column.")
        wanted = (self.valid_from,) if self.valid_from else _TIMES
        found = next((names[each.lower()] for each in wanted if each.lower() in names), None)
        if found is None:
            raise SchemaError(
                f"the result has no column {' or '.join(wanted)} with the time of a version",
                hint="Name it: valid_from=...",
            )
        if df.schema[found].dataType.typeName() != "timestamp":
            raise SchemaError(f"column {found} is not a TIMESTAMP")
        return df if found == VALID_FROM else df.selectExpr("*", f"{escaped(found)} {VALID_FROM}")

    def upsert_table(self) -> UpsertTable[Any]:
        return HistoryTable(self.path, self.table, self.key_columns)

    def open(self, run: Run) -> Writer:
        return _HistoryWriter(self)


class _HistoryWriter(Writer):
    """Writes the batches of one run."""

    def __init__(self, sink: DuckDBHistorySink) -> None:
        self._sink = sink
        self._table = HistoryTable(sink.path, sink.table, as_columns(sink.key))

    def write(self, df: Any, batch_id: int) -> None:
        """Write a batch. The number does not matter: rows have versions of their own."""
        timed = self._sink.with_time(df)
        layout = layout_of(timed.schema, self._sink.key_columns)
        self._table.apply(collect(timed, layout, self._table.target), layout)


class HistoryTable(DuckDBTable):
    """A table of versions in a DuckDB file, and its table of deletions."""

    def apply(
        self,
        rows: pa.Table,
        layout: Layout,
        number: int = 0,
        *,
        is_first: bool = False,
        is_new: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Write versions in one transaction.

        Args:
            rows: The columns of the layout, ``valid_from`` among them, ``_version`` and, if the
                layout has it, ``_deleted``. Of rows with one key and version the last one counts.
                A deletion without a version comes after all versions of its key so far.
            number: Is not used, and neither are the other arguments: rows have versions.

        Raises:
            SchemaError: The table in the database has other columns.
            RowError: A row has no key, no time, or an invalid version.
            SinkError: The database rejected the batch.
        """
        checked = _checked(rows, layout, self.target)
        with self._transaction() as connection:
            self._prepare(connection, layout)
            on_start()
            if checked.num_rows:
                connection.register(STAGE, checked)
                for statement in self._versions(layout):
                    self._execute(connection, statement)

    def _prepare(self, connection: duckdb.DuckDBPyConnection, layout: Layout) -> bool:
        values = [self.column(column) for column in layout.columns]
        keys = [self.column(column) for column in layout.columns if column.name in layout.key]
        found = self._find(connection, self.table)
        if found is not None:
            self._check_columns(found, layout)
        more = f"{VALID_TO} TIMESTAMPTZ, {IS_CURRENT} BOOLEAN, {VERSION} BIGINT"
        self._execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {name(self.table)} ({', '.join(values)}, {more})",
        )
        self._execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {name(self._tombstones)} "
            f"({', '.join(keys)}, {VALID_FROM} TIMESTAMPTZ, {VERSION} BIGINT)",
        )
        return True

    def _check_columns(self, found: Found, layout: Layout) -> None:
        existing = set(map(self._folded, found.columns))
        names = [column.name for column in layout.columns]
        wanted = [*names, VALID_TO, IS_CURRENT, VERSION]
        missing = [each for each in wanted if self._folded(each) not in existing]
        if missing:
            raise SchemaError(
                f"{self.target} has no column {', '.join(missing)}",
                hint="Rebuild it: tidemill pipeline rebuild.",
            )

    def _versions(self, layout: Layout) -> Iterator[str]:
        """Yield the SQL that adds the versions of ``STAGE`` and computes the periods again."""
        table, gone = name(self.table), name(self._tombstones)
        names = ", ".join(quoted(column.name) for column in layout.columns)
        keys = ", ".join(map(quoted, layout.key))
        both = (
            f"SELECT {keys}, {VALID_FROM}, {VERSION}, false AS gone FROM {table} UNION ALL "
            f"SELECT {keys}, {VALID_FROM}, {VERSION}, true FROM {gone}"
        )
        # A deletion without a version of a key that is deleted adds nothing.
        last = (
            f"SELECT CASE WHEN arg_max(b.gone, b.{VERSION}) THEN NULL "
            f"ELSE max(b.{VERSION}) + 1 END FROM ({both}) AS b WHERE {_same('b', 's', layout)}"
        )
        staged = f"{STAGE}_versions"
        yield (
            f"CREATE OR REPLACE TEMP TABLE {staged} AS SELECT * REPLACE "
            f"(coalesce(s.{VERSION}, ({last})) AS {VERSION}) FROM {STAGE} AS s"
        )
        yield f"DELETE FROM {staged} WHERE {VERSION} IS NULL"
        for each in (table, gone):
            yield (
                f"DELETE FROM {each} AS t USING {staged} AS s "
                f"WHERE {_same('t', 's', layout)} AND t.{VERSION} = s.{VERSION}"
            )
        yield (
            f"INSERT INTO {table} ({names}, {VERSION}) "
            f"SELECT {names}, {VERSION} FROM {staged} WHERE NOT {DELETED}"
        )
        yield (
            f"INSERT INTO {gone} ({keys}, {VALID_FROM}, {VERSION}) "
            f"SELECT {keys}, {VALID_FROM}, {VERSION} FROM {staged} WHERE {DELETED}"
        )
        touched = f"EXISTS (SELECT 1 FROM {staged} AS s WHERE {_same('b', 's', layout)})"
        yield (
            f"UPDATE {table} AS t SET {VALID_TO} = e.until, {IS_CURRENT} = e.until IS NULL FROM "
            f"(SELECT {keys}, {VERSION}, gone, lead({VALID_FROM}) OVER "
            f"(PARTITION BY {keys} ORDER BY {VERSION}) AS until FROM ({both}) AS b WHERE {touched})"
            f" AS e WHERE {_same('t', 'e', layout)} AND t.{VERSION} = e.{VERSION} AND NOT e.gone"
        )
        yield f"DROP TABLE {staged}"


def _same(one: str, other: str, layout: Layout) -> str:
    return " AND ".join(f"{one}.{quoted(k)} = {other}.{quoted(k)}" for k in layout.key)


def _checked(rows: pa.Table, layout: Layout, target: str) -> pa.Table:
    """Check the rows of a batch, and keep the last one of each key and version."""
    import pyarrow as pa

    if not layout.versioned:
        raise PipelineError(f"rows for {target} have no {VERSION}")
    for column in (*layout.key, VALID_FROM):
        if rows.column(column).null_count:
            raise RowError(f"a row for {target} has no {column}")
    if not layout.deletes:
        rows = rows.append_column(DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
    keys = zip(*(rows.column(each).to_pylist() for each in layout.key), strict=True)
    greatest: dict[tuple[Any, ...], int] = {}
    last: dict[tuple[Any, ...], int] = {}
    versions: list[int | None] = []
    given = zip(
        keys, rows.column(VERSION).to_pylist(), rows.column(DELETED).to_pylist(), strict=True
    )
    for place, (key, version, is_deleted) in enumerate(given):
        if version is None and is_deleted and key in greatest:
            version = greatest[key] + 1
        is_valid = is_deleted if version is None else 0 <= version < ROW_VERSIONS
        if not is_valid:
            raise RowError(f"a row for {target} has the version {version}")
        if version is not None:
            greatest[key] = max(version, greatest.get(key, -1))
        last[(*key, version)] = place
        versions.append(version)
    at = rows.schema.get_field_index(VERSION)
    filled = rows.set_column(at, VERSION, pa.array(versions, pa.int64()))
    return filled.take(pa.array(sorted(last.values()), pa.int64()))
