"""Describe a changelog and its records, as Python workers read them, and compare their keys.

Two keys that Spark considers equal become equal bytes here, whatever their spelling. Must not know:
Kafka clients, Spark, which records are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import orjson

from tidemill.spark.errors import JoinError
from tidemill.spark.source.captured.positions import Position

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
        topic: the topic of the changelog.
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
        timestamp_format: what a number in a TIMESTAMP column of a captured table means.
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
    timestamp_format: str = "iso"

    def plain(self, column: str, value: Any) -> Any:
        """Return a column's value in the spelling that Spark writes: ``"01"`` as ``"1"``."""
        for name, kind in self.types:
            if name == column:
                return _plain(value, kind)
        return value


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
            text: str = spec.plain(spec.key[0], key.decode())
        except UnicodeDecodeError:
            return key
        return text.encode()
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
    """Return a row's foreign key in the spelling of the other table's key.

    Returns:
        None if a column is missing.

    Raises:
        JoinError: the value is not a JSON object.
    """
    return key_of(_object(change, spec), spec.foreign_key, spec)


def key_of(
    fields: dict[str, Any], columns: Sequence[tuple[str, str]], spec: TableSpec
) -> bytes | None:
    """Return the key that a row has in some of its columns, in the spelling of ``canonical``.

    Args:
        fields: the row.
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
    """Return the time from which a version is valid, in microseconds since 1970.

    Raises:
        JoinError: the column with that time has a value that is not a time.
    """
    if spec.valid_from is None or change.value is None:
        return change.at
    found = _object(change, spec).get(spec.valid_from)
    if found is None:
        return change.at
    try:
        # Like Spark's from_json, take a number as seconds.
        made = datetime.fromisoformat(found) if isinstance(found, str) else None
        if made is None:
            return int(found) * 1_000_000
    except (TypeError, ValueError):
        raise _malformed(change, spec, f"an invalid time {spec.valid_from}: {found!r}") from None
    made = made if made.tzinfo else made.replace(tzinfo=UTC)
    delta = made - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _object(change: Change, spec: TableSpec) -> dict[str, Any]:
    try:
        fields = orjson.loads(change.value or b"")
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise _malformed(change, spec, "a value that is not a JSON object")
    return fields


def _malformed(change: Change, spec: TableSpec, what: str) -> JoinError:
    return JoinError(
        f"table {spec.topic}: the record at offset {change.offset} of partition "
        f"{change.partition} has {what}"
    )


def size_of(change: Change) -> int:
    """Return about how many bytes a change takes in memory."""
    return _ROW_BYTES + len(change.key) + len(change.value or b"")


_BLANKS = "".join(map(chr, range(33)))  # the characters that Spark's casts strip
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DATE = re.compile(r"\+?([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TRUTH = dict.fromkeys(("t", "true", "y", "yes", "1"), "true") | dict.fromkeys(
    ("f", "false", "n", "no", "0"), "false"
)


def _plain(value: Any, kind: str) -> Any:
    """Return a value as Spark writes it after parsing it; unchanged if Spark can't parse it."""
    if kind == "STRING":
        return orjson.dumps(value).decode() if isinstance(value, int) else value
    if not isinstance(value, str):
        return value
    text = value.strip(_BLANKS)
    if kind in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return str(int(text)) if _WHOLE.fullmatch(text) else value
    if kind == "BOOLEAN":
        return _TRUTH.get(text.lower(), value)
    if kind == "DATE" and (found := _DATE.fullmatch(text)):
        year, month, day = (int(part or 1) for part in found.groups())
        try:
            return date(year, month, day).isoformat()
        except ValueError:
            return value
    return value
