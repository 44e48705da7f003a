"""Requests and answers of the Kafka protocol as dict trees, shaped by kio's dataclasses.

For the few APIs that librdkafka does not offer. kio's own reader is not used for answers: it
refuses a time of -1 ("none"), which brokers send, and allocates what a length announces. Here
times are milliseconds, error codes numbers, and nothing is taken that is not there. Sans-IO; knows
no API by name.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.serial import entity_writer

from tidemill.errors import ProtocolError
from tidemill.kafka.schema import (
    FIXED_FORMATS,
    FieldSpec,
    fields_of,
    is_flexible,
    request_type,
    response_type,
)

Tree = Mapping[str, Any]
API_VERSIONS = 18


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str, tree: Tree
) -> bytes:
    """A request frame without its length.

    Keys that this version lacks are left out; what is missing gets the protocol's default.
    """
    entity = request_type(api_key, version)
    name = client_id.encode()
    head = struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name
    if entity.__flexible__:
        head += b"\0"  # no tagged fields

    body = io.BytesIO()
    entity_writer(entity)(body, _build(entity, tree))
    return head + body.getvalue()


def _build(entity: type[Any], tree: Tree) -> Any:
    known = {field.name: field for field in fields_of(entity)}
    return entity(
        **{name: _value(known[name], value) for name, value in tree.items() if name in known}
    )


def _value(field: FieldSpec, value: Any) -> Any:
    if field.is_array and value is not None:
        return tuple(_build(field.struct, each) if field.struct else each for each in value)
    if field.struct is not None and value is not None:
        return _build(field.struct, value)
    if field.kafka_type.startswith("timedelta"):
        return timedelta(milliseconds=value)
    return value


def decode_response(api_key: int, version: int, frame: bytes) -> tuple[int, dict[str, Any]]:
    """(correlation id, body) of an answer frame without its length.

    Raises:
        ProtocolError: it is no such answer.
    """
    reader = _Reader(frame)
    try:
        correlation_id = reader.number("i")
        flexible = is_flexible(api_key, version)
        if flexible and api_key != API_VERSIONS:
            reader.tags({})
        return correlation_id, reader.entity(response_type(api_key, version))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"an answer that can't be read: {error}") from None


class _Reader:
    """Takes one field after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(">" + form, self._data, self._position)
        self._position += struct.calcsize(">" + form)
        return value

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ProtocolError("a torn answer")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte: int = self.number("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ProtocolError("a varint is longer than five bytes")

    def _length(self, form: str, flexible: bool) -> int:
        return self._uvarint() - 1 if flexible else int(self.number(form))

    def tags(self, known: Mapping[int, FieldSpec]) -> dict[str, Any]:
        """Tagged fields; those that are not known are passed over (KIP-482)."""
        found: dict[str, Any] = {}
        for _ in range(self._uvarint()):
            tag, size = self._uvarint(), self._uvarint()
            content = self._take(size)
            if tag in known:
                found[known[tag].name] = _Reader(content)._field(known[tag], flexible=True)
        return found

    def entity(self, entity: type[Any]) -> dict[str, Any]:
        """One structure."""
        flexible = bool(entity.__flexible__)
        tree: dict[str, Any] = {}
        tagged: dict[int, FieldSpec] = {}
        for field in fields_of(entity):
            if field.tag is None:
                tree[field.name] = self._field(field, flexible)
            else:
                tagged[field.tag] = field
                tree[field.name] = field.default
        if flexible:
            tree |= self.tags(tagged)
        return tree

    def _field(self, field: FieldSpec, flexible: bool) -> Any:
        if not field.is_array:
            return self._one(field, flexible)
        count = self._length("i", flexible)
        return None if count < 0 else [self._one(field, flexible) for _ in range(count)]

    def _one(self, field: FieldSpec, flexible: bool) -> Any:
        if field.struct is not None:
            if field.nullable and not field.is_array and self.number("b") < 0:
                return None
            return self.entity(field.struct)
        if field.kafka_type == "uuid":
            return UUID(bytes=self._take(16))
        code = FIXED_FORMATS.get(field.kafka_type)
        if code is not None:
            return self.number(code)
        length = self._length("h" if field.kafka_type == "string" else "i", flexible)
        if length < 0:
            return None
        content = self._take(length)
        return content.decode() if field.kafka_type == "string" else content
