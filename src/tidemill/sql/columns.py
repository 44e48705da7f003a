"""The columns of a topic: those of the record, and those that its values seem to have.

A few records at the beginning and at the end of partitions are the sample. Must not know: DuckDB,
clients.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemill.reading.parse.json_parser import JsonParser
from tidemill.reading.parse.schema import ParsedColumn, ParseSchema

MOST_COLUMNS = 500
_DEPTH = 5
"""Objects deeper than this are text."""
RECORD = ("_key", "_partition", "_offset", "_timestamp", "_headers", "_value")
_TIME = pa.timestamp("us")
"""Of ``_timestamp``, in UTC."""
_ZONED = pa.timestamp("us", tz="UTC")
"""As what a time in a value is parsed: it can have a zone."""
_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_RECORD_TYPES = {
    "_key": pa.binary(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": _TIME,
    "_headers": _HEADERS,
    "_value": pa.binary(),
}
_ENVELOPE = {"before", "after", "op"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a topic.

    Attributes:
        fields: the columns of values, by name.
        text_keys: whether all keys of the sample are text; then ``_key`` is.
        captured: whether values are envelopes of change data capture.
        sampled: how many records these are taken from; 0 if the columns were declared.
        record_bytes: how large a record is on average.
    """

    fields: Mapping[str, pa.DataType]
    text_keys: bool = True
    captured: bool = False
    sampled: int = 0
    record_bytes: float = 100.0


@dataclass
class Misfits:
    """Values that do not fit the columns: their rows have nulls there.

    Attributes:
        count: how many.
        first: the place of the first one, and why.
    """

    count: int = 0
    first: str = ""


def shape_of(keys: Iterable[bytes | None], values: Sequence[bytes | None]) -> Shape:
    """Return the columns that a sample has."""
    objects, size = [], 0
    for value in values:
        size += len(value or b"")
        try:
            found = json.loads(value) if value is not None else None
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            objects.append(found)
    text = all(_is_text(key) for key in keys)
    size_of_one = size / len(values) + 20 if values else 100.0
    captured = bool(objects) and all(each.keys() >= _ENVELOPE for each in objects)
    if captured:
        rows = [row for each in objects for row in (each["after"], each["before"]) if row]
        row = _object_type([each for each in rows if isinstance(each, dict)], _DEPTH)
        fields = {"after": row, "before": row, "op": pa.string()} if row is not None else {}
        return Shape(fields, text, row is not None, len(values), size_of_one)
    kind = _object_type(objects, _DEPTH)
    fields = {} if kind is None else {f.name: f.type for f in kind}
    return Shape(fields, text, False, len(values), size_of_one)


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _object_type(objects: Sequence[dict[str, Any]], depth: int) -> pa.StructType | None:
    """Return the type of objects; None if they have no fields. Names differ in more than case."""
    names: dict[str, str] = {}
    for each in objects:
        for name in each:
            names.setdefault(name.lower(), name)
    kept = list(names.values())[:MOST_COLUMNS]
    if not kept:
        return None
    return pa.struct([(n, _type_of([e[n] for e in objects if n in e], depth - 1)) for n in kept])


def _type_of(values: Sequence[Any], depth: int) -> pa.DataType:
    """Return the type that takes all values. Text takes any value of JSON as it is written."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in there):
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if kinds == {dict} and depth > 0:
        return _object_type(there, depth) or pa.string()
    if kinds == {list} and depth > 0:
        inner = [item for value in there for item in value]
        return pa.list_(_type_of(inner, depth - 1)) if inner else pa.string()
    return pa.string()


class Columns:
    """Makes the columns that a statement uses from batches of records.

    Args:
        shape: the columns of the topic.
        wanted: lower-case names that the statement uses; None for all.
        misfits: counts the values that don't fit.

    Attributes:
        shape: the columns of the topic.
        record: the columns of the record that are made.
        schema: all columns that are made.
    """

    def __init__(self, shape: Shape, wanted: Collection[str] | None, misfits: Misfits) -> None:
        self.shape = shape
        self._misfits = misfits
        named = [
            (name, kind)
            for name, kind in shape.fields.items()
            if wanted is None or shape.captured or name.lower() in wanted
        ]
        self.record = [name for name in RECORD if wanted is None or name in wanted]
        self._key_type = pa.string() if shape.text_keys else pa.binary()
        self._parser: JsonParser | None = None
        if named:
            made = tuple(
                ParsedColumn(n, str(k).upper(), _ZONED if k == _TIME else k) for n, k in named
            )
            self._parser = JsonParser(ParseSchema(made), (True,) * len(made))
        fields = [(_free(name), kind) for name, kind in named]
        fields += [(n, self._key_type if n == "_key" else _RECORD_TYPES[n]) for n in self.record]
        self.schema = pa.schema(fields)

    @property
    def needs_headers(self) -> bool:
        """Whether records must be read with their headers."""
        return "_headers" in self.record

    def make(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of a batch of records."""
        values = self._values(batch) if self._parser is not None else []
        arrays = [array.view(_TIME) if array.type == _ZONED else array for array in values]
        for name in self.record:
            array = batch.column(name.removeprefix("_"))
            if name == "_key" and self._key_type == pa.string():
                array = self._text(array)
            elif name == "_timestamp":
                array = array.view(_TIME)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _values(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the parsed columns; rows without a value, or with another shape, have nulls."""
        assert self._parser is not None
        values = batch.column("value")
        parsed = self._parser.parse(values)
        if not parsed.reasons:
            return list(parsed.columns)
        bad = [index for index, _ in parsed.reasons if values[index].is_valid]
        if bad:
            if not self._misfits.count:
                why = next(reason for index, reason in parsed.reasons if index == bad[0])
                place = f"{batch.column('topic')[bad[0]]}-{batch.column('partition')[bad[0]]}"
                self._misfits.first = f"{place} offset {batch.column('offset')[bad[0]]}: {why}"
            self._misfits.count += len(bad)
        refused = {index for index, _ in parsed.reasons}
        taken, following = [], 0
        for index in range(batch.num_rows):
            taken.append(None if index in refused else following)
            following += index not in refused
        places = pa.array(taken, pa.int64())
        return [column.take(places) for column in parsed.columns]

    def _text(self, keys: pa.Array) -> pa.Array:
        text = keys.view(pa.string())  # cast would import pyarrow.compute
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:  # the sample had none of these
            shown = [None if k is None else k.decode(errors="replace") for k in keys.to_pylist()]
            return pa.array(shown, pa.string())
        return text


def _free(name: str) -> str:
    """Return the name of a column of values: a field with the name of a record's gets a prefix."""
    return f"value.{name}" if name.lower() in RECORD else name
