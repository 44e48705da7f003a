"""Schemas as DDL (``"id BIGINT, at TIMESTAMP"``), read without Spark.

Must not know: Spark, pipelines.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError, TokenError

from tidemill.errors import SchemaError

# It warns of text that it can't parse; here that is an error of its own.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``type`` is Spark's name for it: ``TIMESTAMP``, ``ARRAY<STRING>``."""

    name: str
    type: str


def columns(ddl: str) -> tuple[Column, ...]:
    """The columns of a schema.

    Raises:
        SchemaError: it is not a list of columns, a type is not known, or a name is there twice.
    """
    if not ddl.strip():
        raise SchemaError("the schema has no columns", hint=_HINT)
    made = _fields(ddl)
    if made is None:
        made = _columns(ddl)
    names = [column.name.lower() for column in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"the schema names {', '.join(twice)} twice")
    return tuple(made)


def escaped(name: str) -> str:
    """A column's name as Spark takes it, whatever is in it: ``max((delay * 1.5))``, ``a.b``."""
    return "`" + name.replace("`", "``") + "`"


def struct(ddl: str, *more: str) -> str:
    """A schema as the type of a row, with more columns behind it.

    It may end with a comment, or name its columns with colons, which Spark takes in a type only.
    """
    fields = ", ".join((f"{ddl}\n", *more))
    return f"STRUCT<{fields}>"


def _columns(ddl: str) -> list[Column]:
    """As in CREATE TABLE."""
    try:
        table = parse_one(f"CREATE TABLE t ({ddl}\n)", dialect="spark")
    except (ParseError, TokenError) as error:
        found = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        near = f" near {found['highlight']!r}" if found.get("highlight") else ""
        raise SchemaError(f"the schema {ddl!r} can't be read{near}", hint=_HINT) from None
    schema = table.this if isinstance(table, exp.Create) else None
    made = []
    for each in schema.expressions if isinstance(schema, exp.Schema) else ():
        kind = each.kind if isinstance(each, exp.ColumnDef) else None
        if kind is None:
            raise SchemaError(f"{each.sql('spark')!r} is no column with a type", hint=_HINT)
        made.append(Column(each.name, kind.sql("spark")))
    if not made:
        raise SchemaError(f"the schema {ddl!r} can't be read", hint=_HINT)
    return made


def _fields(ddl: str) -> list[Column] | None:
    """As in STRUCT<...>, where Spark takes a colon between name and type; None if it is not."""
    if ":" not in ddl:
        return None
    try:
        struct = parse_one(f"CAST(x AS STRUCT<{ddl}\n>)", dialect="spark").args.get("to")
    except (ParseError, TokenError):
        return None
    made = []
    for each in struct.expressions if isinstance(struct, exp.DataType) else ():
        if not isinstance(each, exp.ColumnDef) or each.kind is None:
            return None
        made.append(Column(each.name, each.kind.sql("spark")))
    return made or None


_HINT = 'Columns as in CREATE TABLE: "flight STRING, delay_minutes INT, event_time TIMESTAMP".'
