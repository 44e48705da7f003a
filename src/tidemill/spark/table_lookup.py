"""What looks at tables from inside Spark's tasks: columns and rows made of ``table_cache``.

Runs in Python workers, which keep what they have read of a table from task to task. Must not know:
queries, schemas.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.spark.table_cache import TableCache, cache_of
from tidemill.spark.table_changes import Change, TableSpec, canonical
from tidemill.spark.table_rows import Latest, Versions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LEFT, RIGHT = 0, 1
"""Sides of a join of two changelogs, in the column ``side``."""
CHANGES = "side int, key binary, partition int, offset bigint"
"""Columns that ``rows_of_view`` takes."""
VIEW = "key binary, left binary, right binary"
"""Columns that ``rows_of_view`` makes; without ``left`` the row is gone."""

ROWS = "key binary, value binary, partition int, offset bigint"
"""Columns of ``rows_now``."""
VERSIONS = f"{ROWS}, since bigint, until bigint"
"""Columns of ``rows_by_version``; times are in microseconds since 1970."""

_ROWS_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
_VERSIONS_SCHEMA = _ROWS_SCHEMA.append(pa.field("since", pa.int64())).append(
    pa.field("until", pa.int64())
)
_VIEW_SCHEMA = pa.schema([("key", pa.binary()), ("left", pa.binary()), ("right", pa.binary())])
_CHUNK = 10_000


def value_now(spec: TableSpec, key: Column) -> Column:
    """The value of a key (text) in a table as it is when the task begins; null where none is."""

    def look_up(keys: pa.Array) -> pa.Array:
        rows = _fresh(cache_of(spec, Latest)).rows
        found = [None if k is None else rows.get(k) for k in _keys(keys, spec)]
        return pa.array(found, pa.binary())

    found: Column = _column(look_up)(key)
    return found


def value_at(spec: TableSpec, key: Column, at: Column) -> Column:
    """The value of a key (text) that held at an instant (microseconds since 1970)."""

    def look_up(keys: pa.Array, times: pa.Array) -> pa.Array:
        rows = _fresh(cache_of(spec, Versions)).rows
        found = [
            None if k is None or t is None else rows.get(k, t)
            for k, t in zip(_keys(keys, spec), times.to_pylist(), strict=True)
        ]
        return pa.array(found, pa.binary())

    found: Column = _column(look_up)(key, at)
    return found


def rows_now(spark: SparkSession, spec: TableSpec) -> DataFrame:
    """All rows of a table, as they are when the DataFrame is run; the columns ``ROWS``.

    No data source: Spark asks one for its partitions once, and would read a table that grows up to
    the same offsets in each micro-batch.
    """

    def make(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _fresh(cache_of(spec, Latest)).rows
        yield from _batches((_record(change) for change in rows.all()), _ROWS_SCHEMA)

    return spark.range(0, 1, 1, 1).mapInArrow(make, ROWS)


def rows_by_version(spark: SparkSession, spec: TableSpec) -> DataFrame:
    """All versions of a table that are kept, as of when the DataFrame is run; ``VERSIONS``."""

    def make(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _fresh(cache_of(spec, Versions)).rows
        versions = ((*_record(change), since, until) for change, since, until in rows.all())
        yield from _batches(versions, _VERSIONS_SCHEMA)

    return spark.range(0, 1, 1, 1).mapInArrow(make, VERSIONS)


def _record(change: Change) -> tuple[Any, ...]:
    return (change.key, change.value, change.partition, change.offset)


def _batches(rows: Iterator[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in iter(lambda: list(itertools.islice(rows, _CHUNK)), []):
        columns = zip(*part, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of_view(changes: DataFrame, left: TableSpec, right: TableSpec) -> DataFrame:
    """For changes of two tables, all rows of their join that they touch, as they are now.

    Each row comes once per batch. What the tables are is read after the changes were: a row shows
    at least all of its batch, and whatever it does not show yet comes as a change of a later one.

    Args:
        changes: with the columns ``CHANGES``, in one partition.
        left, right: the tables; ``left`` has the foreign key.
    """

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = _Seen(left, right)
        for batch in batches:
            seen.take(batch)
        yield from seen.rows()

    return changes.mapInArrow(make, VIEW)


class _Seen:
    """The changes of a batch."""

    def __init__(self, left: TableSpec, right: TableSpec) -> None:
        self._specs = (left, right)
        self._keys: tuple[set[bytes], set[bytes]] = (set(), set())
        self._ends: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def take(self, batch: pa.RecordBatch) -> None:
        columns = (batch.column(i).to_pylist() for i in range(4))
        for side, key, partition, offset in zip(*columns, strict=True):
            made = None if key is None else canonical(key, self._specs[side])
            if made is not None:  # else it fails where the table is read
                self._keys[side].add(made)
            ends = self._ends[side]
            ends[partition] = max(ends.get(partition, 0), offset + 1)

    def rows(self) -> Iterator[pa.RecordBatch]:
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
            columns: list[Any] = [
                pa.array(part, pa.binary()),
                pa.array([left.get(key) for key in part], pa.binary()),
                pa.array([None if k is None else right.get(k) for k in foreign], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_VIEW_SCHEMA)


def _fresh(cache: TableCache[Any]) -> TableCache[Any]:
    """The cache, read on once in each task: a task sees one state of the table."""
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
    from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

    # It says something else tomorrow: Spark must not run it twice and take the answers for one.
    return arrow_udf(look_up, "binary", ArrowUDFType.SCALAR).asNondeterministic()
