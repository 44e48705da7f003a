"""Turns rows into records: the columns ``key`` and ``value`` that the topic sinks write.

Must not know: Kafka clients, pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.spark.base.ddl import escaped
from tidemill.spark.base.json_text import row_text
from tidemill.spark.sinks.base import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NO_KEY = "a row has no {}, which is part of the key"
_NO_KEY_TEXT = re.compile(r"\[USER_RAISED_EXCEPTION\] " + _NO_KEY.format("(.+?)"))
"""With the condition, because Spark also prints the query's plan, which has the bare text."""
_RECORD_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


def records(df: DataFrame, key: tuple[str, ...], *, tombstones: bool = False) -> DataFrame:
    """Return rows as records with the columns ``key`` and ``value``.

    A result is returned unchanged if it already has the form of a record: it has ``value``, no
    other columns than ``key`` and ``headers``, the types of Kafka's records, and no key is asked
    for. Any other result becomes JSON. So no column of the user's is lost or gets a second
    meaning: Kafka's sink would not write a column ``timestamp``, and would take a column
    ``partition`` for the partition of the record.

    Args:
        key: Columns of the record's key.
        tombstones: Whether the records are for a changelog. Then a row whose ``_deleted`` is true
            has a null value, and a row with a null in its key fails the query.
    """
    from pyspark.sql import functions as f

    if not key and _is_record(df.dtypes):
        return df
    deleted = next((c for c in df.columns if tombstones and c.lower() == DELETED), None)
    kinds = {each.name: each.dataType for each in df.schema.fields}
    written = [name for name in df.columns if name != deleted]
    value: Column = row_text([_column(name) for name in written], [kinds[n] for n in written])
    if deleted is not None:
        value = f.when(_column(deleted), f.lit(None)).otherwise(value)
    if not key:
        return df.select(value.alias("value"))
    parts = [_required(name) if tombstones else _column(name) for name in key]
    if len(parts) == 1:
        return df.select(parts[0].cast("string").alias("key"), value.alias("value"))
    types = {name.lower(): kind for name, kind in kinds.items()}
    made = row_text(parts, [types[name.lower()] for name in key])
    return df.select(made.alias("key"), value.alias("value"))


def missing_key_column(text: str) -> str | None:
    """Return the key column that a failed query names in its error, or None."""
    found = _NO_KEY_TEXT.search(text)
    return None if found is None else found[1]


def _is_record(columns: Sequence[tuple[str, str]]) -> bool:
    """Whether columns, as (name, type), already have the form of a record."""
    names = [name for name, _ in columns]
    return (
        "value" in names
        and len(set(names)) == len(names)
        and all(kind in _RECORD_TYPES.get(name, ()) for name, kind in columns)
    )


def _column(name: str) -> Column:
    """Return a column of any name, also of one that Spark generated: ``max((delay * 1.5))``."""
    from pyspark.sql import functions as f

    return f.col(escaped(name))


def _required(name: str) -> Column:
    """Return a key column of a changelog; a null in it fails the query."""
    from pyspark.sql import functions as f

    error = f.raise_error(f.lit(_NO_KEY.format(name)))
    return f.coalesce(_column(name), error).alias(name)
