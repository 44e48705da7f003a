"""Join two tables as a view that is kept current. The result is a changelog of the view's rows.

In a join on the key of both tables, Spark's aggregation keeps the last change of each side in its
state. In a join on a foreign key, a change of either table shows which rows of the view to compute
again, from the copies of both tables that Python workers keep; Spark keeps no state. Must not know:
runs of pipelines, sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.errors import JoinError
from tidemill.spark.joins.columns import On, check_distinct, check_how, column, pairs
from tidemill.spark.tables.changes import DEFAULT_LIMIT, TableSpec
from tidemill.spark.tables.records import TableSchema
from tidemill.spark.tables.source import DELETED, OFFSET, PARTITION, TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.pipelines.inputs import TableInput

_SIDES = ("__tidemill_left", "__tidemill_right")
# Spark's aggregation finds the last change of a key by these orders. Within a partition, the change
# with the greater offset is later. A key that was moved to another partition has a last change in
# each of them, and the latest of these counts. The first two orders find the last changes in the
# lowest and in the highest partition; the third one is for keys in more than two partitions.
_ORDERS = {
    "low": (f"-{PARTITION}", OFFSET),
    "high": (PARTITION, OFFSET),
    "late": (TIMESTAMP, PARTITION, OFFSET),
}
_AS_KEY = ("STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DATE")
"""Types whose values are written in the same way in a key and in a JSON object."""


def join_tables(
    left: TableInput,
    right: TableInput,
    *,
    on: On | None = None,
    foreign_key: On | None = None,
    how: str = "inner",
    right_prefix: str = "",
    memory_limit: int = DEFAULT_LIMIT,
) -> DataFrame:
    """Join two tables as a materialised view that is kept current when either table changes.

    The result is a streaming DataFrame for update mode and for sinks that use ``_deleted``:
    ``ChangelogSink`` or a database. Each of its rows is the current row of a key of the view, or
    reports with ``_deleted`` that the view has no row of the key. When all changes have been read,
    the view equals the join of both tables.

    Args:
        left: a table of a pipeline, or of ``changelog_table``.
        right: a table of a pipeline, or of ``changelog_table``.
        on: the key of both tables: its columns, or ``{left: right}`` if their names differ.
        foreign_key: columns of the left table with the key of the right one, in its order; or
            ``{column: key column}``. The view has the key of the left table.
        how: ``inner``, or ``left`` to keep rows of the left table without a partner.
        right_prefix: added before the names of the right table's columns.
        memory_limit: most bytes that a table may take in a Python worker (``foreign_key`` only).

    Returns:
        The columns of the view's key, the other columns of the left table, the columns of the
        right table except its key, and ``_deleted``.

    Raises:
        JoinError: the columns are not the keys they should be, both tables have a column of the
            same name, or the source of a table does not support the join.
    """
    from pyspark.sql import functions as f

    check_how(how, ("inner", "left"))
    if (on is None) == (foreign_key is None):
        raise JoinError("join_tables needs either on or foreign_key")
    one, two = left.schema, right.schema
    names = [f"{right_prefix}{c.name}" for c in two.values]
    check_distinct(one.names, names, "right_prefix")
    if on is not None:
        joined = _on_key(left, right, one, two, pairs(on))
    else:
        assert foreign_key is not None
        joined = _on_foreign_key(left, right, one, two, foreign_key, memory_limit)
    mine, theirs = f.col(_SIDES[0]), f.col(_SIDES[1])
    deleted = mine.isNull() | theirs.isNull() if how == "inner" else mine.isNull()
    values = [
        f.when(~f.col(DELETED), side.getField(name)).alias(new)
        for side, name, new in [
            *[(mine, c.name, c.name) for c in one.values],
            *[(theirs, c.name, new) for c, new in zip(two.values, names, strict=True)],
        ]
    ]
    return joined.withColumn(DELETED, deleted).select(*map(column, one.key_names), *values, DELETED)


# --- on the key of both --------------------------------------------------------------------------


def _on_key(
    left: TableInput,
    right: TableInput,
    one: TableSchema,
    two: TableSchema,
    compared: tuple[tuple[str, str], ...],
) -> DataFrame:
    """Return the last row of each side by key; null if a side has no row."""
    from pyspark.sql import functions as f

    wanted = {mine.lower(): theirs.lower() for mine, theirs in compared}
    keys = {name.lower() for name in one.key_names}, {name.lower() for name in two.key_names}
    if (set(wanted), set(wanted.values())) != keys or len(compared) != len(one.key):
        raise JoinError(
            f"on {', '.join(wanted)} is not the key of both tables: {', '.join(one.key_names)}, "
            f"and {', '.join(two.key_names)}",
            hint="Name the keys, or use foreign_key=... if a column of the left table holds "
            "the key of the right one.",
        )
    partners = [two.column(wanted[c.name.lower()]) for c in one.key]
    for mine, theirs in zip(one.key, partners, strict=True):
        assert theirs is not None
        _same_type(mine.name, mine.type, theirs.name, theirs.type)
    rows = [
        _side(left, one, [c.name for c in one.key], one.key_names, 0),
        _side(right, two, [c.name for c in partners if c is not None], one.key_names, 1),
    ]
    absent = [f.lit(None).cast(rows[1 - i].schema[_SIDES[1 - i]].dataType) for i in (0, 1)]
    both = (
        rows[0]
        .withColumn(_SIDES[1], absent[0])
        .unionByName(rows[1].withColumn(_SIDES[0], absent[1]))
    )
    # The struct around the row is needed because max_by ignores nulls, which deletions are.
    change = f"struct({{}} AS row, {TIMESTAMP} AS at, {PARTITION} AS partition)"
    last = [
        f.expr(
            f"max_by({change.format(side)}, struct({', '.join(order)})) FILTER (WHERE side = {i})"
        ).alias(f"{side}_{name}")
        for i, side in enumerate(_SIDES)
        for name, order in _ORDERS.items()
    ]
    keys_of_both = [column(name) for name in one.key_names]
    grouped = both.groupBy(*keys_of_both).agg(*last)
    return grouped.select(*keys_of_both, *[_newest(side).alias(side) for side in _SIDES])


def _newest(side: str) -> Column:
    """Return a side's row after its last change: the latest of the last ones of each partition."""
    from pyspark.sql import functions as f

    low, high, late = (f.col(f"{side}_{name}") for name in _ORDERS)

    def place(change: Column) -> Column:
        return f.struct(change.getField("at"), change.getField("partition"))

    partition = late.getField("partition")
    is_other = (partition != low.getField("partition")) & (partition != high.getField("partition"))
    ends = f.when(place(low) > place(high), low).otherwise(high)
    found = f.when(is_other & (place(late) > place(ends)), late).otherwise(ends)
    return found.getField("row")


def _side(
    table: TableInput, schema: TableSchema, key: list[str], names: tuple[str, ...], side: int
) -> DataFrame:
    """Return the changes of a side: the key under the view's names, the row, and its position."""
    from pyspark.sql import functions as f

    row = f.struct(*[column(c.name) for c in schema.values], f.lit(True).alias("_exists"))
    return table.changes.select(
        *[column(mine).alias(name) for mine, name in zip(key, names, strict=True)],
        f.when(~f.col(DELETED), row).alias(_SIDES[side]),
        f.lit(side).alias("side"),
        OFFSET,
        PARTITION,
        TIMESTAMP,
    )


# --- on a foreign key ----------------------------------------------------------------------------


def _on_foreign_key(
    left: TableInput,
    right: TableInput,
    one: TableSchema,
    two: TableSchema,
    foreign_key: On,
    memory_limit: int,
) -> DataFrame:
    """Return the rows of the view that a batch's changes affect; null if a side has no row."""
    from tidemill.spark.tables import lookup

    compared = _foreign_pairs(foreign_key, one, two)
    specs = _spec(left, memory_limit, compared), _spec(right, memory_limit)
    changes = _keys_of(left, lookup.LEFT).union(_keys_of(right, lookup.RIGHT))
    # One task gets all changes of a batch, so each row of the view occurs once.
    return lookup.rows_of_view(changes.coalesce(1), specs, (one, two), _SIDES)


def _foreign_pairs(
    foreign_key: On, one: TableSchema, two: TableSchema
) -> tuple[tuple[str, str], ...]:
    """Return the foreign key's columns with those of the right key, in the order of that key."""
    if isinstance(foreign_key, str) or not hasattr(foreign_key, "items"):
        names = [mine for mine, _ in pairs(foreign_key)]
        if len(names) != len(two.key):
            raise JoinError(
                f"foreign_key {', '.join(names)} must have as many columns as the key of the right "
                f"table: {', '.join(two.key_names)}"
            )
        compared = dict(zip([name.lower() for name in two.key_names], names, strict=True))
    else:
        compared = {theirs.lower(): mine for mine, theirs in pairs(foreign_key)}
        if set(compared) != {name.lower() for name in two.key_names}:
            raise JoinError(
                f"foreign_key names {', '.join(compared)} of the right table, whose key is "
                f"{', '.join(two.key_names)}"
            )
    found = []
    for theirs in two.key:
        name = compared[theirs.name.lower()]
        mine = one.column(name)
        if mine is None:
            raise JoinError(
                f"the left table has no column {name}", hint=f"It has {', '.join(one.names)}."
            )
        _same_type(mine.name, mine.type, theirs.name, theirs.type)
        if mine.type not in _AS_KEY:
            raise JoinError(
                f"foreign_key {mine.name} is {mine.type}, which has different texts in keys and "
                "in JSON objects",
                hint=f"Supported types are {', '.join(_AS_KEY)}.",
            )
        found.append((mine.name, theirs.name))
    return tuple(found)


def _keys_of(table: TableInput, side: int) -> DataFrame:
    """Return the keys of a table's changes, with the columns of ``lookup.CHANGES``."""
    from pyspark.sql import functions as f

    schema = table.schema
    key = schema.key_text([column(name) for name in schema.key_names]).cast("binary")
    return table.changes.select(
        f.lit(side).alias("side"),
        key.alias("key"),
        f.col(PARTITION).alias("partition"),
        f.col(OFFSET).alias("offset"),
    )


# --- both ----------------------------------------------------------------------------------------


def _spec(
    table: TableInput, memory_limit: int, foreign_key: tuple[tuple[str, str], ...] = ()
) -> TableSpec:
    """Return what Python workers keep of a table."""
    source = table.declaration.source
    spec = source.worker_copy(table.context(memory_limit), foreign_key)
    if spec is None:
        raise JoinError(
            f"table {table.declaration.name} can't be joined on a foreign key: "
            f"{source.description} does not support it"
        )
    return spec


def _same_type(left: str, left_type: str, right: str, right_type: str) -> None:
    if left_type != right_type:
        raise JoinError(
            f"{left} is {left_type}, and {right} is {right_type}: they can't be compared as keys",
            hint="Declare both tables with one type for it.",
        )
