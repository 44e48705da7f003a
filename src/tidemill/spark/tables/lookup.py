"""Look up rows of tables inside Spark's tasks: make columns and rows from ``cache``.

The functions of the columns run in Python workers, which keep tables from task to task. Their names
and texts are part of the fingerprints of queries. Must not know: queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.spark.base.ddl import escaped
from tidemill.spark.tables.cache import TableCache, cache_of
from tidemill.spark.tables.changes import Change, TableSpec, canonical
from tidemill.spark.tables.parsing import RowParser
from tidemill.spark.tables.records import TableSchema
from tidemill.spark.tables.rows import Latest, Versions
from tidemill.spark.tables.source import VALID_FROM, VALID_TO

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEFT, RIGHT = 0, 1
"""Sides of a join of two changelogs, in the column ``side``."""
CHANGES = "side int, key binary, partition int, offset bigint"
"""Columns of the changes that ``rows_of_view`` gets."""

_ROWS_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
_TIME = pa.timestamp("us", tz="UTC")
_VERSIONS_SCHEMA = pa.schema([*_ROWS_SCHEMA, (VALID_FROM, _TIME), (VALID_TO, _TIME)])
_CHUNK = 10_000


def value_now(spec: TableSpec, key: Column) -> Column:
    """Return a column with the value of a key in the table when a task begins; null if none."""

    def look_up(keys: pa.Array) -> pa.Array:
        rows = _fresh(cache_of(spec, Latest)).rows
        found = [None if k is None else rows.get(k) for k in _keys(keys, spec)]
        return pa.array(found, pa.binary())

    found: Column = _column(look_up)(key)
    return found


def value_at(spec: TableSpec, key: Column, at: Column) -> Column:
    """Return a column with the value that a key had at a time; null if none.

    Args:
        at: the time in microseconds since 1970.
    """

    def look_up(keys: pa.Array, times: pa.Array) -> pa.Array:
        rows = _fresh(cache_of(spec, Versions)).rows
        found = [
            None if k is None or t is None else rows.get(k, t)
            for k, t in zip(_keys(keys, spec), times.to_pylist(), strict=True)
        ]
        return pa.array(found, pa.binary())

    found: Column = _column(look_up)(key, at)
    return found


def rows_now(spark: SparkSession, spec: TableSpec, schema: TableSchema) -> DataFrame:
    """Return all rows of a table at the time when the DataFrame is computed.

    This is not a data source, because Spark asks a data source for its partitions only once: it
    would read a growing table up to the same offsets in each micro-batch.
    """
    parser = RowParser(spec.topic, schema)

    def make(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _fresh(cache_of(spec, Latest)).rows
        for batch in _batches((_record(change) for change in rows.all()), _ROWS_SCHEMA):
            yield pa.RecordBatch.from_arrays(parser.records(batch), schema.names)

    return spark.range(0, 1, 1, 1).mapInArrow(make, schema.columns)


def rows_by_version(spark: SparkSession, spec: TableSpec, schema: TableSchema) -> DataFrame:
    """Return all kept versions of a table when the DataFrame is computed, each with the time from
    which and until which it is valid."""
    parser = RowParser(spec.topic, schema)
    bounds = (VALID_FROM, VALID_TO)

    def make(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _fresh(cache_of(spec, Versions)).rows
        versions = ((*_record(change), since, until) for change, since, until in rows.all())
        for batch in _batches(versions, _VERSIONS_SCHEMA):
            columns = [*parser.records(batch), *map(batch.column, bounds)]
            yield pa.RecordBatch.from_arrays(columns, [*schema.names, *bounds])

    times = ", ".join(f"{name} timestamp" for name in bounds)
    return spark.range(0, 1, 1, 1).mapInArrow(make, f"{schema.columns}, {times}")


def _record(change: Change) -> tuple[Any, ...]:
    return (change.key, change.value, change.partition, change.offset)


def _batches(rows: Iterator[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in iter(lambda: list(itertools.islice(rows, _CHUNK)), []):
        columns = zip(*part, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of_view(
    changes: DataFrame,
    specs: tuple[TableSpec, TableSpec],
    schemas: tuple[TableSchema, TableSchema],
    names: tuple[str, str],
) -> DataFrame:
    """Return the current rows of a join of two tables that a batch of changes affects.

    Each row occurs once per batch. The tables are read after the changes, so a row shows at least
    all changes of its batch. Newer changes that it does not show arrive in a later batch.

    Args:
        changes: the changes of both tables, with the columns ``CHANGES``, in one partition.
        specs: the table with the foreign key, and the one with the key.
        names: the columns of the result with their rows.

    Returns:
        The columns of the left table's key, and the rows of both tables as structs. Without a left
        row, the row of the view was deleted.
    """
    parsers = [RowParser(s.topic, schema) for s, schema in zip(specs, schemas, strict=True)]
    columns = [*schemas[LEFT].key_names, *names]

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = _Changes(*specs)
        for batch in batches:
            found.add(batch)
        for keys, *sides in found.rows():

            def place(index: int, keys: pa.Array = keys) -> str:
                return f"the row of key {keys[index].as_py().decode(errors='replace')}"

            rows = [p.rows(side, place) for p, side in zip(parsers, sides, strict=True)]
            arrays = [*parsers[LEFT].keys(keys, place), *rows]
            yield pa.RecordBatch.from_arrays(arrays, columns)

    keys = ", ".join(f"{escaped(c.name)} {c.type}" for c in schemas[LEFT].key)
    rows = (f"{name} {schema.row_type}" for name, schema in zip(names, schemas, strict=True))
    return changes.mapInArrow(make, f"{keys}, {', '.join(rows)}")


class _Changes:
    """The changes of a batch: their keys, and the positions after them."""

    def __init__(self, left: TableSpec, right: TableSpec) -> None:
        self._specs = (left, right)
        self._keys: tuple[set[bytes], set[bytes]] = (set(), set())
        self._ends: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def add(self, batch: pa.RecordBatch) -> None:
        columns = (batch.column(i).to_pylist() for i in range(4))
        for side, key, partition, offset in zip(*columns, strict=True):
            made = None if key is None else canonical(key, self._specs[side])
            if made is not None:  # an invalid key fails when the table is read
                self._keys[side].add(made)
            ends = self._ends[side]
            ends[partition] = max(ends.get(partition, 0), offset + 1)

    def rows(self) -> Iterator[list[pa.Array]]:
        """Yield keys of the view, and the values of both tables for each."""
        if not any(self._ends):
            return
        caches = [cache_of(spec, Latest) for spec in self._specs]
        for cache, ends in zip(caches, self._ends, strict=True):
            cache.refresh(ends)
        left, right = (cache.rows for cache in caches)
        touched = set(self._keys[LEFT])
        for key in self._keys[RIGHT]:
            touched |= left.referring_to(key)
        keys = sorted(touched)
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            foreign = [left.foreign_key(key) for key in part]
            values = [
                [left.get(key) for key in part],
                [None if k is None else right.get(k) for k in foreign],
            ]
            yield [pa.array(each, pa.binary()) for each in (part, *values)]


def _fresh(cache: TableCache[Any]) -> TableCache[Any]:
    """Return the cache, refreshed once in each task, so that a task sees one state of the table."""
    from pyspark import TaskContext

    task = TaskContext.get()
    user = None if task is None else task.taskAttemptId()
    if user is None or cache.user != user:
        cache.refresh()
        cache.user = user
    return cache


def _keys(keys: pa.Array, spec: TableSpec) -> list[bytes | None]:
    found = keys.cast(pa.binary()).to_pylist()
    return [None if key is None else canonical(key, spec) for key in found]


def _column(look_up: Any) -> Any:
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    # Results change with the table, so Spark must not compute a value twice and mix the results.
    return arrow_udf(look_up, "binary").asNondeterministic()
