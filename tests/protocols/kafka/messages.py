"""Sample messages of any API and version: as plain trees, as kio's dataclasses and as bytes."""

from __future__ import annotations

import dataclasses
import datetime
import io
from collections.abc import Sequence
from typing import Any, cast, get_args
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tidemill.kafka_codec.fields import Field, Structure
from tidemill.kafka_codec.primitives import FIXED_FORMATS
from tidemill.kafka_codec.reader import Message
from tidemill.kafka_codec.schema import structure_of, to_wire
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.parts import Part

BITS = {"b": 7, "h": 15, "i": 31, "q": 63, "B": 8, "H": 16, "I": 32, "Q": 64}
A_DAY_IN_2026 = 1_790_000_000_123

# --- records -------------------------------------------------------------------------------------


def one_batch(
    value: bytes = b"hello", records: int = 1, timestamp: int = 1_700_000_000_000
) -> bytes:
    """Return a batch of records with this value, as a producer builds it."""
    return bytes(encode_batch([NewRecord(None, value)] * records, timestamp_ms=timestamp))


# --- trees ---------------------------------------------------------------------------------------


def full_tree(entity: type[Any], size: int = 2) -> dict[str, Any]:
    """Set every field to something other than its default; arrays have ``size`` elements."""
    return _full_tree(structure_of(entity), size)


def _full_tree(structure: Structure, size: int) -> dict[str, Any]:
    return {spec.name: _full(spec, size) for spec in structure.fields}


def _full(spec: Field, size: int) -> Any:
    if spec.is_array:
        return [_full_item(spec, size, index) for index in range(size)]
    return _full_item(spec, size, 0)


def _full_item(spec: Field, size: int, index: int) -> Any:
    if spec.structure is not None:
        return _full_tree(spec.structure, size)
    samples = {
        "string": f"{spec.name}-ä-{index}",
        **dict.fromkeys(("bytes", "records"), bytes([index]) * 5),
        "uuid": UUID(int=0x1234 + index),
        "bool": True,
        "float64": 1.5,
        "error_code": 3,
        "datetime_i64": A_DAY_IN_2026,
    }
    return samples.get(spec.kafka_type, 11 + index)


def null_tree(entity: type[Any]) -> dict[str, Any]:
    """Set null wherever the schema allows it, else as ``full_tree`` does."""
    return _null_tree(structure_of(entity))


def _null_tree(structure: Structure) -> dict[str, Any]:
    tree = _full_tree(structure, 1)
    for spec in structure.fields:
        if spec.nullable and spec.tag is None and spec.kafka_type not in ("uuid", "datetime_i64"):
            tree[spec.name] = None
        elif spec.structure is not None:
            inner = _null_tree(spec.structure)
            tree[spec.name] = [inner] if spec.is_array else inner
    return tree


def trees(entity: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate any tree that the schema allows."""
    return _trees(structure_of(entity))


def _trees(structure: Structure) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({spec.name: _any(spec) for spec in structure.fields})


def _integers(code: str) -> st.SearchStrategy[int]:
    top = 2 ** BITS[code]
    return st.integers(0 if code.isupper() else -top, top - 1)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{kind: _integers(code) for kind, code in FIXED_FORMATS.items() if code in BITS},
    "string": st.text(st.characters(codec="utf-8"), max_size=20),
    **dict.fromkeys(("bytes", "records"), st.binary(max_size=200)),
    "uuid": st.uuids(),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "error_code": st.sampled_from([0, 3, 35, -1, 100]),
    "datetime_i64": st.integers(0, 4_000_000_000_000),
    "timedelta_i64": st.integers(-(2**40), 2**40),
}


def _any(spec: Field) -> st.SearchStrategy[Any]:
    item = _VALUES[spec.kafka_type] if spec.structure is None else _trees(spec.structure)
    if spec.is_array:
        item = st.lists(item, max_size=3)
    if spec.nullable and spec.tag is None and spec.kafka_type not in ("uuid", "datetime_i64"):
        return st.none() | item
    return item


# --- kio -----------------------------------------------------------------------------------------


def to_kio(entity: type[Any], tree: dict[str, Any]) -> Any:
    """Build kio's dataclass from a tree; missing fields get the defaults of our encoder."""
    return entity(
        **{
            spec.name: _to_kio(entity, spec, tree.get(spec.name, spec.default))
            for spec in structure_of(entity).fields
        }
    )


def _to_kio(entity: type[Any], spec: Field, value: Any) -> Any:
    if value is None:
        return None
    if spec.is_array:
        return tuple(_item_to_kio(entity, spec, item) for item in value)
    return _item_to_kio(entity, spec, value)


def _item_to_kio(entity: type[Any], spec: Field, value: Any) -> Any:
    if spec.structure is not None:
        return to_kio(nested_type(entity, spec.name), value)
    if spec.kafka_type == "error_code":
        return ErrorCode(value)
    if spec.kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if spec.kafka_type == "datetime_i64":
        if value == -1 and spec.nullable:
            return None
        return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
            milliseconds=value
        )
    return value


def nested_type(entity: type[Any], name: str) -> type[Any]:
    """Return the dataclass in a field's annotation, such as ``tuple[X, ...] | None``."""
    annotation = next(field.type for field in dataclasses.fields(entity) if field.name == name)
    while not dataclasses.is_dataclass(annotation):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return cast(type[Any], annotation)


def from_kio(message: Any) -> dict[str, Any]:
    """Return a kio message as a tree of wire values: lists for tuples, the zero UUID as UUID."""
    return {
        spec.name: _from_kio(spec, getattr(message, spec.name))
        for spec in structure_of(type(message)).fields
    }


def _from_kio(spec: Field, value: Any) -> Any:
    if spec.is_array:
        return None if value is None else [_item_from_kio(spec, item) for item in value]
    return _item_from_kio(spec, value)


def _item_from_kio(spec: Field, value: Any) -> Any:
    if spec.kafka_type == "uuid":
        return UUID(int=0) if value is None else value
    if value is None and spec.kafka_type != "datetime_i64":
        return None
    if spec.structure is not None:
        return from_kio(value)
    if spec.kafka_type in FIXED_FORMATS:
        return to_wire(spec.kafka_type, value)
    return value


def as_tree(entity: type[Any], message: Message) -> dict[str, Any]:
    """Return a decoded message as ``from_kio`` returns kio's of the same bytes."""
    return _as_tree(structure_of(entity), message)


def _as_tree(structure: Structure, message: Message) -> dict[str, Any]:
    tree = message.as_tree()
    for spec in structure.fields:
        value = getattr(message, spec.name)
        if spec.kafka_type == "uuid" and value is None:
            tree[spec.name] = UUID(int=0)
        elif spec.structure is not None and value is not None:
            tree[spec.name] = (
                [_as_tree(spec.structure, item) for item in value]
                if spec.is_array
                else _as_tree(spec.structure, value)
            )
    return tree


def kio_bytes(entity: type[Any], tree: dict[str, Any]) -> bytes:
    """Encode a tree with kio's own writer."""
    out = io.BytesIO()
    entity_writer(entity)(out, to_kio(entity, tree))
    return out.getvalue()


def kio_read(entity: type[Any], body: bytes) -> Any:
    """Decode bytes with kio's own reader, which must read them to their end."""
    message, end = entity_reader(entity)(bytes(body), 0)
    assert end == len(body)
    return message


def joined(parts: Sequence[Part]) -> bytes:
    """Return the bytes of a response without ranges of files."""
    buffers = [part for part in parts if isinstance(part, bytes | bytearray | memoryview)]
    assert len(buffers) == len(parts)
    return b"".join(buffers)
