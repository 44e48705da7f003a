"""The columns of a topic: those of the record, and those that its values seem to have.

A few records at the beginning and at the end of partitions are the sample. Must not know: DuckDB,
clients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.reading.parse.fields import FieldParser, fields_of, objects_in

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
OF_CHANGES = ("_op", "_deleted")
"""More columns of the record, if it is a change of a captured row."""
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

    def warning(self) -> str:
        """Return a warning about them."""
        what = "value does" if self.count == 1 else "values do"
        return (
            f"{self.count} {what} not fit the columns, which are null there; "
            f"the first: {self.first}"
        )


def shape_of(keys: Iterable[bytes | None], values: Sequence[bytes | None]) -> Shape:
    """Return the columns that a sample has."""
    objects = objects_in(values)
    text = all(_is_text(key) for key in keys)
    size = sum(len(value or b"") for value in values) / len(values) + 20 if values else 100.0
    if objects and all(each.keys() >= _ENVELOPE for each in objects):
        rows = [row for each in objects for row in (each["after"], each["before"])]
        fields = fields_of([row for row in rows if isinstance(row, dict)])
        if fields:
            row = pa.struct(list(fields.items()))
            envelope = {"after": row, "before": row, "op": pa.string()}
            return Shape(envelope, text, True, len(values), size)
    return Shape(fields_of(objects), text, False, len(values), size)


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


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
            if wanted is None or shape.captured or column_name(name).lower() in wanted
        ]
        self.record = [name for name in RECORD if wanted is None or name in wanted]
        self._key_type = pa.string() if shape.text_keys else pa.binary()
        parsed = {name: _ZONED if kind == _TIME else kind for name, kind in named}
        self._parser = FieldParser(parsed) if parsed else None
        fields = [(column_name(name), kind) for name, kind in named]
        fields += [(n, self._key_type if n == "_key" else _RECORD_TYPES[n]) for n in self.record]
        self.schema = pa.schema(fields)

    @property
    def needs_headers(self) -> bool:
        """Whether records must be read with their headers."""
        return "_headers" in self.record

    def make(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of a batch of records."""
        values = self._values(batch)
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
        if self._parser is None:
            return []
        arrays, reasons = self._parser.parse(batch.column("value"))
        if reasons and not self._misfits.count:
            index, why = reasons[0]
            place = f"{batch.column('topic')[index]}-{batch.column('partition')[index]}"
            self._misfits.first = f"{place} offset {batch.column('offset')[index]}: {why}"
        self._misfits.count += len(reasons)
        return arrays

    def _text(self, keys: pa.Array) -> pa.Array:
        text = keys.view(pa.string())  # cast would import pyarrow.compute
        try:
            text.validate(full=True)
        except pa.ArrowInvalid:  # the sample had none of these
            shown = [None if k is None else k.decode(errors="replace") for k in keys.to_pylist()]
            return pa.array(shown, pa.string())
        return text


def column_name(name: str, taken: Collection[str] = RECORD) -> str:
    """Return the column of a field: one with the name of a record's column gets a prefix."""
    return f"value.{name}" if name.lower() in taken else name
