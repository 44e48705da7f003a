"""Describe the columns and the key of a table, and write keys as its records have them.

A row's key is the record's key, as ``TopicSink`` and ``ChangelogSink`` write it: one column as its
text, several as a JSON object. Must not know: queries, joins, caches, how records are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from tidemill.spark.base.ddl import Column as SchemaColumn
from tidemill.spark.base.ddl import columns, escaped
from tidemill.spark.base.json_text import row_text
from tidemill.spark.base.options import ISO
from tidemill.spark.errors import JoinError
from tidemill.spark.source.parse.ddl_schema import schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column

    from tidemill.spark.source.parse import ParseSchema


class TableSchema:
    """The columns of a table, and which of them are its key.

    Args:
        schema: all columns, as DDL.
        timestamp_format: what a number in a TIMESTAMP column means, as for streams.

    Attributes:
        ddl: the schema as it was declared.
        timestamp_format: what a number in a TIMESTAMP column means.
        key: the columns of the key, in the order of the record's key.
        values: the other columns.

    Raises:
        SchemaError: the schema is malformed.
        JoinError: the key names a column that the schema does not have.
    """

    def __init__(self, schema: str, key: Sequence[str], timestamp_format: str = ISO) -> None:
        self.ddl = schema
        self.timestamp_format = timestamp_format
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

    @property
    def columns(self) -> str:
        """All columns as DDL that Spark accepts anywhere."""
        return ", ".join(f"{escaped(c.name)} {c.type}" for c in self._by_name.values())

    @property
    def row_type(self) -> str:
        """The type of a row, a struct of all columns."""
        fields = (f"{escaped(c.name)}: {c.type}" for c in self._by_name.values())
        return f"struct<{', '.join(fields)}>"

    @cached_property
    def parsed(self) -> ParseSchema:
        """The columns that values are parsed to."""
        return self._parsed(list(self._by_name.values()))

    @cached_property
    def parsed_key(self) -> ParseSchema:
        """The columns that keys are parsed to, in the order of the record's key."""
        return self._parsed(self.key)

    def _parsed(self, columns: Sequence[SchemaColumn]) -> ParseSchema:
        # Not earlier: it imports Arrow, which takes a while.

        ddl = ", ".join(f"{escaped(c.name)} {c.type}" for c in columns)
        return schema_of(ddl, timestamp_format=self.timestamp_format)

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
