"""Turns the values of records into typed Arrow columns: JSON today, other formats later.

``make_parser`` is the door. Must not know: Spark, Kafka clients, pipelines.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemill.reading.parse.contract import Parsed, Parser
from tidemill.reading.parse.json_parser import JsonParser
from tidemill.reading.parse.schema import ParsedColumn, ParseSchema
from tidemill.spark.errors import OptionError
from tidemill.spark.source.parse.debezium import DebeziumParser

__all__ = [
    "FORMATS",
    "ParseSchema",
    "Parsed",
    "ParsedColumn",
    "Parser",
    "make_parser",
]


FORMATS = ("json", "debezium")
"""Formats of values."""


def make_parser(
    schema: ParseSchema, value_format: str = "json", *, only: Collection[str] | None = None
) -> Parser:
    """Return a parser of a format.

    Args:
        only: Columns to build, by name; None for all. A value is still checked by all columns of
            the schema. The array of a column that is not built is all null.

    Raises:
        OptionError: The format is unknown, or ``only`` has a name that is not in the schema.
    """
    if value_format not in FORMATS:
        known = ", ".join(FORMATS)
        raise OptionError(
            f"unknown format of values {value_format!r}", hint=f"Use one of: {known}."
        )
    if value_format == "debezium":
        return DebeziumParser(schema, make_parser(schema, only=only))
    names = {column.name for column in schema.columns}
    unknown = sorted(set(only or ()) - names)
    if unknown:
        raise OptionError(f"the schema has no column {', '.join(unknown)}")
    built = tuple(only is None or column.name in only for column in schema.columns)
    return JsonParser(schema, built)
