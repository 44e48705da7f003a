"""Prepares a batch for a database's table: column types, the key, and each key once.

The rows come to the driver as one Arrow table, and Spark's ``spark.driver.maxResultSize`` bounds
its size. DataFrames and schemas of Spark are used through their methods only: nothing of PySpark is
imported. Must not know: any one database, Kafka, pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.base.ddl import escaped
from tidemill.spark.base.json_text import with_json_text
from tidemill.spark.errors import RowError, SchemaError, SinkError
from tidemill.spark.sinks.base import DELETED

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = "_version"
"""Column of the table with the version of a row."""
ROW_VERSIONS = 1 << 61
"""Versions of rows are smaller than this; those of batches, made by ``version``, are greater."""
PLACE = frozenset({"_partition", "_offset", "_timestamp", "_commit_time"})
"""Columns that the changes of a table have besides its own. They are not written."""
TOMBSTONES = "__deleted"
"""Suffix of the name of the table that holds the keys of deleted rows."""

PLAIN = frozenset(
    {
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
        *("string", "binary", "date", "timestamp", "timestamp_ntz"),
    }
)
"""Spark's names of the types that every database can store."""
_NESTED = frozenset({"struct", "array", "map", "variant"})
_WHOLE = frozenset({"byte", "short", "integer", "long"})
_NUMBER = "_tidemill_number"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        type: Spark's name of the type, without parameters; ``json`` for a nested type.
        precision: Number of digits of a decimal.
        scale: Number of digits after the point of a decimal.
    """

    name: str
    type: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The mapping from the rows of a batch to a table.

    Attributes:
        columns: Columns of the table without ``_version``.
        key: Names of the key columns, spelled as in ``columns``.
        order_by: Columns of the batch; of the rows with one key, the greatest values win.
        deletes: Whether the batch has the column ``_deleted``.
        versioned: Whether the batch has the column ``_version`` with the version of each row.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    deletes: bool = False
    versioned: bool = False


def layout_of(schema: Any, key: Sequence[str], order_by: Sequence[str] = ()) -> Layout:
    """Return the layout for rows of a schema.

    Args:
        key: Names of the key columns; upper and lower case are the same.
        order_by: Names of the columns that decide between rows with the same key.

    Raises:
        SchemaError: The key or ``order_by`` names a column that is not in the schema, a type can't
            be stored, or a column name is reserved or occurs twice.
    """
    names = [field.name for field in schema.fields]
    lower = [each.lower() for each in names]
    twice = sorted({each for each in lower if lower.count(each) > 1})
    if twice:
        raise SchemaError(f"there is more than one column {', '.join(twice)}")
    if not key:
        raise SchemaError("the key of the table has no columns", hint='Use key="id".')
    deletes = DELETED in lower
    if deletes and schema.fields[lower.index(DELETED)].dataType.typeName() != "boolean":
        raise SchemaError(f"column {DELETED} is not a BOOLEAN")
    versioned = VERSION in lower
    if versioned and schema.fields[lower.index(VERSION)].dataType.typeName() not in _WHOLE:
        raise SchemaError(
            f"column {VERSION} is not a whole number: it is the version of a row",
            hint="Rename your column, or use a BIGINT that grows from change to change of a key.",
        )
    left_out = {DELETED, VERSION, *(PLACE if versioned else ())}
    columns = tuple(
        _column(f.name, f.dataType) for f in schema.fields if f.name.lower() not in left_out
    )
    names = [column.name for column in columns]
    found = _spelled(key, names, "key")
    nested = [column.name for column in columns if column.name in found and column.type == "json"]
    if nested:
        raise SchemaError(
            f"key column {', '.join(nested)} has a nested type",
            hint='Select its fields as columns: select("window.start", ...).',
        )
    return Layout(columns, found, _spelled(order_by, names, "order_by"), deletes, versioned)


def _spelled(wanted: Sequence[str], names: Sequence[str], option: str) -> tuple[str, ...]:
    """Return column names in the spelling of the schema."""
    spelling = {each.lower(): each for each in names}
    missing = [each for each in wanted if each.lower() not in spelling]
    if missing:
        raise SchemaError(
            f"the rows have no column {', '.join(missing)}, which {option} names",
            hint=f"Their columns are {', '.join(names)}.",
        )
    return tuple(spelling[each.lower()] for each in wanted)


def _column(name: str, kind: Any) -> Column:
    text = kind.simpleString().partition("(")[0].partition("<")[0]
    if text == "decimal":
        return Column(name, "decimal", kind.precision, kind.scale)
    if text in ("varchar", "char"):
        text = "string"
    if text in _NESTED:
        return Column(name, "json")
    if text not in PLAIN:
        raise SchemaError(
            f"column {name} has the type {kind.simpleString()}, which no table can store",
            hint=f'Cast it, for example col("{name}").cast("string").',
        )
    return Column(name, text)


def collect(df: Any, layout: Layout, target: str) -> pa.Table:
    """Fetch the rows of a batch to the driver.

    Returns:
        An Arrow table as ``prepare`` takes it.

    Raises:
        SinkError: The batch is larger than the driver accepts.
    """
    try:
        nested = [column.name for column in layout.columns if column.type == "json"]
        rows: pa.Table = with_json_text(df, nested).selectExpr(*_expressions(layout)).toArrow()
    except Exception as error:
        if "maxResultSize" not in str(error):
            raise
        raise SinkError(
            f"a batch for {target} is larger than the driver accepts",
            hint="Give the streams and tables a lower max_offsets_per_trigger "
            "(maxOffsetsPerTrigger of a source), or raise spark.driver.maxResultSize.",
        ) from error
    return rows


def _expressions(layout: Layout) -> list[str]:
    """Return the table's columns, ``_version`` and ``_deleted`` as Spark SQL."""
    chosen = [escaped(column.name) for column in layout.columns]
    if layout.versioned:
        chosen.append(f"CAST({VERSION} AS BIGINT) AS {VERSION}")
    if layout.deletes:
        chosen.append(f"coalesce({DELETED}, false) AS {DELETED}")
    return chosen


def prepare(rows: pa.Table, layout: Layout, target: str) -> pa.Table:
    """Check the keys of a batch, and keep one row for each key.

    Args:
        rows: The columns of the layout, with nested types as JSON, and ``_deleted`` without nulls
            if the layout has it.

    Returns:
        The rows to write, always with ``_deleted``. A deletion without a version deletes whatever
        version is there.

    Raises:
        RowError: A key is null, a version is missing or out of range, or several rows have the same
            key and the layout has neither ``order_by`` nor versions.
    """
    import pyarrow as pa

    for column in layout.key:
        if rows.column(column).null_count:
            raise RowError(
                f"{rows.column(column).null_count} of {rows.num_rows} rows for {target} have "
                f"no {column}, which is part of the key",
                hint=f'Filter them out: filter("{column} IS NOT NULL").',
            )
    if not layout.deletes:
        rows = rows.append_column(DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
    if layout.versioned:
        rows = _checked_versions(rows, layout, target)
    return _each_key_once(rows, layout, target)


def _checked_versions(rows: pa.Table, layout: Layout, target: str) -> pa.Table:
    """Check the versions of rows. A deletion without one gets the last one of its key before it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    versions = rows.column(VERSION)
    least, greatest = pc.min_max(versions).as_py().values()
    if least is not None and (least < 0 or greatest >= ROW_VERSIONS):
        raise RowError(f"a row for {target} has the version {least if least < 0 else greatest}")
    if not versions.null_count:
        return rows
    if pc.any(pc.and_(pc.is_null(versions), pc.invert(rows.column(DELETED)))).as_py():
        raise RowError(
            f"a row for {target} has no {VERSION}",
            hint="Only a row that is deleted may have none.",
        )
    keys = list(zip(*(rows.column(name).to_pylist() for name in layout.key), strict=True))
    last: dict[tuple[Any, ...], int | None] = {}
    filled = []
    for key, version in zip(keys, versions.to_pylist(), strict=True):
        last[key] = version if version is not None else last.get(key)
        filled.append(last[key])
    place = rows.schema.get_field_index(VERSION)
    return rows.set_column(place, VERSION, pa.array(filled, pa.int64()))


def _each_key_once(rows: pa.Table, layout: Layout, target: str) -> pa.Table:
    import pyarrow as pa

    key = list(layout.key)
    if rows.num_rows < 2:
        return rows
    order = layout.order_by or ((VERSION,) if layout.versioned else ())
    if order:
        rows = _in_order(rows, order)
    numbered = rows.select(key).append_column(_NUMBER, pa.array(range(rows.num_rows)))
    last = numbered.group_by(key, use_threads=False).aggregate([(_NUMBER, "max")])
    if last.num_rows == rows.num_rows:
        return rows
    if not order:
        raise _duplicate_key(numbered, layout, target)
    return rows.take(last.column(f"{_NUMBER}_max").sort())


def _in_order(rows: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """Return rows in ascending order; rows with a null come first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # The place of nulls can be given for each key in new versions of PyArrow only.
    keys = {}
    for index, name in enumerate(order_by):
        column = rows.column(name)
        keys[f"{index} has value"] = pc.is_valid(column).cast(pa.int8())
        keys[f"{index} value"] = column
    order = [(each, "ascending") for each in keys]
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=order))


def _duplicate_key(numbered: pa.Table, layout: Layout, target: str) -> RowError:
    """Return the error for the first key that occurs more than once."""
    import pyarrow.compute as pc

    counts = numbered.group_by(list(layout.key)).aggregate([(_NUMBER, "count")])
    found = counts.filter(pc.greater(counts.column(f"{_NUMBER}_count"), 1)).slice(0, 1)
    (first,) = found.select(list(layout.key)).to_pylist()
    text = ", ".join(f"{column}={value!r}" for column, value in first.items())
    return RowError(
        f"more than one row of a batch for {target} has the key {text}",
        hint="Aggregate by the key, or name with order_by the columns that decide which row "
        "is the last.",
    )
