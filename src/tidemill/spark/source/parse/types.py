"""Maps Spark's types to Arrow types, from their names in DDL. Must not know: formats, Spark."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import ParseError, TokenError

from tidemill.spark.errors import SchemaError

MAX_DEPTH = 50
"""Most types inside of each other in one column. Parsers recurse that deep."""
MAX_PRECISION = 38

_SIMPLE: dict[object, pa.DataType] = {
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.BINARY: pa.binary(),
    exp.DataType.Type.DATE: pa.date32(),
    exp.DataType.Type.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    exp.DataType.Type.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    exp.DataType.Type.TIMESTAMPLTZ: pa.timestamp("us", tz="UTC"),
    exp.DataType.Type.TIMESTAMPNTZ: pa.timestamp("us"),
}
_HINT = (
    "Use BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, "
    "DATE, TIMESTAMP, TIMESTAMP_NTZ, STRUCT<...>, ARRAY<...> or MAP<STRING, ...>."
)


def arrow_type(column: str, ddl: str) -> pa.DataType:
    """Return the Arrow type that Spark expects for a type."""
    try:
        parsed = parse_one(f"CAST(x AS {ddl})", dialect="spark").args.get("to")
    except (ParseError, TokenError, RecursionError):
        parsed = None
    if not isinstance(parsed, exp.DataType):
        raise SchemaError(f"column {column}: the type {ddl} is not supported", hint=_HINT)
    return _arrow(column, parsed, 1)


def _arrow(column: str, kind: exp.DataType, depth: int) -> pa.DataType:
    if depth > MAX_DEPTH:
        raise SchemaError(f"column {column}: types are nested more than {MAX_DEPTH} deep")
    if kind.this in _SIMPLE:
        return _SIMPLE[kind.this]
    if kind.this is exp.DataType.Type.DECIMAL:
        return _decimal(column, kind)
    if kind.this is exp.DataType.Type.ARRAY and len(kind.expressions) == 1:
        return pa.list_(pa.field("element", _arrow(column, kind.expressions[0], depth + 1)))
    if kind.this is exp.DataType.Type.MAP and len(kind.expressions) == 2:
        key, value = kind.expressions
        if key.this is not exp.DataType.Type.TEXT:
            raise SchemaError(
                f"column {column}: the keys of a map are {key.sql('spark')}",
                hint="Names in a JSON object are text: use MAP<STRING, ...>.",
            )
        return pa.map_(pa.string(), _arrow(column, value, depth + 1))
    if kind.this is exp.DataType.Type.STRUCT and kind.expressions:
        return _struct(column, kind, depth)
    raise SchemaError(f"column {column}: the type {kind.sql('spark')} is not supported", hint=_HINT)


def _decimal(column: str, kind: exp.DataType) -> pa.DataType:
    given = [int(each.this.this) for each in kind.expressions]
    precision, scale = (*given, 0) if len(given) == 1 else given or (10, 0)
    if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
        raise SchemaError(
            f"column {column}: the type DECIMAL({precision}, {scale}) is not supported",
            hint=f"Use a precision from 1 to {MAX_PRECISION} and a scale from 0 to the precision.",
        )
    return pa.decimal128(precision, scale)


def _struct(column: str, kind: exp.DataType, depth: int) -> pa.DataType:
    fields = []
    for each in kind.expressions:
        if not isinstance(each, exp.ColumnDef) or each.kind is None:
            raise SchemaError(
                f"column {column}: {each.sql('spark')} is not a field with a type", hint=_HINT
            )
        fields.append(pa.field(each.name, _arrow(f"{column}.{each.name}", each.kind, depth + 1)))
    return pa.struct(fields)
