"""Parses schemas in DDL (``"id BIGINT, at TIMESTAMP"``) without Spark.

Must not know: Spark, pipelines.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp, parse_one
from sqlglot.errors import ParseError, TokenError

from tidemill.spark.errors import SchemaError

# sqlglot logs a warning for text that it can't parse. Here that is an error.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a schema.

    Attributes:
        type: Spark's name of the type: ``TIMESTAMP``, ``ARRAY<STRING>``.
    """

    name: str
    type: str


def columns(ddl: str) -> tuple[Column, ...]:
    """Return the columns of a schema.

    Raises:
        SchemaError: The text is not a list of columns, a type is unknown, or a name of a column or
            of a field occurs twice. Upper and lower case are the same.
    """
    if not ddl.strip():
        raise SchemaError("the schema has no columns", hint=_HINT)
    made = _fields(ddl)
    if made is None:
        made = _columns(ddl)
    _check_names([column.name for column in made], "")
    return tuple(made)


def same_names(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, if upper and lower case are the same."""
    counts = Counter(name.lower() for name in names)
    return [name for name in names if counts[name.lower()] > 1]


def _check_names(names: Sequence[str], column: str) -> None:
    """Check the names of columns, or of the fields of a struct in ``column``."""
    twice = same_names(names)
    if not twice:
        return
    where, what = (
        (f"column {column} of the schema", "field") if column else ("the schema", "column")
    )
    if len({name.lower() for name in twice}) == len(set(twice)):
        raise SchemaError(f"{where} has more than one {what} {', '.join(dict.fromkeys(twice))}")
    raise SchemaError(
        f"{where} has {what}s whose names differ only in case: {', '.join(twice)}",
        hint="Spark takes such names for the same. Leave one of them out.",
    )


def _check_fields(column: str, kind: exp.Expr) -> None:
    """Check the names of the fields of all structs in a column's type."""
    for each in kind.find_all(exp.DataType):
        fields = [field.name for field in each.expressions if isinstance(field, exp.ColumnDef)]
        _check_names(fields, column)


def escaped(name: str) -> str:
    """Return a column's name quoted for Spark. Any name is allowed: ``max((delay * 1.5))``."""
    return "`" + name.replace("`", "``") + "`"


def struct(ddl: str, *more: str) -> str:
    """Return a schema as the type of a row.

    The schema may end with a comment. It may have colons between names and types, which Spark
    accepts in a type only.
    """
    fields = ", ".join((f"{ddl}\n", *more))
    return f"STRUCT<{fields}>"


def _columns(ddl: str) -> list[Column]:
    """Parse a schema as the columns of CREATE TABLE."""
    try:
        table = parse_one(f"CREATE TABLE t ({ddl}\n)", dialect="spark")
    except (ParseError, TokenError) as error:
        found = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        near = f" near {found['highlight']!r}" if found.get("highlight") else ""
        raise SchemaError(f"can't parse the schema {ddl!r}{near}", hint=_HINT) from None
    schema = table.this if isinstance(table, exp.Create) else None
    made = []
    for each in schema.expressions if isinstance(schema, exp.Schema) else ():
        kind = each.kind if isinstance(each, exp.ColumnDef) else None
        if kind is None:
            raise SchemaError(f"{each.sql('spark')!r} is not a column with a type", hint=_HINT)
        _check_fields(each.name, kind)
        made.append(Column(each.name, _type_text(kind)))
    if not made:
        raise SchemaError(f"can't parse the schema {ddl!r}", hint=_HINT)
    return made


def _fields(ddl: str) -> list[Column] | None:
    """Parse a schema as the fields of STRUCT<...>, with colons; None if it has none."""
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
        _check_fields(each.name, each.kind)
        made.append(Column(each.name, _type_text(each.kind)))
    return made or None


def _type_text(kind: exp.DataType) -> str:
    """Return Spark's name of a type, without the constraints and comments of its fields."""
    for field in kind.find_all(exp.ColumnDef):
        field.set("constraints", None)
    return kind.sql("spark")


_HINT = (
    'Write columns as in CREATE TABLE: "flight STRING, delay_minutes INT, event_time TIMESTAMP".'
)
