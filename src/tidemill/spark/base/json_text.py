"""Writes rows as JSON text in Spark's expressions, without a loss of microseconds.

Spark's own ``to_json`` cuts timestamps to milliseconds, so that two keys could become the same
text. Must not know: sinks, tables, pipelines.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tidemill.spark.base.ddl import escaped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def with_json_text(df: DataFrame, names: Collection[str]) -> DataFrame:
    """Replace columns by their JSON text; see ``row_text``.

    Args:
        names: the columns, which are structs, arrays or maps.
    """
    from pyspark.sql import functions as f

    texts = {}
    for each in df.schema.fields:
        if each.name in names:
            column = f.col(escaped(each.name))
            texts[each.name] = _text(column, [(column, each.dataType)])
    return df.withColumns(texts) if texts else df


def row_text(columns: Sequence[Column], kinds: Sequence[DataType]) -> Column:
    """Return columns as the text of a JSON object.

    The timestamps of a row have six digits of a second if one of them has microseconds. If none
    has, they have three as in ``to_json``: the keys of rows that earlier releases wrote stay the
    same.

    Args:
        columns: the columns, with the names of the object's fields.
    """
    from pyspark.sql import functions as f

    return _text(f.struct(*columns), list(zip(columns, kinds, strict=True)))


def _text(whole: Column, parts: Sequence[tuple[Column, DataType]]) -> Column:
    """Return a value as text; ``parts`` are all columns that are in it."""
    from pyspark.sql import functions as f

    short = f.to_json(whole)
    fine = [_has_microseconds(part, kind) for part, kind in parts if _has_timestamps(kind)]
    if not fine:
        return short
    is_fine = functools.reduce(operator.or_, fine)
    return f.when(is_fine, f.to_json(whole, _MICROSECONDS)).otherwise(short)


def _has_timestamps(kind: DataType) -> bool:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return any(_has_timestamps(each.dataType) for each in kind.fields)
    if isinstance(kind, t.MapType):
        return _has_timestamps(kind.valueType)
    if isinstance(kind, t.ArrayType):
        return _has_timestamps(kind.elementType)
    return isinstance(kind, (t.TimestampType, t.TimestampNTZType))


def _has_microseconds(value: Column, kind: DataType) -> Column:
    """Return whether a value has a timestamp that three digits would cut; null counts as false."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        fields = [each for each in kind.fields if _has_timestamps(each.dataType)]
        checks = [_has_microseconds(value.getField(each.name), each.dataType) for each in fields]
        return functools.reduce(operator.or_, checks)
    if isinstance(kind, t.MapType):
        return _has_microseconds(f.map_values(value), t.ArrayType(kind.valueType))
    if isinstance(kind, t.ArrayType):
        element = kind.elementType
        return f.coalesce(
            f.exists(value, lambda each: _has_microseconds(each, element)), f.lit(False)
        )
    # A time without a zone is cast: all zones of today differ by whole seconds.
    return f.coalesce(f.unix_micros(value.cast("timestamp")) % 1000 != 0, f.lit(False))
