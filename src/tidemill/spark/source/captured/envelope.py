"""Turn the records of a captured table into events. The format is Debezium's envelope in JSON.

A value is ``{"before", "after", "source", "op", "ts_ms", "transaction"}``, with or without the
``{"schema", "payload"}`` around it that Kafka Connect's JSON converter writes. A delete has the
operation ``d``, and a record with a null value follows it. Must not know: topics, tables, Spark.

Source: Debezium 3, "Data change events" of the connectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidemill.spark.source.captured.positions import Position, position_of
from tidemill.spark.source.captured.values import (
    UNAVAILABLE,
    ValueRefusedError,
    convert,
)

CREATE, READ, UPDATE, DELETE, TRUNCATE, MESSAGE = "c", "r", "u", "d", "t", "m"
_WITH_AFTER = (CREATE, READ, UPDATE)
OPERATIONS = (*_WITH_AFTER, DELETE, TRUNCATE, MESSAGE)

Row = dict[str, Any]


class EnvelopeError(Exception):
    """A record is not an event of a captured table. The argument is the reason."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a captured table.

    Attributes:
        op: one of ``OPERATIONS``.
        before: the row before the change, as far as the database reports it.
        after: the row after the change; None for a delete.
        commit_us: when the transaction was committed, in microseconds since 1970; None if the
            envelope does not say.
        position: the place in the database's log; None if it is not known.
        transaction: the id of the transaction, or None.
        source: the envelope's block of this name.
        unavailable: columns of ``after`` that the event does not have, because the update did not
            change their large values.
    """

    op: str
    before: Row | None
    after: Row | None
    commit_us: int | None
    position: Position | None
    transaction: str | None
    source: Mapping[str, Any]
    unavailable: frozenset[str] = frozenset()


class Envelopes:
    """Reads envelopes of one table.

    Args:
        columns: the declared columns: name, and Spark's name of the type. Others are left out.
        times: what a number in a TIMESTAMP column means if no schema says so.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], times: str = "iso") -> None:
        self._columns = tuple(columns)
        self._times = times

    def event(self, value: bytes) -> Event:
        """Return the event of a record's value, which is not null.

        Raises:
            EnvelopeError: the value is not an envelope, or one of its values can't be converted.
        """
        fields, schema = _unwrapped(value, "value")
        op = fields.get("op")
        if not isinstance(op, str) or op not in OPERATIONS:
            raise EnvelopeError(
                "the value is not an envelope of Debezium: it has no op of r, c, u, d, t or m"
            )
        source = fields.get("source")
        source = source if isinstance(source, dict) else {}
        before = self._row(fields, schema, "before")
        after = self._row(fields, schema, "after")
        if op in _WITH_AFTER and after is None:
            raise EnvelopeError(f"the envelope has op {op}, and no row in after")
        missing = [
            name for name, v in (after or {}).items() if isinstance(v, str) and v in UNAVAILABLE
        ]
        transaction = fields.get("transaction")
        return Event(
            op=op,
            before=before,
            after=None if op not in _WITH_AFTER else after,
            commit_us=_commit_us(source, fields),
            position=position_of(source, op),
            transaction=transaction.get("id") if isinstance(transaction, dict) else None,
            source=source,
            unavailable=frozenset(missing),
        )

    def key(self, key: bytes) -> Row:
        """Return the columns of a record's key.

        Raises:
            EnvelopeError: the key is not a JSON object, or one of its values can't be converted.
        """
        fields, schema = _unwrapped(key, "key")
        declared = dict(self._columns)
        return {
            name: self._convert(name, value, declared.get(name, "STRING"), schema)
            for name, value in fields.items()
        }

    def _row(self, fields: Mapping[str, Any], schema: _Schema, name: str) -> Row | None:
        row = fields.get(name)
        if row is None:
            return None
        if not isinstance(row, dict):
            raise EnvelopeError(f"{name} is not a JSON object")
        of_row = _fields(schema.get(name))
        for column, _ in self._columns:
            if column not in row:
                _check_case(column, row)
        return {
            column: self._convert(column, row[column], kind, of_row)
            for column, kind in self._columns
            if column in row
        }

    def _convert(self, name: str, value: Any, kind: str, schema: _Schema) -> Any:
        try:
            return convert(value, kind, schema.get(name), self._times)
        except ValueRefusedError as error:
            raise EnvelopeError(f"{name}: {error}") from None


_Schema = Mapping[str, Mapping[str, Any]]
"""The fields of a struct in a record's schema, by name; empty without a schema."""


def _unwrapped(content: bytes, what: str) -> tuple[dict[str, Any], _Schema]:
    """Return a JSON object, and its schema if it has one around it."""
    try:
        fields = orjson.loads(content)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise EnvelopeError(f"the {what} is not a JSON object")
    if fields.keys() == {"schema", "payload"}:
        payload = fields["payload"]
        if not isinstance(payload, dict):
            raise EnvelopeError(f"the payload of the {what} is not a JSON object")
        return payload, _fields(fields["schema"])
    return fields, {}


def _fields(schema: Any) -> _Schema:
    found = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(found, list):
        return {}
    return {
        str(each["field"]): each for each in found if isinstance(each, dict) and "field" in each
    }


def _check_case(column: str, row: Mapping[str, Any]) -> None:
    """Check that a missing column is not there in other letters: it would silently be null."""
    other = [name for name in row if name.lower() == column.lower()]
    if other:
        raise EnvelopeError(f"the field {other[0]} differs from {column} only in case")


def _commit_us(source: Mapping[str, Any], fields: Mapping[str, Any]) -> int | None:
    """Return the commit time; the connector's own time if the source has none."""
    units = (("ts_us", 1, 1), ("ts_ns", 1, 1000), ("ts_ms", 1000, 1))
    for block in (source, fields):
        for name, factor, divisor in units:
            value = block.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62:
                return value * factor // divisor
    return None
