"""Records of a changelog as rows of its table: the key's columns, and the value's.

A row's key is the record's key, as ``TopicSink`` and ``ChangelogSink`` write it: one column as its
text, several as a JSON object. A value is a JSON object of the table's columns; null deletes. Must
not know: queries, joins, caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.errors import JoinError
from tidemill.spark.ddl import Column as SchemaColumn
from tidemill.spark.ddl import columns, struct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CORRUPT = "__tidemill_corrupt"


class TableSchema:
    """A table's columns, and which of them are its key.

    Attributes:
        ddl: the schema as it was declared.
        key: the key's columns, in the order of the record's key.
        values: the others.

    Raises:
        SchemaError: the schema can't be read.
        JoinError: the key names no columns of it.
    """

    def __init__(self, schema: str, key: Sequence[str]) -> None:
        self.ddl = schema
        self._by_name: Mapping[str, SchemaColumn] = {c.name.lower(): c for c in columns(schema)}
        missing = [name for name in key if name.lower() not in self._by_name]
        if missing or not key:
            raise JoinError(
                f"the key {', '.join(key) or '()'} names no columns of the table",
                hint=f"Its columns are {', '.join(c.name for c in self._by_name.values())}.",
            )
        self.key = tuple(self._by_name[name.lower()] for name in key)
        taken = {column.name for column in self.key}
        self.values = tuple(c for c in self._by_name.values() if c.name not in taken)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in the order of the schema."""
        return tuple(column.name for column in self._by_name.values())

    @property
    def key_names(self) -> tuple[str, ...]:
        """Columns of the key."""
        return tuple(column.name for column in self.key)

    def column(self, name: str) -> SchemaColumn | None:
        """A column, by its name in any case."""
        return self._by_name.get(name.lower())

    def key_text(self, parts: Sequence[Column]) -> Column:
        """A record's key (text) made of values for the key's columns; null where one is null."""
        from pyspark.sql import functions as f

        made = [
            part.cast(column.type).alias(column.name)
            for part, column in zip(parts, self.key, strict=True)
        ]
        if len(made) == 1:
            return made[0].cast("string")
        whole = made[0].isNotNull()
        for part in made[1:]:
            whole &= part.isNotNull()
        return f.when(whole, f.to_json(f.struct(*made)))

    def key_columns(self, key: Column, place: Column) -> list[Column]:
        """The key's columns, out of a record's key; what is no key fails the query.

        Args:
            key: the record's key, as bytes or text.
            place: text that says where the record is.
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
        """Rows with a record's value beside them: a struct of all columns, null for null.

        What is no JSON object of the schema fails the query, whether its columns are used or not.

        Args:
            name: of the column that is added.
            value: the record's value, a column of ``df``, as bytes or text.
            place: text that says where the record is.
        """
        from pyspark.sql import functions as f

        # Spark leaves out what nobody asks for, the check, too; but no filter. And it would parse
        # once for the filter and once for the columns, if it knew that both come out alike.
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
        error = f.concat(
            place, f.lit(" is no JSON object of the table's schema: "), f.substring(text, 1, 200)
        )
        kind = f"struct<{', '.join(f'`{c.name}`: {c.type}' for c in self._by_name.values())}>"
        row = f.struct(*[parsed.getField(name).alias(name) for name in self.names])
        bad = f.raise_error(error).cast(kind)
        return (
            f.when(text.isNull(), f.lit(None))
            .when(f.coalesce(is_good, f.lit(False)), row)
            .otherwise(bad)
        )


def place(topic: str) -> Column:
    """Where a record of the source is, in words."""
    from pyspark.sql import functions as f

    return f.concat(
        f.lit(f"table {topic}: the record at offset "),
        f.col("offset").cast("string"),
        f.lit(" of partition "),
        f.col("partition").cast("string"),
    )
