"""Bytes <-> messages: request headers, guarded decoding through kio, responses from dict trees.

Sans-IO: no sockets, no clock, no broker. Which versions are offered is decided in ``apis``.

Sources: Kafka protocol guide; KIP-482 (flexible versions), KIP-511 (ApiVersions).
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

from kio.serial import entity_reader

from tidemill.errors import ProtocolError
from tidemill.kafka import guard
from tidemill.kafka.encode import Tree, encode_tree
from tidemill.kafka.schema import API_VERSIONS, cached, is_flexible, request_type

Buffer: TypeAlias = bytes | bytearray | memoryview

_FIXED_HEADER = struct.Struct(">hhi")
_I16 = struct.Struct(">h")
_SIZE_AND_CORRELATION = struct.Struct(">ii")


def peek_header(frame: Buffer) -> tuple[int, int, int]:
    """API key, version and correlation id: the part of a request that all versions share.

    Raises:
        ProtocolError: fewer than eight bytes.
    """
    try:
        return _FIXED_HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes is shorter than any header") from None


def parse_header(frame: Buffer, api_key: int, version: int) -> tuple[str, int]:
    """The rest of the header (v1 or v2) of a request whose key and version are known.

    Returns:
        The client id (empty where it is null) and the position of the body.

    Raises:
        ProtocolError: torn, or the client id is not UTF-8.
    """
    position = _FIXED_HEADER.size + 2
    if len(frame) < position:
        raise ProtocolError("the request ends in its header")
    (length,) = _I16.unpack_from(frame, _FIXED_HEADER.size)
    if length < -1 or position + length > len(frame):
        raise ProtocolError(f"client id of {length} bytes in a request of {len(frame)}")
    client_id = ""
    if length > 0:
        client_id = _text(frame[position : position + length])
        position += length
    if is_flexible(api_key, version):
        position = _skip_tags(frame, position)
    return client_id, position


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
