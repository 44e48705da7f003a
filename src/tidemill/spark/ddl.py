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
    """A column; ``type`` is Spark's name for it, in capitals: ``TIMESTAMP``, ``ARRAY<STRING>``."""

    name: str
    type: str


def columns(ddl: str) -> tuple[Column, ...]:
    """The columns of a schema.

    Raises:
        SchemaError: it is not a list of columns, a type is not known, or a name is there twice.
    """
    if not ddl.strip():
        raise SchemaError("the schema has no columns", hint=_HINT)
    try:
        # As Spark: a colon may stand between name and type.
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
        made.append(Column(each.name, kind.sql("spark").upper()))
    if not made:
        raise SchemaError(f"the schema {ddl!r} can't be read", hint=_HINT)
    names = [column.name.lower() for column in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"the schema names {', '.join(twice)} twice")
    return tuple(made)


_HINT = 'Columns as in CREATE TABLE: "flight STRING, delay_minutes INT, event_time TIMESTAMP".'
