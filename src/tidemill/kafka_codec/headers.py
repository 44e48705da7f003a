"""Lengths and headers, which come before a body: API key, version, correlation and client id.

Sans-IO. Sources: Kafka protocol guide; KIP-482 (flexible versions), KIP-511 (ApiVersions).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidemill.errors import ProtocolError
from tidemill.kafka_codec import primitives
from tidemill.kafka_codec.declared import API_VERSIONS, is_flexible
from tidemill.kafka_codec.primitives import Buffer, skip_tags
from tidemill.parts import Part

_FIXED_HEADER = struct.Struct(">hhi")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_JOINED_BYTES = 512
"""A body up to this size is copied behind its header. A part of its own would cost more."""


# --- a server's half -----------------------------------------------------------------------------


def peek_header(frame: Buffer) -> tuple[int, int, int]:
    """Read the part of a request that all versions share: API key, version and correlation id.

    Raises:
        ProtocolError: the frame has fewer than eight bytes.
    """
    try:
        return _FIXED_HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes is shorter than any header") from None


def parse_header(frame: Buffer, api_key: int, version: int) -> tuple[str, int]:
    """Read the rest of the header (v1 or v2) of a request whose key and version are known.

    Returns:
        The client id (empty for null) and the position of the body.

    Raises:
        ProtocolError: the frame ends in the header, or the client id is not UTF-8.
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
        position = _skip_tags(frame, position, "request")
    return client_id, position


def _text(content: Buffer) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the client id is not UTF-8: {error}") from None


def _skip_tags(frame: Buffer, position: int, kind: str) -> int:
    try:
        if frame[position] == 0:
            return position + 1
        position, _ = skip_tags(frame, position, len(frame), primitives.MAX_ELEMENTS)
    except IndexError:
        raise ProtocolError(f"the {kind} ends in its header") from None
    return position


def frame_response(
    api_key: int, version: int, correlation_id: int, body: Sequence[Part]
) -> list[Part]:
    """Return length, response header and body as parts to be sent in order."""
    flexible = _is_response_header_flexible(api_key, version)
    if len(body) == 1 and isinstance(body[0], bytes) and len(body[0]) <= _JOINED_BYTES:
        size = len(body[0]) + (5 if flexible else 4)
        head = _SIZE_AND_CORRELATION.pack(size, correlation_id)
        return [head + b"\0" + body[0] if flexible else head + body[0]]
    size = sum(map(len, body)) + (5 if flexible else 4)
    head = _SIZE_AND_CORRELATION.pack(size, correlation_id)
    return [head + b"\0" if flexible else head, *body]


def _is_response_header_flexible(api_key: int, version: int) -> bool:
    return api_key != API_VERSIONS and is_flexible(api_key, version)


# --- a client's half -----------------------------------------------------------------------------


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return the header of a request, which its length precedes and its body follows.

    Args:
        client_id: the name of the client; None sends null.
    """
    head = _FIXED_HEADER.pack(api_key, version, correlation_id)
    if client_id is None:
        head += _I16.pack(-1)
    else:
        name = client_id.encode()
        head += _I16.pack(len(name)) + name
    if is_flexible(api_key, version):
        head += b"\0"  # no tagged fields
    return head


def parse_response_header(frame: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """Read the header of a response to a request of this key and version.

    Returns:
        The correlation id and the position of the body.

    Raises:
        ProtocolError: the frame ends in the header.
    """
    if len(frame) < _I32.size:
        raise ProtocolError("the response ends in its header")
    (correlation_id,) = _I32.unpack_from(frame)
    position = _I32.size
    if _is_response_header_flexible(api_key, version):
        position = _skip_tags(frame, position, "response")
    return correlation_id, position
