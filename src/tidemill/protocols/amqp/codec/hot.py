"""Writes by hand what each message costs: deliveries, returns, and confirms.

Knows frames only: no channel's state and no engine.
"""

from __future__ import annotations

import struct

_DELIVER = struct.Struct(">QB").pack
_METHOD = struct.Struct(">BHII").pack
_HEADER = struct.Struct(">BHIIQ").pack
_BODY = struct.Struct(">BHI").pack
_SETTLED = struct.Struct(">BHIIQBB").pack

_DELIVER_NUMBER = 60 << 16 | 60
_GET_OK_NUMBER = 60 << 16 | 71
_RETURN_NUMBER = 60 << 16 | 50
_ACK_NUMBER = 60 << 16 | 80
_NACK_NUMBER = 60 << 16 | 120
_BASIC = 60 << 16
LARGE_BYTES = 8192
"""A body of this size or more is not copied into one buffer with its frames."""

Body = bytes | memoryview


def route(exchange: bytes, key: bytes) -> bytes:
    """Encode exchange and routing key, each at most 255 bytes."""
    exchange, key = exchange[:255], key[:255]
    return b"%c%b%c%b" % (len(exchange), exchange, len(key), key)


def deliver(
    channel: int,
    consumer_tag: bytes,
    tag: int,
    redelivered: bool,
    route_: bytes,
    properties: bytes,
    body: Body,
    frame_max: int,
) -> list[Body]:
    """Encode basic.deliver with its content.

    Args:
        consumer_tag: with its length.
        route_: see ``route``.
        properties: flags and values.
        frame_max: the largest frame that the client accepts.
    """
    size = 13 + len(consumer_tag) + len(route_)
    start = b"%b%b%b%b\xce" % (
        _METHOD(1, channel, size, _DELIVER_NUMBER),
        consumer_tag,
        _DELIVER(tag, redelivered),
        route_,
    )
    return content(start, channel, properties, body, frame_max)


def get_ok(
    channel: int,
    tag: int,
    redelivered: bool,
    route_: bytes,
    remaining: int,
    properties: bytes,
    body: Body,
    frame_max: int,
) -> list[Body]:
    """Encode basic.get-ok with its content."""
    payload = _DELIVER(tag, redelivered) + route_ + min(remaining, 2**32 - 1).to_bytes(4, "big")
    start = _METHOD(1, channel, 4 + len(payload), _GET_OK_NUMBER) + payload + b"\xce"
    return content(start, channel, properties, body, frame_max)


def returned(
    channel: int,
    code: int,
    text: bytes,
    route_: bytes,
    properties: bytes,
    body: Body,
    frame_max: int,
) -> list[Body]:
    """Encode basic.return with its content."""
    payload = b"%b%c%b%b" % (code.to_bytes(2, "big"), len(text), text, route_)
    start = _METHOD(1, channel, 4 + len(payload), _RETURN_NUMBER) + payload + b"\xce"
    return content(start, channel, properties, body, frame_max)


def content(
    start: bytes, channel: int, properties: bytes, body: Body, frame_max: int
) -> list[Body]:
    """Encode a method frame that is given, a header, and a body in as many frames as it needs."""
    size = len(body)
    header = _HEADER(2, channel, 12 + len(properties), _BASIC, size)
    if not size:
        return [b"%b%b%b\xce" % (start, header, properties)]
    if size < LARGE_BYTES and size + 8 <= frame_max:
        before = b"%b%b%b\xce%b" % (start, header, properties, _BODY(3, channel, size))
        return [b"".join((before, body, b"\xce"))]
    parts: list[Body] = [b"%b%b%b\xce" % (start, header, properties)]
    largest, view = frame_max - 8, memoryview(body)
    for at in range(0, size, largest):
        chunk = view[at : at + largest]
        parts += (_BODY(3, channel, len(chunk)), chunk, b"\xce")
    return parts


def settled(channel: int, tag: int, *, ok: bool, multiple: bool) -> bytes:
    """Encode basic.ack or basic.nack for a publisher with confirms."""
    number = _ACK_NUMBER if ok else _NACK_NUMBER
    return _SETTLED(1, channel, 13, number, tag, multiple, 0xCE)
