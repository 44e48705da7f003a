"""Convert the records of a changelog to rows of its table, in Spark's expressions.

A row's key is the record's key, as ``TopicSink`` and ``ChangelogSink`` write it: one column as its
text, several as a JSON object. A value is a JSON object of the table's columns; null deletes. Must
not know: queries, joins, caches.

The expressions, with their error messages, are part of the fingerprint of queries that aggregate
joined rows. A change of a message here would make Spark's checkpoints of such queries unusable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.spark.base.ddl import Column as SchemaColumn
from tidemill.spark.base.ddl import columns, struct
from tidemill.spark.base.json_text import row_text
from tidemill.spark.errors import JoinError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CORRUPT = "__tidemill_corrupt"
_NOT_A_ROW = " is " + "no JSON object of the table's schema: "
"""This text is in fingerprints of existing checkpoints, so it must not be changed."""


class TableSchema:
    """The columns of a table, and which of them are its key.

    Args:
        schema: all columns, as DDL.
        key: names of the columns of the key.

    Attributes:
        ddl: the schema as it was declared.
        key: the columns of the key, in the order of the record's key.
        values: the other columns.

    Raises:
        SchemaError: the schema is malformed.
        JoinError: the key names a column that the schema does not have.
    """

    def __init__(self, schema: str, key: Sequence[str]) -> None:
        self.ddl = schema
        self._by_name: Mapping[str, SchemaColumn] = {c.name.lower(): c for c in columns(schema)}
        missing = [name for name in key if name.lower() not in self._by_name]
        if missing or not key:
            raise JoinError(
                f"the key {', '.join(key) or '()'} does not name columns of the table",
                hint=f"Its columns are {', '.join(c.name for c in self._by_name.values())}.",
            )
        self.key = tuple(self._by_name[name.lower()] for name in key)
        taken = {column.name for column in self.key}
        self.values = tuple(c for c in self._by_name.values() if c.name not in taken)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in the order of the schema."""
        return tuple(column.name for column in self._by_name.values())

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(column.name for column in self.key)

    def column(self, name: str) -> SchemaColumn | None:
        """Return the column of a name, which is case-insensitive; None if it does not exist."""
        return self._by_name.get(name.lower())

    def check_valid_from(self, name: str | None) -> None:
        """Check the column with the time from which a version of a row is valid.

        Args:
            name: the column; None for the record's timestamp.

        Raises:
            JoinError: it is not a TIMESTAMP column of the table.
        """
        if name is None:
            return
        column = self.column(name)
        if column is None or column.type != "TIMESTAMP" or column.name != name:
            raise JoinError(
                f"valid_from {name} is not a TIMESTAMP column of the table",
                hint=f"Its columns are {', '.join(self.names)}.",
            )

    def key_text(self, parts: Sequence[Column]) -> Column:
        """Return a record's key as text, made of values for the key's columns.

        Args:
            parts: a value for each column of the key, in its order. If one is null, so is the
                result.
        """
        from pyspark.sql import functions as f
        from pyspark.sql import types as t

        made = [
            part.cast(column.type).alias(column.name)
            for part, column in zip(parts, self.key, strict=True)
        ]
        if len(made) == 1:
            return made[0].cast("string")
        whole = made[0].isNotNull()
        for part in made[1:]:
            whole &= part.isNotNull()
        # Of the types, only timestamps matter to how a row becomes text.
        kinds = [
            t.TimestampType() if column.type.startswith("TIMESTAMP") else t.StringType()
            for column in self.key
        ]
        return f.when(whole, row_text(made, kinds))

    def key_columns(self, key: Column, place: Column) -> list[Column]:
        """Return the key's columns, parsed from a record's key. An invalid key fails the query.

        Args:
            key: the record's key, as bytes or text.
            place: a text for the error message that says where the record is.
        """
        from pyspark.sql import functions as f

        text = key.cast("string")
        if len(self.key) == 1:
            parts = {self.key[0].name: text.try_cast(self.key[0].type)}
        else:
            fields = f.from_json(text, ", ".join(f"`{c.name}` {c.type}" for c in self.key))
            parts = {c.name: fields.getField(c.name) for c in self.key}
        found = []
        for column in self.key:
            said = f"has a key without {column.name} ({column.type}): "
            error = f.concat(place, f.lit(f" {said}"), f.coalesce(text, f.lit("null")))
            part = parts[column.name]
            checked = f.when(part.isNull(), f.raise_error(error).cast(column.type)).otherwise(part)
            found.append(checked.alias(column.name))
        return found

    def with_row(self, df: DataFrame, name: str, value: Column, place: Column) -> DataFrame:
        """Add a column with a record's value as a struct of all columns, or null for null.

        A value that is not a JSON object of the schema fails the query, even if none of its
        columns is used.

        Args:
            df: the records.
            name: the name of the new column.
            value: the record's value, a column of ``df``, as bytes or text.
            place: a text for the error message that says where the record is.
        """
        from pyspark.sql import functions as f

        # Spark removes unused columns together with their checks, but it never removes a filter.
        # The opaque condition keeps Spark from parsing a second time for the filter.
        opaque = f.when(f.spark_partition_id() >= 0, value)
        read = df.withColumn(name, self._row(opaque, place))
        return read.filter(f.col(name).isNotNull() | value.isNull())

    def _row(self, value: Column, place: Column) -> Column:
        from pyspark.sql import functions as f

        text = value.cast("string")
        parsed = f.from_json(
            text,
            struct(self.ddl, f"{_CORRUPT} STRING"),
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
        )
        is_good = f.ltrim(text).startswith("{") & parsed.getField(_CORRUPT).isNull()
        error = f.concat(place, f.lit(_NOT_A_ROW), f.substring(text, 1, 200))
        kind = f"struct<{', '.join(f'`{c.name}`: {c.type}' for c in self._by_name.values())}>"
        row = f.struct(*[parsed.getField(name).alias(name) for name in self.names])
        bad = f.raise_error(error).cast(kind)
        return (
            f.when(text.isNull(), f.lit(None))
            .when(f.coalesce(is_good, f.lit(False)), row)
            .otherwise(bad)
        )


def record_place(topic: str) -> Column:
    """Return a text that says where a record of the source is, for error messages."""
    from pyspark.sql import functions as f

    return f.concat(
        f.lit(f"table {topic}: the record at offset "),
        f.col("offset").cast("string"),
        f.lit(" of partition "),
        f.col("partition").cast("string"),
    )
