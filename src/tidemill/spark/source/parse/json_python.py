"""Parses JSON objects to Arrow columns: the edition in Python. docs/json-values.md has the rules.

It does one value at a time. Must not know: the extension, which has the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from tidemill.spark.source.parse import json_text, json_values, reasons
from tidemill.spark.source.parse.contract import Parsed, Reasons, require_text
from tidemill.spark.source.parse.json_text import MalformedError
from tidemill.spark.source.parse.schema import ParseSchema

_Value = Any
_Reader = Callable[[str, int, int], tuple[_Value, int]]
"""Reads the value at a position, inside of so many objects and arrays. Returns it and its end."""


class _WrongTypeError(Exception):
    """A value is not of its column's type."""


class _OtherCaseError(Exception):
    """A field is missing, and one with the same name in other letters is present."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(path)
        self.reason = reasons.other_case(path, name.encode())


class _RefusedError(Exception):
    """A value is refused. The argument is the reason."""


class _Field(NamedTuple):
    number: int
    path: str
    read: _Reader


class JsonParser:
    """The parser of JSON objects."""

    def __init__(self, schema: ParseSchema, built: tuple[bool, ...]) -> None:
        """Prepare for a schema.

        Args:
            schema: The columns.
            built: Whether to build each column.
        """
        self._schema = schema
        self._built = built
        names = [column.name for column in schema.columns]
        self._event_time = names.index(schema.event_time) if schema.event_time else None
        self._fields = {
            column.name: _Field(i, column.name, _reader(column.name, column.arrow, schema))
            for i, column in enumerate(schema.columns)
        }

    def parse(self, values: pa.Array) -> Parsed:
        """Parse values to columns. See ``Parser``."""
        rows, refused = self._rows(values)
        columns = [
            pa.array([row[i] for row in rows], column.arrow)
            if self._built[i]
            else pa.nulls(len(rows), column.arrow)
            for i, column in enumerate(self._schema.columns)
        ]
        if not refused:
            return Parsed(columns, None, refused)
        bad = {index for index, _ in refused}
        accepted = pa.array([i not in bad for i in range(len(values))], pa.bool_())
        return Parsed(columns, accepted, refused)

    def check(self, values: pa.Array) -> Reasons:
        """Return the values that ``parse`` refuses. See ``Parser``."""
        return self._rows(values)[1]

    def _rows(self, values: pa.Array) -> tuple[list[list[_Value]], Reasons]:
        require_text(values)
        rows, refused = [], []
        for i, value in enumerate(values):
            try:
                rows.append(self._row(value.as_py()))
            except _RefusedError as why:
                refused.append((i, str(why)))
        return rows, refused

    def _row(self, value: bytes | str | None) -> list[_Value]:
        if value is None:
            raise _RefusedError(reasons.NULL)
        try:
            text = value if isinstance(value, str) else value.decode()
        except UnicodeDecodeError:
            raise _RefusedError(reasons.NOT_UTF8) from None
        problems: dict[int, str] = {}
        try:
            row, end = self._object(text, problems)
        except MalformedError:
            raise _RefusedError(reasons.NOT_AN_OBJECT) from None
        if json_text.space_end(text, end) != len(text):
            raise _RefusedError(reasons.MORE)
        if problems:
            raise _RefusedError(reasons.joined([problems[i] for i in sorted(problems)]))
        if self._event_time is not None and row[self._event_time] is None:
            raise _RefusedError(reasons.no_event_time(self._schema.event_time or ""))
        return row

    def _object(self, text: str, problems: dict[int, str]) -> tuple[list[_Value], int]:
        """Return a row, and the end of its object. Adds the problem of each column that has one."""
        row: list[_Value] = [None] * len(self._fields)
        present = set()
        other: list[str] = []
        entries = _Entries(text, json_text.space_end(text, 0), 0)
        for name in entries:
            at = entries.at
            field = self._fields.get(name)
            if field is None:
                other.append(name)
                entries.at = json_text.value_end(text, at, 1)
                continue
            present.add(name)
            try:
                row[field.number], entries.at = field.read(text, at, 1)
            except _OtherCaseError as why:
                entries.at = json_text.value_end(text, at, 1)
                problems.setdefault(field.number, why.reason)
            except _WrongTypeError:
                entries.at = json_text.value_end(text, at, 1)
                column = self._schema.columns[field.number]
                raw = text[at : entries.at].encode()
                problems.setdefault(field.number, reasons.wrong_type(column.name, column.type, raw))
        for number, error in _other_case(self._fields, present, other):
            problems.setdefault(number, error.reason)
        return row, entries.at


class _Entries:
    """Iterates over the names of an object's fields.

    The caller must move ``at`` from the beginning of each field's value to its end. After the last
    it is the end of the object.
    """

    def __init__(self, text: str, at: int, depth: int) -> None:
        if text[at : at + 1] != "{" or depth >= json_text.MAX_DEPTH:
            raise MalformedError
        self.at = at + 1
        self.name_at = 0
        self._text = text
        self._first = True

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> str:
        text = self._text
        at = json_text.space_end(text, self.at)
        following = text[at : at + 1]
        if following == "}":
            self.at = at + 1
            raise StopIteration
        if not self._first:
            if following != ",":
                raise MalformedError
            at = json_text.space_end(text, at + 1)
        self._first = False
        name, end = json_text.string(text, at)
        at = json_text.space_end(text, end)
        if text[at : at + 1] != ":":
            raise MalformedError
        self.at = json_text.space_end(text, at + 1)
        return name


def _other_case(
    fields: dict[str, _Field], present: set[str], other: list[str]
) -> list[tuple[int, _OtherCaseError]]:
    """Return the missing fields for which one in other letters is present, in order."""
    if not other:
        return []
    folded: dict[str, str] = {}
    for name in other:
        folded.setdefault(_folded(name), name)
    return [
        (field.number, _OtherCaseError(field.path, folded[_folded(name)]))
        for name, field in fields.items()
        if name not in present and _folded(name) in folded
    ]


def _folded(name: str) -> str:
    """Return a name in small letters, those of ASCII only."""
    return name.encode("utf-8").lower().decode("utf-8")


def _reader(path: str, kind: pa.DataType, schema: ParseSchema) -> _Reader:
    """Return the reader of a type. ``path`` is the name of the column or field."""
    if pa.types.is_struct(kind):
        read = _struct(path, kind, schema)
    elif pa.types.is_map(kind):
        read = _map(_reader(path, kind.item_type, schema))
    elif pa.types.is_list(kind):
        read = _list(_reader(path, kind.value_type, schema))
    elif pa.types.is_string(kind):
        read = _string
    elif pa.types.is_boolean(kind):
        read = _boolean
    else:
        read = _scalar(*_conversions(kind, schema.timestamp_format))

    def nullable(text: str, at: int, depth: int) -> tuple[_Value, int]:
        if text.startswith("null", at):
            return None, at + 4
        return read(text, at, depth)

    return nullable


_Convert = Callable[[str], _Value]


def _conversions(
    kind: pa.DataType, timestamp_format: str
) -> tuple[_Convert | None, _Convert | None]:
    """Return how a type's numbers and strings are converted; None if they are of a wrong type."""
    if pa.types.is_integer(kind):
        return lambda text: json_values.integer(text, kind.bit_width), None
    if pa.types.is_float32(kind):
        return json_values.single, json_values.special
    if pa.types.is_float64(kind):
        return json_values.double, json_values.special
    if pa.types.is_decimal(kind):
        size = kind.precision, kind.scale
        return (
            lambda text: json_values.decimal(text, *size),
            lambda text: json_values.decimal_string(text, *size),
        )
    if pa.types.is_binary(kind):
        return None, json_values.base64_bytes
    if pa.types.is_date32(kind):
        return None, json_values.date
    if kind.tz is None:
        return None, lambda text: json_values.timestamp(text, zone=False)
    return (
        lambda text: json_values.epoch_us(text, timestamp_format),
        lambda text: json_values.timestamp(text, zone=True),
    )


def _scalar(of_number: _Convert | None, of_string: _Convert | None) -> _Reader:
    def read(text: str, at: int, depth: int) -> tuple[_Value, int]:
        if text.startswith('"', at):
            content, end = json_text.string(text, at)
            convert = of_string
        else:
            if text[at : at + 1] not in _NUMBER_STARTS:
                raise _WrongTypeError
            end = json_text.number_end(text, at)
            content, convert = text[at:end], of_number
        if convert is None:
            raise _WrongTypeError
        try:
            return convert(content), end
        except ValueError:
            raise _WrongTypeError from None

    return read


_NUMBER_STARTS = frozenset("-0123456789")


def _boolean(text: str, at: int, depth: int) -> tuple[bool, int]:
    if text.startswith("true", at):
        return True, at + 4
    if text.startswith("false", at):
        return False, at + 5
    raise _WrongTypeError


def _string(text: str, at: int, depth: int) -> tuple[str, int]:
    if text.startswith('"', at):
        return json_text.string(text, at)
    end = json_text.value_end(text, at, depth)
    return json_text.compact(text[at:end]), end


def _list(read: _Reader) -> _Reader:
    def read_list(text: str, at: int, depth: int) -> tuple[list[_Value], int]:
        if not text.startswith("[", at):
            raise _WrongTypeError
        if depth >= json_text.MAX_DEPTH:
            raise MalformedError
        values: list[_Value] = []
        at = json_text.space_end(text, at + 1)
        if text.startswith("]", at):
            return values, at + 1
        while True:
            value, at = read(text, json_text.space_end(text, at), depth + 1)
            values.append(value)
            at = json_text.space_end(text, at)
            if text.startswith("]", at):
                return values, at + 1
            if not text.startswith(",", at):
                raise MalformedError
            at += 1

    return read_list


def _map(read: _Reader) -> _Reader:
    def read_map(text: str, at: int, depth: int) -> tuple[list[tuple[str, _Value]], int]:
        if not text.startswith("{", at):
            raise _WrongTypeError
        values: dict[str, _Value] = {}
        entries = _Entries(text, at, depth)
        for name in entries:
            if name in values:
                raise _WrongTypeError
            values[name], entries.at = read(text, entries.at, depth + 1)
        return list(values.items()), entries.at

    return read_map


def _struct(path: str, kind: pa.StructType, schema: ParseSchema) -> _Reader:
    members = [kind.field(i) for i in range(kind.num_fields)]
    fields = {
        member.name: _Field(
            i,
            f"{path}.{member.name}",
            _reader(f"{path}.{member.name}", member.type, schema),
        )
        for i, member in enumerate(members)
    }

    def read_struct(text: str, at: int, depth: int) -> tuple[dict[str, _Value], int]:
        if not text.startswith("{", at):
            raise _WrongTypeError
        values: dict[str, _Value] = {}
        other: list[str] = []
        entries = _Entries(text, at, depth)
        for name in entries:
            field = fields.get(name)
            if field is None:
                other.append(name)
                entries.at = json_text.value_end(text, entries.at, depth + 1)
            else:
                values[name], entries.at = field.read(text, entries.at, depth + 1)
        for _, error in _other_case(fields, set(values), other):
            raise error
        return values, entries.at

    return read_struct
