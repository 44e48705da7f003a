"""Write the rows of a query as records of a topic, all in one transaction.

Columns become the fields of one JSON object, by the rules of docs/json-values.md, so that what is
written is read back as it was. Must not know: statements, commands, HTTP.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.producer import open_producer
from tidemill.record_json import check_timestamp
from tidemill.sql.database import quoted
from tidemill.sql.errors import SqlError, StatementRefusedError

_RECORD = {"_key", "_value", "_timestamp", "_headers"}
_MORE = {"_partition", "_offset", "_op", "_deleted"}
_ROWS = 2000
_JSON_HINT = "Leave it out: SELECT * EXCLUDE (_value, _partition, _offset) FROM ..."
_TIME = "strftime({}::TIMESTAMP, '%Y-%m-%dT%H:%M:%S.%fZ')"


def record_query(query: str, description: Sequence[Any], columns: Sequence[str]) -> str:
    """Return a query with the columns ``key``, ``value``, ``at`` and ``headers`` of records.

    Args:
        query: the rows.
        description: the columns of the query as in PEP 249, with DuckDB's types.
        columns: other names for them; empty for their own.

    Raises:
        StatementRefusedError: they don't make records.
    """
    names = list(columns) or [str(each[0]) for each in description]
    if len(names) != len(description):
        raise StatementRefusedError(
            f"INSERT names {len(names)} columns, and the query has {len(description)}"
        )
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise StatementRefusedError(f"two columns have the name {double}: rename one with AS")
    types = {name: str(each[1]) for name, each in zip(names, description, strict=True)}
    if unknown := sorted(_MORE & types.keys()):
        raise StatementRefusedError(
            f"column {unknown[0]} can't be written: the broker decides it", hint=_JSON_HINT
        )
    fields = [name for name in names if name not in _RECORD]
    if "_value" in types and fields:
        raise StatementRefusedError(
            f"the rows have _value and other columns: {', '.join(fields)}", hint=_JSON_HINT
        )
    if "_value" not in types and not fields:
        raise StatementRefusedError("the rows have no value", hint="Name columns, or _value.")
    value = _bytes("_value", types["_value"]) if "_value" in types else _object(fields, types)
    key = _bytes("_key", types["_key"]) if "_key" in types else "NULL::BLOB"
    at = "epoch_ms(_timestamp::TIMESTAMPTZ)" if "_timestamp" in types else "NULL::BIGINT"
    headers = "_headers" if "_headers" in types else "NULL"
    given = ", ".join(quoted(name) for name in names)
    return (
        f"SELECT {key} AS key, {value} AS value, {at} AS at, {headers} AS headers "
        f"FROM ({query}) AS q({given})"
    )


def insert(kafka: Kafka, topic: str, batches: Iterable[pa.RecordBatch]) -> int:
    """Write records in one transaction, and return their number.

    Nothing is visible if it fails, or if the process ends.

    Args:
        batches: with the columns of ``record_query``.

    Raises:
        TidemillError: a record is refused, or no broker answers.
    """
    producer, count = open_producer(kafka, f"tidemill-sql-{uuid.uuid4().hex}"), 0
    try:
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS):
                part = batch.slice(first, _ROWS)
                for key, value, at, headers in zip(*_lists(part), strict=True):
                    producer.send(topic, key, value, _time_ms(at), _pairs(headers))
                producer.post()
            count += batch.num_rows
        producer.commit()
    finally:
        producer.close()
    return count


def checked(
    batches: Iterable[pa.RecordBatch], description: Sequence[Any]
) -> Iterator[pa.RecordBatch]:
    """Yield batches whose values are JSON; only nested numbers can make other text.

    Raises:
        SqlError: a value is not JSON: NaN or infinity.
    """
    nested = any(
        "[]" in str(kind) or "(" in str(kind)
        for kind in (each[1] for each in description)
        if "DOUBLE" in str(kind) or "FLOAT" in str(kind)
    )
    for batch in batches:
        if nested:
            for value in batch.column("value").to_pylist():
                if value is not None:
                    json.loads(value, parse_constant=_not_json)
        yield batch


def _not_json(constant: str) -> NoReturn:
    raise SqlError(f"{constant} inside of a value can't be written as JSON", hint="Replace it.")


def _lists(batch: pa.RecordBatch) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in ("key", "value", "at", "headers")]


def _time_ms(at: int | None) -> int | None:
    """Return the time of a record; None for the present."""
    if at is None:
        return None
    try:
        check_timestamp(at)
    except ValueError as error:
        raise SqlError(f"_timestamp: {error}", hint="NULL is the present time.") from error
    return at


def _pairs(headers: Any) -> list[tuple[str, bytes | None]]:
    """Return headers as pairs: of a list of structs as the column has them, or of a map."""
    pairs = []
    for each in headers or ():
        try:
            name, value = each.values() if isinstance(each, dict) else each
        except (TypeError, ValueError):
            raise SqlError(
                "_headers is not a MAP, nor a list of STRUCT(key, value)",
                hint="Write MAP {'name': 'value'}.",
            ) from None
        pairs.append((str(name), value.encode() if isinstance(value, str) else value))
    return pairs


def _object(fields: Sequence[str], types: dict[str, str]) -> str:
    inside = ", ".join(f"{quoted(name)} := {_field(name, types[name])}" for name in fields)
    return f"encode(to_json(struct_pack({inside}))::VARCHAR)"


def _field(name: str, kind: str) -> str:
    """Return what to_json makes the JSON value of, which docs/json-values.md has for the type."""
    column = quoted(name)
    if kind.startswith("TIMESTAMP"):
        return _TIME.format(column)
    if kind == "BLOB":
        return f"base64({column})"
    if "BLOB" in kind:
        raise StatementRefusedError(
            f"column {name} has bytes inside of {kind}", hint="Write base64(...)."
        )
    if kind in ("FLOAT", "DOUBLE"):
        text = (
            f"CASE WHEN isnan({column}) THEN 'NaN' WHEN {column} > 0 THEN 'Infinity' "
            "ELSE '-Infinity' END"
        )
        return f"CASE WHEN isfinite({column}) THEN to_json({column}) ELSE to_json({text}) END"
    return column


def _bytes(name: str, kind: str) -> str:
    return name if kind == "BLOB" else f"encode({name}::VARCHAR)"
