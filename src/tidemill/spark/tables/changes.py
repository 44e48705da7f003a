"""Describe a changelog and its records, as Python workers read them, and compare their keys.

Two keys with equal values become equal bytes here, whatever their spelling. Must not know: Kafka
clients, Spark, which records are kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from tidemill.spark.base.options import ISO
from tidemill.spark.errors import JoinError
from tidemill.spark.source.captured.positions import Position
from tidemill.spark.source.parse.ddl_schema import schema_of

if TYPE_CHECKING:
    from tidemill.reading.parse.json_parser import JsonParser

DEFAULT_LIMIT = 1 << 30
"""Most bytes that one table may take in one process."""
_ROW_BYTES = 250
"""About the bytes of Python's objects for a row, besides its key and value."""


@dataclass(frozen=True, slots=True)
class Change:
    """A record of a changelog.

    Attributes:
        key: the key in the spelling of ``canonical``.
        value: the row as a JSON object; None deletes it.
        partition: the number of the partition.
        offset: the offset in the partition.
        at: the timestamp in microseconds since 1970; of a captured change the commit time.
        position: the place of a captured change in its database's log, if it is known.
    """

    key: bytes
    value: bytes | None
    partition: int
    offset: int
    at: int
    position: Position | None = None


@dataclass(frozen=True)
class TableSpec:
    """A changelog, and which of its records a Python worker keeps. Equal specs share a cache.

    Attributes:
        key: columns of the record's key.
        kafka: settings of librdkafka, sorted.
        types: the types of the columns by which rows are found: the key and the foreign key.
        foreign_key: columns of the value by which ``Latest`` finds rows, too, each with the column
            of the other table's key.
        keep: how long ``Versions`` keeps a version after another one replaced it, in microseconds.
        valid_from: the column of the value with the time from which a version in ``Versions`` is
            valid; None for the record's timestamp.
        limit: most bytes of memory.
        captured: all columns with their types if records are envelopes of a captured table; empty
            if they are rows.
        timestamp_format: what a number in a TIMESTAMP column means.
    """

    topic: str
    key: tuple[str, ...]
    kafka: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, str], ...] = ()
    foreign_key: tuple[tuple[str, str], ...] = ()
    keep: int = 0
    valid_from: str | None = None
    limit: int = DEFAULT_LIMIT
    captured: tuple[tuple[str, str], ...] = ()
    timestamp_format: str = ISO

    def plain(self, column: str, value: Any) -> Any:
        """Return a column's value in JSON in the spelling that Spark writes: 1.0 as 1."""
        return _plain(value, self.type_of(column))

    def type_of(self, column: str) -> str:
        """Return the type of a column by which rows are found; an empty text if it is unknown."""
        return next((kind for name, kind in self.types if name == column), "")


def following(known: Change | None, change: Change) -> Change | None:
    """Return a change as it is kept after the last known one of its key.

    The order of a topic is that of the database, but a capture that crashed may repeat changes. So
    a captured change with an older position than the known one changes nothing, unless it was
    committed later: then the database was restored, or its source created again, and positions
    began again. A change without a position, and one whose position is loose, follow the known one,
    and keep its position.

    Returns:
        None if the change is older.
    """
    position = change.position
    before = None if known is None else known.position
    if known is not None and position is not None and before is not None:
        is_older = position.is_before(before) and change.at <= known.at
        if is_older:
            return None
    if position is None or position.is_loose:
        return change if position is before else replace(change, position=before)
    return change


def is_older(change: Change, other: Change) -> bool:
    """Whether a change is older than one of another partition."""
    if change.position is not None and other.position is not None:
        if change.position.is_before(other.position):
            return change.at <= other.at
        if other.position.is_before(change.position) and change.at == other.at:
            return False
    return change.at < other.at


def is_repeated(change: Change, other: Change) -> bool:
    """Whether a change is before another one in the database's log, as far as that is known."""
    if change.position is None or other.position is None:
        return False
    return change.position.is_before(other.position)


def replaces(known: Change, change: Change) -> bool:
    """Whether a change replaces one of the same key and partition that is valid from one time."""
    if known.position is not None and change.position is not None:
        if change.position.is_before(known.position):
            return False
        if known.position.is_before(change.position):
            return True
    return known.offset < change.offset


def canonical(key: bytes, spec: TableSpec) -> bytes | None:
    """Return a record's key as bytes that are equal for equal keys; None if a column is missing."""
    if len(spec.key) == 1:
        try:
            return _spelled(key.decode(), spec.type_of(spec.key[0])).encode()
        except UnicodeDecodeError:
            return key
    try:
        fields = orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    return _join(fields, [(name, name) for name in spec.key], spec)


def _join(
    fields: dict[str, Any], columns: Sequence[tuple[str, str]], spec: TableSpec
) -> bytes | None:
    """Return a JSON object with some of the fields, under new names; None if one is missing."""
    if any(fields.get(name) is None for name, _ in columns):
        return None
    return orjson.dumps({new: spec.plain(name, fields[name]) for name, new in columns})


def foreign_key_of(change: Change, spec: TableSpec) -> bytes | None:
    """Return a row's foreign key in the spelling of the other table's key."""
    return key_of(_object(change, spec), spec.foreign_key, spec)


def key_of(
    fields: dict[str, Any], columns: Sequence[tuple[str, str]], spec: TableSpec
) -> bytes | None:
    """Return the key that a row has in some of its columns, in the spelling of ``canonical``.

    Args:
        columns: each column of the row, with its name in the key.
        spec: the table with the types of the columns.

    Returns:
        None if a column is missing.
    """
    if len(columns) > 1:
        return _join(fields, columns, spec)
    name = columns[0][0]
    found = fields.get(name)
    if found is None:
        return None
    found = spec.plain(name, found)
    return found.encode() if isinstance(found, str) else orjson.dumps(found)


def valid_from_of(change: Change, spec: TableSpec) -> int:
    """Return the time from which a version is valid, in microseconds since 1970."""
    if spec.valid_from is None or change.value is None:
        return change.at
    try:
        found = _time_parser(spec.valid_from, spec.timestamp_format).integer(change.value)
    except ValueError as error:
        raise _malformed(change, spec, str(error)) from None
    return change.at if found is None else found


@lru_cache(maxsize=64)
def _time_parser(column: str, timestamp_format: str) -> JsonParser:
    # Not earlier: they import Arrow, which takes a while.
    from tidemill.reading.parse.json_parser import JsonParser
    from tidemill.spark.base.ddl import escaped

    ddl = f"{escaped(column)} TIMESTAMP"
    return JsonParser(schema_of(ddl, timestamp_format=timestamp_format), (True,))


def _object(change: Change, spec: TableSpec) -> dict[str, Any]:
    try:
        fields = orjson.loads(change.value or b"")
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise _malformed(change, spec, "the value is not a JSON object")
    return fields


def _malformed(change: Change, spec: TableSpec, reason: str) -> JoinError:
    return JoinError(
        f"table {spec.topic}: the record at offset {change.offset} of partition "
        f"{change.partition} can't be parsed: {reason}"
    )


def size_of(change: Change) -> int:
    """Return about how many bytes a change takes in memory."""
    return _ROW_BYTES + len(change.key) + len(change.value or b"")


def key_json(key: bytes, column: str, kind: str) -> bytes:
    """Return the key of a record, which is the text of one column, as a JSON object.

    Args:
        column: the name of the column.
        kind: its type. A key that is not of the type becomes an object that is not, either.
    """
    if kind == "BINARY":
        return orjson.dumps({column: base64.b64encode(key).decode()})
    try:
        text = _spelled(key.decode(), kind)
    except UnicodeDecodeError:
        return key
    if text in ("true", "false") and kind == "BOOLEAN":
        return orjson.dumps({column: text == "true"})
    is_number = _WHOLE if kind in INTEGERS else _NUMBER if kind in _FRACTIONS else None
    if is_number is not None and is_number.fullmatch(text):
        return b"{%b:%b}" % (orjson.dumps(column), text.encode())
    return orjson.dumps({column: text})


_BLANKS = "".join(map(chr, range(33)))  # the characters that Spark's casts strip
INTEGERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_FRACTIONS = frozenset({"FLOAT", "DOUBLE"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T][0-9:. ]+[A-Z]*(?:[+-][0-9:]+)?)?")
_TRUTH = dict.fromkeys(("t", "true", "y", "yes", "1"), "true") | dict.fromkeys(
    ("f", "false", "n", "no", "0"), "false"
)


def _spelled(text: str, kind: str) -> str:
    """Return the text of a key of one column as Spark writes it; unchanged if it is not one."""
    stripped = text.strip(_BLANKS)
    if kind in INTEGERS:
        return str(int(stripped)) if _WHOLE.fullmatch(stripped) else text
    if kind == "BOOLEAN":
        return _TRUTH.get(stripped.lower(), text)
    return _day(text) if kind == "DATE" else text


def _plain(value: Any, kind: str) -> Any:
    """Return a value in JSON as Spark writes it after parsing it; unchanged if it is not one."""
    if kind == "STRING":
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    if kind in INTEGERS and isinstance(value, float) and value.is_integer():
        return int(value)
    return _day(value) if kind == "DATE" and isinstance(value, str) else value


def _day(text: str) -> str:
    """Return the date of a text, which may have a time behind it; unchanged if it has none."""
    found = _DATE.fullmatch(text.strip(_BLANKS))
    try:
        return date(*map(int, found.groups())).isoformat() if found else text
    except ValueError:
        return text
