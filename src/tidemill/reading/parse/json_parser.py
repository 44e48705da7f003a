"""Parses JSON objects to Arrow columns. docs/json-values.md has the rules.

The extension reads Arrow's buffers and returns Arrow's buffers. Here the schema becomes its plan,
its buffers become arrays, and its problems become reasons. Must not know: how JSON is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from json import loads
from typing import Any

import pyarrow as pa

from tidemill.errors import ParseLimitError
from tidemill.native import extension
from tidemill.reading.parse.contract import Parsed, Reasons, require_text
from tidemill.reading.parse.schema import ParseSchema

LIMIT = 1 << 30
"""Most bytes of columns in one step, in addition to four times the bytes of the values.

An array of structs with many fields, which are all missing, needs more memory than its text.
"""

_BOOLEAN, _INTEGER, _SINGLE, _DOUBLE, _DECIMAL, _STRING, _BINARY = range(7)
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _STRUCT, _LIST, _MAP = range(7, 13)
"""Kinds of nodes: those of src/native/json.h."""
_NULL, _NOT_UTF8, _NOT_AN_OBJECT, _MORE, _TYPE, _OTHER_CASE, _NO_EVENT_TIME = range(7)
"""Kinds of reasons: those of src/native/json.h."""
_WHOLE = {
    _NULL: "the value is null",
    _NOT_UTF8: "the value is not UTF-8 text",
    _NOT_AN_OBJECT: "the value is not a JSON object",
    _MORE: "the value has more than its JSON object",
}
_SHOWN = 100
"""Most characters of a field's text in a reason."""
_POWERS = {"iso": -1, "epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}
_PROBLEM = struct.Struct("=5q")
_ENDS, _INTEGER_OF = struct.Struct("=2i"), struct.Struct("=q")

_Node = tuple[bytes, int, int, int, int, tuple[Any, ...]]
"""Name, kind, bytes of a value or 0, precision, scale, nodes in it."""
_Taken = tuple[int, int, Any, Any, Any]
"""Length, nulls, and the buffers of validity, offsets and data; None where there is none."""


class JsonParser:
    """The parser of JSON objects."""

    def __init__(self, schema: ParseSchema, built: tuple[bool, ...]) -> None:
        self._schema = schema
        self._built = built
        self._types = {column.name: column.type for column in schema.columns}
        names = list(self._types)
        event_time = names.index(schema.event_time) if schema.event_time else -1
        fields = [pa.field(column.name, column.arrow) for column in schema.columns]
        row = (b"", _STRUCT, 0, 0, 0, tuple(_node(field) for field in fields))
        power = _POWERS[schema.timestamp_format]
        self._parser = extension.JsonParser(row, built, event_time, power)
        self._paths = ["", *(path for field in fields for path in _paths(field.type, field.name))]

    def parse(self, values: pa.Array) -> Parsed:
        """Parse values to columns. See ``Parser``."""
        rows, accepted, problems, taken = self._run(values, check=False)
        parts = iter(taken)
        columns = []
        for column, built in zip(self._schema.columns, self._built, strict=True):
            array = _array(column.arrow, parts)
            columns.append(array if built else pa.nulls(rows, column.arrow))
        told = self._reasons(problems, values)
        if not told:
            return Parsed(columns, None, told)
        bits = pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(accepted)])
        return Parsed(columns, bits, told)

    def check(self, values: pa.Array) -> Reasons:
        """Return the values that ``parse`` refuses. See ``Parser``."""
        _, _, problems, _ = self._run(values, check=True)
        return self._reasons(problems, values)

    def integer(self, value: bytes) -> int | None:
        """Return the only column of one value, of a type of 64 bits; None if it is null.

        It makes no arrays, which takes a tenth of the time.

        Raises:
            ValueError: The value is refused. The argument is the reason.
        """
        ends = _ENDS.pack(0, len(value))
        made = self._parser.parse(None, ends, value, False, 0, 1, False, LIMIT)
        if made[2]:
            _, kind, node, start, end = _PROBLEM.unpack_from(made[2])
            raise ValueError(self._reason(kind, node, value[start:end]))
        taken: _Taken = made[3][0]
        found: int = _INTEGER_OF.unpack_from(taken[4])[0]
        return None if taken[1] else found

    def _run(self, values: pa.Array, *, check: bool) -> tuple[int, bytes, bytes, list[_Taken]]:
        require_text(values)
        valid, offsets, data = values.buffers()
        empty = len(values) == 0
        large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
        try:
            made: tuple[int, bytes, bytes, list[_Taken]] = self._parser.parse(
                valid,
                bytes(8) if empty else offsets,
                b"" if data is None else data,
                large,
                0 if empty else values.offset,
                len(values),
                check,
                LIMIT + 4 * (0 if data is None else data.size),
            )
        except OverflowError as error:
            raise ParseLimitError(
                f"can't parse {len(values)} values in one step: {error}"
            ) from None
        return made

    def _reasons(self, problems: bytes, values: pa.Array) -> Reasons:
        """Return the reasons of refused values; those of one value follow each other."""
        told: Reasons = []
        if not problems:
            return told
        data = memoryview(values.buffers()[2] or b"")
        for row, kind, node, start, end in _PROBLEM.iter_unpack(problems):
            reason = self._reason(kind, node, bytes(data[start:end]))
            if told and told[-1][0] == row:
                reason = f"{told.pop()[1]}; {reason}"
            told.append((row, reason))
        return told

    def _reason(self, kind: int, node: int, raw: bytes) -> str:
        if kind in _WHOLE:
            return _WHOLE[kind]
        if kind == _NO_EVENT_TIME:
            return f"the event time {self._schema.event_time} is missing"
        path = self._paths[node]
        if kind == _OTHER_CASE:
            return f"the field {_shown(raw)} differs from {path} only in case"
        return f"{path} is not {self._types[path]}: {_shown(raw)}"


def _shown(raw: bytes) -> str:
    """Return the beginning of a field's text, which is valid JSON; of a string its content."""
    if raw.startswith(b'"'):
        text: str = loads(raw)
        return text[:_SHOWN]
    return raw[: 4 * _SHOWN + 4].decode(errors="ignore")[:_SHOWN]


_KINDS: list[tuple[Any, int]] = [
    (pa.types.is_boolean, _BOOLEAN),
    (pa.types.is_integer, _INTEGER),
    (pa.types.is_float32, _SINGLE),
    (pa.types.is_float64, _DOUBLE),
    (pa.types.is_decimal, _DECIMAL),
    (pa.types.is_string, _STRING),
    (pa.types.is_binary, _BINARY),
    (pa.types.is_date32, _DATE),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _TIMESTAMP),
    (pa.types.is_timestamp, _TIMESTAMP_NTZ),
    (pa.types.is_struct, _STRUCT),
    (pa.types.is_map, _MAP),
    (pa.types.is_list, _LIST),
]


def _node(field: pa.Field) -> _Node:
    kind = next(number for matches, number in _KINDS if matches(field.type))
    children = tuple(_node(child) for child in _children(field.type))
    if kind == _BOOLEAN:
        width = 1
    else:
        width = 0 if kind in (_STRING, _BINARY) or children else field.type.bit_width // 8
    precision, scale = (field.type.precision, field.type.scale) if kind == _DECIMAL else (0, 0)
    return field.name.encode(), kind, width, precision, scale, children


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _paths(kind: pa.DataType, path: str) -> list[str]:
    """Return the paths of a node and of the nodes in it. Elements have the path of their list."""
    members = pa.types.is_struct(kind)
    inner = [(f"{path}.{each.name}" if members else path, each) for each in _children(kind)]
    return [path, *(made for name, each in inner for made in _paths(each.type, name))]


def _array(kind: pa.DataType, parts: Iterator[_Taken]) -> pa.Array:
    """Return the array of a type, from its parts and those in it."""
    length, nulls, *buffers = next(parts)
    valid, offsets, data = (None if each is None else pa.py_buffer(each) for each in buffers)
    children = [_array(child.type, parts) for child in _children(kind)]
    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(kind, length, [valid], nulls, children=children)
    if pa.types.is_map(kind):
        keys, items = children
        entries = pa.struct([kind.key_field, kind.item_field])
        children = [pa.Array.from_buffers(entries, len(keys), [None], 0, children=[keys, items])]
    if children:
        return pa.Array.from_buffers(kind, length, [valid, offsets], nulls, children=children)
    sized = [valid, data] if offsets is None else [valid, offsets, data]
    return pa.Array.from_buffers(kind, length, sized, nulls)
