"""The columns of a schema in Spark's DDL, for parsers of values. Must not know: formats, Spark."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.reading.parse import ISO
from tidemill.reading.parse.schema import ParsedColumn, ParseSchema


def schema_of(
    ddl: str,
    *,
    event_time: str | None = None,
    timestamp_format: str = ISO,
    skip: Collection[str] = (),
) -> ParseSchema:
    """Return the schema of a text in Spark's DDL.

    Args:
        ddl: Columns as in CREATE TABLE: ``"id BIGINT, at TIMESTAMP"``.
        event_time: Name of the column that must not be null.
        skip: Names of columns to leave out, because they don't come from the value.

    Raises:
        SchemaError: The text is malformed; a type is not supported; two names are the same or
            differ only in case; or ``event_time`` is not a column.
        OptionError: The timestamp format is unknown.
    """
    # sqlglot is imported by what parses a text: workers get a schema that is made already.
    from tidemill.spark.base.ddl import columns
    from tidemill.spark.source.parse.types import arrow_type

    made = tuple(
        ParsedColumn(column.name, column.type, arrow_type(column.name, column.type))
        for column in columns(ddl)
        if column.name not in skip
    )
    return ParseSchema(made, event_time, timestamp_format)
