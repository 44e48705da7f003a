"""Sample messages of any API and version, as plain trees and as kio's dataclasses and bytes."""

from __future__ import annotations

import datetime
import io
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tidemill.kafka.schema import FIXED_FORMATS, FieldSpec, fields_of, to_wire

BITS = {"b": 7, "h": 15, "i": 31, "q": 63, "B": 8, "H": 16, "I": 32, "Q": 64}
A_DAY_IN_2026 = 1_790_000_000_123

# --- trees ---------------------------------------------------------------------------------------


def full_tree(entity: type[Any], size: int = 2) -> dict[str, Any]:
    """Every field set to something other than its default; arrays of ``size``."""
    return {spec.name: _full(spec, size) for spec in fields_of(entity)}


def _full(spec: FieldSpec, size: int) -> Any:
    if spec.is_array:
        return [_full_item(spec, size, index) for index in range(size)]
    return _full_item(spec, size, 0)


def _full_item(spec: FieldSpec, size: int, index: int) -> Any:
    if spec.struct is not None:
        return full_tree(spec.struct, size)
    kind = spec.kafka_type
    if kind == "string":
        return f"{spec.name}-ä-{index}"
    if kind in ("bytes", "records"):
        return bytes([index]) * 5
    if kind == "uuid":
        return UUID(int=0x1234 + index)
    if kind == "bool":
        return True
    if kind == "float64":
        return 1.5
    if kind == "error_code":
        return 3
    return A_DAY_IN_2026 if kind == "datetime_i64" else 11 + index


def null_tree(entity: type[Any]) -> dict[str, Any]:
    """Null wherever the schema allows it, else full."""
    tree = full_tree(entity, 1)
    for spec in fields_of(entity):
        if spec.nullable and spec.tag is None and spec.kafka_type not in ("uuid", "datetime_i64"):
            tree[spec.name] = None
        elif spec.struct is not None:
            inner = null_tree(spec.struct)
            tree[spec.name] = [inner] if spec.is_array else inner
    return tree


def trees(entity: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any tree that the schema allows."""
    return st.fixed_dictionaries({spec.name: _any(spec) for spec in fields_of(entity)})


def _any(spec: FieldSpec) -> st.SearchStrategy[Any]:
    if spec.struct is not None:
        item: st.SearchStrategy[Any] = trees(spec.struct)
    elif spec.kafka_type == "string":
        item = st.text(st.characters(codec="utf-8"), max_size=20)
    elif spec.kafka_type in ("bytes", "records"):
        item = st.binary(max_size=200)
    elif spec.kafka_type == "uuid":
        item = st.uuids()
    elif spec.kafka_type == "bool":
        item = st.booleans()
    elif spec.kafka_type == "float64":
        item = st.floats(allow_nan=False)
    elif spec.kafka_type == "error_code":
        item = st.sampled_from([0, 3, 35, -1, 100])
    elif spec.kafka_type == "datetime_i64":
        item = st.integers(0, 4_000_000_000_000)
    elif spec.kafka_type == "timedelta_i64":
        item = st.integers(-(2**40), 2**40)
    else:
        code = FIXED_FORMATS[spec.kafka_type]
        top = 2 ** BITS[code]
        item = st.integers(0 if code.isupper() else -top, top - 1)
    if spec.is_array:
        item = st.lists(item, max_size=3)
    if spec.nullable and spec.tag is None and spec.kafka_type not in ("uuid", "datetime_i64"):
        return st.none() | item
    return item


# --- kio -----------------------------------------------------------------------------------------


def to_kio(entity: type[Any], tree: dict[str, Any]) -> Any:
    """kio's dataclass of a tree; missing fields get the defaults that our encoder gives them."""
    values = {
        spec.name: _to_kio(spec, tree.get(spec.name, spec.default)) for spec in fields_of(entity)
    }
    return entity(**values)


def _to_kio(spec: FieldSpec, value: Any) -> Any:
    if value is None:
        return None
    if spec.is_array:
        return tuple(_item_to_kio(spec, item) for item in value)
    return _item_to_kio(spec, value)


def _item_to_kio(spec: FieldSpec, value: Any) -> Any:
    if spec.struct is not None:
        return to_kio(spec.struct, value)
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


def from_kio(message: Any) -> dict[str, Any]:
    """A kio message as a tree of wire values (sequences as lists, the zero UUID as UUID)."""
    return {spec.name: _from_kio(spec, message) for spec in fields_of(type(message))}


def _from_kio(spec: FieldSpec, message: Any) -> Any:
    value = getattr(message, spec.name)
    if spec.is_array:
        return None if value is None else [_item_from_kio(spec, item) for item in value]
    return _item_from_kio(spec, value)


def _item_from_kio(spec: FieldSpec, value: Any) -> Any:
    if spec.kafka_type == "uuid":
        return UUID(int=0) if value is None else value
    if value is None and spec.kafka_type != "datetime_i64":
        return None
    if spec.struct is not None:
        return from_kio(value)
    if spec.kafka_type in FIXED_FORMATS:
        return to_wire(spec.kafka_type, value)
    return value


def kio_bytes(entity: type[Any], tree: dict[str, Any]) -> bytes:
    """What kio's own writer makes of a tree."""
    out = io.BytesIO()
    entity_writer(entity)(out, to_kio(entity, tree))
    return out.getvalue()


def kio_read(entity: type[Any], body: bytes) -> Any:
    """What kio's reader makes of bytes; they must be read to their end."""
    message, end = entity_reader(entity)(bytes(body), 0)
    assert end == len(body)
    return message
