"""A batch's rows as a table of a database wants them: types, keys, each key once.

The rows come to the driver as one Arrow table; Spark's ``spark.driver.maxResultSize`` bounds it.
Must not know: any one database, Kafka, pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.errors import RowError, SchemaError, SinkError
from tidemill.spark.ddl import escaped
from tidemill.spark.options import noted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

VERSION = "_version"
"""Column with the version of a row."""
DELETED = "_deleted"
"""Column of a batch that says that a row is to be deleted; the table does not have it."""
TOMBSTONES = "__deleted"
"""Ends the name of the table with the keys of deleted rows."""

PLAIN = frozenset(
    {
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
        *("string", "binary", "date", "timestamp", "timestamp_ntz"),
    }
)
_NESTED = frozenset({"struct", "array", "map", "variant"})
_NUMBER = "_tidemill_number"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        type: Spark's name, without parameters; ``json`` for what is nested.
        precision: of a decimal.
        scale: of a decimal.
    """

    name: str
    type: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """How a batch becomes rows of a table.

    Attributes:
        columns: of the table, but for ``_version``.
        key: names among them, as they are spelled there.
        order_by: names of the batch's columns.
        deletes: whether rows say if they are deleted.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    deletes: bool = False


def layout_of(schema: StructType, key: Sequence[str], order_by: Sequence[str] = ()) -> Layout:
    """The layout of a DataFrame's rows.

    Raises:
        SchemaError: the key is not among the columns, a type can't be stored, a name is taken or
            there twice.
    """
    names = [field.name for field in schema.fields]
    lower = [each.lower() for each in names]
    twice = sorted({each for each in lower if lower.count(each) > 1})
    if twice:
        raise noted(SchemaError(f"there is more than one column {', '.join(twice)}"))
    if not key:
        raise noted(SchemaError("a table's key has no columns", hint='For example key="id".'))
    if VERSION in lower:
        raise noted(
            SchemaError(f"a column is named {VERSION}", hint="The sink adds that: rename yours.")
        )
    deletes = DELETED in lower
    if deletes and schema.fields[lower.index(DELETED)].dataType.typeName() != "boolean":
        raise noted(SchemaError(f"column {DELETED} is no BOOLEAN"))
    columns = tuple(_column(f.name, f.dataType) for f in schema.fields if f.name.lower() != DELETED)
    found = _spelled(key, names, "key")
    nested = [column.name for column in columns if column.name in found and column.type == "json"]
    if nested:
        raise noted(
            SchemaError(
                f"column {', '.join(nested)} of the key is nested",
                hint='Take its fields as columns: select("window.start", ...).',
            )
        )
    return Layout(columns, found, _spelled(order_by, names, "order_by"), deletes)


def _spelled(wanted: Sequence[str], names: Sequence[str], what: str) -> tuple[str, ...]:
    """Names as the schema has them."""
    spelling = {each.lower(): each for each in names}
    missing = [each for each in wanted if each.lower() not in spelling]
    if missing:
        raise noted(
            SchemaError(
                f"the rows have no column {', '.join(missing)}, which {what} names",
                hint=f"There are {', '.join(names)}.",
            )
        )
    return tuple(spelling[each.lower()] for each in wanted)


def _column(name: str, kind: DataType) -> Column:
    from pyspark.sql.types import DecimalType

    text = kind.simpleString().partition("(")[0].partition("<")[0]
    if isinstance(kind, DecimalType):
        return Column(name, "decimal", kind.precision, kind.scale)
    if text in ("varchar", "char"):
        text = "string"
    if text in _NESTED:
        return Column(name, "json")
    if text not in PLAIN:
        raise noted(
            SchemaError(
                f"column {name} is {kind.simpleString()}, which no table can hold",
                hint=f'Cast it, for example col("{name}").cast("string").',
            )
        )
    return Column(name, text)


def collect(df: DataFrame, layout: Layout, target: str) -> pa.Table:
    """The rows, each key once, with ``_deleted``.

    Raises:
        RowError: a key is null, or more than one row has it and nothing says which is the last.
        SinkError: the batch is larger than the driver may take.
    """
    import pyarrow as pa

    rows = _fetched(_selected(df, layout), target)
    for column in layout.key:
        if rows.column(column).null_count:
            raise noted(
                RowError(
                    f"{rows.column(column).null_count} of {rows.num_rows} rows for {target} have "
                    f"no {column}, which is of the key",
                    hint=f'Leave them out: filter("{column} IS NOT NULL").',
                )
            )
    if not layout.deletes:
        rows = rows.append_column(DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
    return _each_key_once(rows, layout, target)


def _selected(df: DataFrame, layout: Layout) -> DataFrame:
    """The table's columns and ``_deleted``; what is nested as JSON."""
    from pyspark.sql import functions as f

    def plain(column: Column) -> Any:
        found = f.col(escaped(column.name))
        return f.to_json(found).alias(column.name) if column.type == "json" else found

    chosen = [plain(column) for column in layout.columns]
    if layout.deletes:
        chosen.append(f.coalesce(f.col(DELETED), f.lit(False)).alias(DELETED))
    return df.select(*chosen)


def _fetched(df: DataFrame, target: str) -> pa.Table:
    try:
        return df.toArrow()
    except Exception as error:
        if "maxResultSize" not in str(error):
            raise
        raise noted(
            SinkError(
                f"a batch for {target} is larger than the driver may take",
                hint="Give the streams and tables a lower max_offsets_per_trigger "
                "(maxOffsetsPerTrigger of a source), or raise spark.driver.maxResultSize.",
            )
        ) from error


def _each_key_once(rows: pa.Table, layout: Layout, target: str) -> pa.Table:
    import pyarrow as pa

    key = list(layout.key)
    if rows.num_rows < 2:
        return rows
    if layout.order_by:
        rows = _in_order(rows, layout.order_by)
    numbered = rows.select(key).append_column(_NUMBER, pa.array(range(rows.num_rows)))
    last = numbered.group_by(key, use_threads=False).aggregate([(_NUMBER, "max")])
    if last.num_rows == rows.num_rows:
        return rows
    if not layout.order_by:
        raise _twice(rows, numbered, layout, target)
    return rows.take(last.column(f"{_NUMBER}_max").sort())


def _in_order(rows: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """Rows in ascending order, those without a value before all others."""
    import pyarrow.compute as pc

    order = [(each, "ascending", "at_start") for each in order_by]
    return rows.take(pc.sort_indices(rows, sort_keys=order))


def _twice(rows: pa.Table, numbered: pa.Table, layout: Layout, target: str) -> RowError:
    import pyarrow.compute as pc

    counts = numbered.group_by(list(layout.key)).aggregate([(_NUMBER, "count")])
    found = counts.filter(pc.greater(counts.column(f"{_NUMBER}_count"), 1)).slice(0, 1)
    (first,) = found.select(list(layout.key)).to_pylist()
    text = ", ".join(f"{column}={value!r}" for column, value in first.items())
    return noted(
        RowError(
            f"more than one row of a batch for {target} has the key {text}",
            hint="Aggregate by the key, or say with order_by which row is the last.",
        )
    )
