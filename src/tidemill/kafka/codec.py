"""Bytes <-> messages: request headers, guarded decoding through kio, responses from dict trees.

Sans-IO: no sockets, no clock, no broker. Which versions are offered is decided in ``apis``.

Sources: Kafka protocol guide; KIP-482 (flexible versions), KIP-511 (ApiVersions).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeAlias

from kio.serial import entity_reader

from tidemill.errors import ProtocolError
from tidemill.kafka import guard
from tidemill.kafka.encode import Tree, encode_tree
from tidemill.kafka.schema import API_VERSIONS, cached, is_flexible, request_type

Buffer: TypeAlias = bytes | bytearray | memoryview

_FIXED_HEADER = struct.Struct(">hhi")
_I16 = struct.Struct(">h")
_SIZE_AND_CORRELATION = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    """Request header v1 or v2 (v2 adds tagged fields, which carry nothing today)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    """Empty where it is null."""
    body: int
    """Position of the body in the frame; -1 where only the fixed part was read."""


def peek_header(frame: Buffer) -> RequestHeader:
    """The part that all versions share: key, version and correlation id.

    Raises:
        ProtocolError: fewer than eight bytes.
    """
    if len(frame) < _FIXED_HEADER.size:
        raise ProtocolError(f"a request of {len(frame)} bytes is shorter than any header")
    api_key, api_version, correlation_id = _FIXED_HEADER.unpack_from(frame)
    return RequestHeader(api_key, api_version, correlation_id, client_id="", body=-1)


def parse_header(frame: Buffer) -> RequestHeader:
    """The whole header of a request whose key and version kio knows.

    Raises:
        ProtocolError: torn, or the client id is not UTF-8.
    """
    api_key, api_version, correlation_id, _, _ = peek_header(frame)
    position = _FIXED_HEADER.size
    if len(frame) < position + 2:
        raise ProtocolError("the request ends in its header")
    (length,) = _I16.unpack_from(frame, position)
    position += 2
    if length < -1 or position + length > len(frame):
        raise ProtocolError(f"client id of {length} bytes in a request of {len(frame)}")
    client_id = ""
    if length > 0:
        client_id = _text(frame[position : position + length])
        position += length
    if is_flexible(api_key, api_version):
        position = _skip_tags(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def _text(content: Buffer) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the client id is not UTF-8: {error}") from None


def _skip_tags(frame: Buffer, position: int) -> int:
    try:
        if frame[position] == 0:
            return position + 1
        view = memoryview(frame)
        count, position = guard.read_uvarint(view, position)
        for _ in range(count):
            _, position = guard.read_uvarint(view, position)
            size, position = guard.read_uvarint(view, position)
            position += size
    except IndexError:
        raise ProtocolError("the request ends in its header") from None
    if position > len(frame):
        raise ProtocolError("the request ends in its header")
    return position


@cached
def _reader(api_key: int, version: int) -> Any:
    return entity_reader(request_type(api_key, version))


def decode_request(api_key: int, version: int, frame: Buffer, position: int) -> Any:
    """kio's request dataclass of this version, from the body at ``position`` to the frame's end.

    Raises:
        ProtocolError: the body is not exactly one such request.
    """
    buffer = bytes(frame)
    entity = request_type(api_key, version)
    rewritten = guard.check(entity, buffer, position)
    if rewritten is not None:
        buffer, position = rewritten, 0
    try:
        request, size = _reader(api_key, version)(buffer, position)
    except Exception as error:
        # kio's own errors, and ValueError, OverflowError and TypeError for odd values.
        raise ProtocolError(f"{type(error).__name__}: {error}") from error
    if position + size != len(buffer):
        raise ProtocolError(f"the body was read up to {position + size} of {len(buffer)} bytes")
    return request


def encode_response(api_key: int, version: int, tree: Tree) -> bytearray:
    """The body of a response from a dict tree keyed by kio's field names.

    - Times, durations and error codes are plain ints (milliseconds, Kafka's numbers).
    - Keys that this version lacks are left out; missing ones get the protocol's default.

    Raises:
        UnknownFieldError: a key exists in no version of this response.
        EncodeError: a value does not fit its field.
    """
    return encode_tree(api_key, version, tree)


def frame_response(
    api_key: int, version: int, correlation_id: int, body: list[Buffer]
) -> list[Buffer]:
    """Length, response header and body, as buffers to be written in order."""
    flexible = api_key != API_VERSIONS and is_flexible(api_key, version)
    size = sum(map(len, body)) + (5 if flexible else 4)
    head = _SIZE_AND_CORRELATION.pack(size, correlation_id)
    return [head + b"\0" if flexible else head, *body]
