"""Decides the columns of a query on the data source, and what its tasks read for them.

It parses no DDL: the process that plans a query would have to import a parser for that. Must not
know: pipelines, how records are read and parsed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.spark.datasource.readers import Reading
from tidemill.spark.errors import OptionError
from tidemill.spark.source.planning.options import SourceOptions
from tidemill.spark.source.planning.parsing import REASON

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
"""Columns of a topic, as DDL."""
HEADERS_COLUMN = "headers array<struct<key: string, value: binary>>"


def columns_of(options: SourceOptions) -> str:
    """Return the columns of a query for which the user gave no schema, as DDL."""
    parsing = options.parsing
    if parsing is None or parsing.refused:
        return _fixed_columns(options)
    if not parsing.schema:
        raise OptionError(
            f"option value.format {parsing.format} needs a schema",
            hint="Call .schema(), or set the option value.schema.",
        )
    return parsing.schema


def reading_of(options: SourceOptions, schema: StructType) -> Reading:
    """Return what the tasks of a query read.

    Args:
        schema: The columns that Spark expects.
    """
    parsing = options.parsing
    if parsing is None or parsing.refused:
        _check_fixed(options, schema)
    rows, needs_headers = None, options.include_headers
    if parsing is not None:
        if not parsing.refused:
            _check_nullable(schema)
            for each in schema.fields:
                _check_type(each.name, each.dataType, 1)
            if options.include_headers:
                raise OptionError(
                    "option includeHeaders adds no column to parsed values",
                    hint="Add _headers ARRAY<STRUCT<key: STRING, value: BINARY>> to the schema.",
                )
            needs_headers = "_headers" in schema.fieldNames()
        rows = parsing if parsing.refused else replace(parsing, schema=ddl_of(schema))
    return Reading(options, rows, needs_headers)


def ddl_of(schema: StructType) -> str:
    """Return a schema as DDL, with quoted names. PySpark's own way needs a session."""
    return ", ".join(f"{_quoted(each.name)} {_type_text(each.dataType)}" for each in schema.fields)


def _fixed_columns(options: SourceOptions) -> str:
    headers = [HEADERS_COLUMN] if options.include_headers else []
    reason = [f"{REASON} string"] if options.parsing is not None else []
    return ", ".join([COLUMNS, *headers, *reason])


def _check_fixed(options: SourceOptions, schema: StructType) -> None:
    # Compare text, because parsing DDL needs a session and this process has none.
    text = _fixed_columns(options)
    fixed, given = text.replace(": ", ":"), schema.simpleString()
    if given == f"struct<{fixed.replace(', ', ',').replace(' ', ':')}>":
        return
    if options.parsing is not None:
        raise OptionError(
            f"the columns of refused records are fixed ({text}), not {given}",
            hint="Leave .schema() out, and set the option value.schema.",
        )
    raise OptionError(
        f"the columns are fixed ({text}), not {given}",
        hint="Set the option value.format to json to parse the values into these columns; or leave "
        ".schema() out, and parse the column value.",
    )


def _check_nullable(schema: StructType) -> None:
    """Check that each column and field may be null: any field of a value may be missing."""
    flags = ('"nullable":false', '"containsNull":false', '"valueContainsNull":false')
    if any(flag in schema.json() for flag in flags):
        raise OptionError(
            "the schema has columns or fields that can't be null, and any field of a value may be "
            "missing",
            hint="Remove NOT NULL from the schema. A record without its event.time is refused.",
        )


_PARSED = frozenset(
    (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"),
        *("binary", "date", "timestamp", "timestamp_ntz"),
    )
)
"""Simple types that values are parsed to. Those of ``source.parse.types``, which a process that
plans a query must not import."""
_MAX_DEPTH = 50


def _check_type(name: str, kind: DataType, depth: int) -> None:
    """Check that values can be parsed to a type, before a task finds that they can't."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if depth > _MAX_DEPTH:
        raise _unsupported(name, f"are types nested more than {_MAX_DEPTH} deep")
    if isinstance(kind, StructType) and kind.fields:
        for each in kind.fields:
            _check_type(f"{name}.{each.name}", each.dataType, depth + 1)
    elif isinstance(kind, ArrayType):
        _check_type(name, kind.elementType, depth + 1)
    elif isinstance(kind, MapType):
        if kind.keyType.simpleString() != "string":
            raise _unsupported(name, "is a map whose keys are not STRING")
        _check_type(name, kind.valueType, depth + 1)
    elif not isinstance(kind, DecimalType) and kind.simpleString() not in _PARSED:
        raise _unsupported(name, f"has the type {kind.simpleString()}")


def _unsupported(name: str, what: str) -> OptionError:
    return OptionError(
        f"values can't be parsed: column {name} {what}",
        hint="Use BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, "
        "BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, STRUCT<...>, ARRAY<...> or MAP<STRING, ...>.",
    )


def _type_text(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        fields = (f"{_quoted(f.name)}: {_type_text(f.dataType)}" for f in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_text(kind.keyType)}, {_type_text(kind.valueType)}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
