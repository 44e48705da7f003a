"""Methods: their names, numbers and arguments, and how these are encoded.

A table describes them all. ``decode`` and ``encode`` interpret it, which is fast enough for what
happens once for each queue or consumer; what happens for each message is in ``frames`` and ``hot``.
Source: amqp0-9-1.xml with RabbitMQ's extensions (amqp0-9-1.extended.xml).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.protocols.amqp.codec.tables import (
    decode_table,
    encode_table,
    long_string,
    short_string,
)
from tidemill.protocols.amqp.errors import ConnectionClosedError, MalformedError

_SCHEMA = """
10.10 connection.start version_major:octet version_minor:octet server_properties:table
  mechanisms:longstr locales:longstr
10.11 connection.start-ok client_properties:table mechanism:shortstr response:longstr
  locale:shortstr
10.20 connection.secure challenge:longstr
10.21 connection.secure-ok response:longstr
10.30 connection.tune channel_max:short frame_max:long heartbeat:short
10.31 connection.tune-ok channel_max:short frame_max:long heartbeat:short
10.40 connection.open virtual_host:shortstr capabilities:shortstr insist:bit
10.41 connection.open-ok known_hosts:shortstr
10.50 connection.close reply_code:short reply_text:shortstr class_id:short method_id:short
10.51 connection.close-ok
10.60 connection.blocked reason:shortstr
10.61 connection.unblocked
10.70 connection.update-secret new_secret:longstr reason:shortstr
10.71 connection.update-secret-ok
20.10 channel.open out_of_band:shortstr
20.11 channel.open-ok channel_id:longstr
20.20 channel.flow active:bit
20.21 channel.flow-ok active:bit
20.40 channel.close reply_code:short reply_text:shortstr class_id:short method_id:short
20.41 channel.close-ok
40.10 exchange.declare ticket:short exchange:shortstr type:shortstr passive:bit durable:bit
  auto_delete:bit internal:bit nowait:bit arguments:table
40.11 exchange.declare-ok
40.20 exchange.delete ticket:short exchange:shortstr if_unused:bit nowait:bit
40.21 exchange.delete-ok
40.30 exchange.bind ticket:short destination:shortstr source:shortstr routing_key:shortstr
  nowait:bit arguments:table
40.31 exchange.bind-ok
40.40 exchange.unbind ticket:short destination:shortstr source:shortstr routing_key:shortstr
  nowait:bit arguments:table
40.51 exchange.unbind-ok
50.10 queue.declare ticket:short queue:shortstr passive:bit durable:bit exclusive:bit
  auto_delete:bit nowait:bit arguments:table
50.11 queue.declare-ok queue:shortstr message_count:long consumer_count:long
50.20 queue.bind ticket:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit
  arguments:table
50.21 queue.bind-ok
50.30 queue.purge ticket:short queue:shortstr nowait:bit
50.31 queue.purge-ok message_count:long
50.40 queue.delete ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit
50.41 queue.delete-ok message_count:long
50.50 queue.unbind ticket:short queue:shortstr exchange:shortstr routing_key:shortstr
  arguments:table
50.51 queue.unbind-ok
60.10 basic.qos prefetch_size:long prefetch_count:short global:bit
60.11 basic.qos-ok
60.20 basic.consume ticket:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit
  exclusive:bit nowait:bit arguments:table
60.21 basic.consume-ok consumer_tag:shortstr
60.30 basic.cancel consumer_tag:shortstr nowait:bit
60.31 basic.cancel-ok consumer_tag:shortstr
60.40 basic.publish ticket:short exchange:shortstr routing_key:shortstr mandatory:bit
  immediate:bit
60.50 basic.return reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
60.60 basic.deliver consumer_tag:shortstr delivery_tag:longlong redelivered:bit
  exchange:shortstr routing_key:shortstr
60.70 basic.get ticket:short queue:shortstr no_ack:bit
60.71 basic.get-ok delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
  message_count:long
60.72 basic.get-empty cluster_id:shortstr
60.80 basic.ack delivery_tag:longlong multiple:bit
60.90 basic.reject delivery_tag:longlong requeue:bit
60.100 basic.recover-async requeue:bit
60.110 basic.recover requeue:bit
60.111 basic.recover-ok
60.120 basic.nack delivery_tag:longlong multiple:bit requeue:bit
85.10 confirm.select nowait:bit
85.11 confirm.select-ok
90.10 tx.select
90.11 tx.select-ok
90.20 tx.commit
90.21 tx.commit-ok
90.30 tx.rollback
90.31 tx.rollback-ok
"""
"""One method on each line: its numbers, its name, and name and type of its arguments."""


class MethodSpec(NamedTuple):
    """A method of AMQP."""

    number: int
    """The class in the upper 16 bits, the method in the lower."""
    name: str
    """``class.method``."""
    fields: tuple[tuple[str, str], ...]
    """Its arguments: name and type."""


def _parse(line: str) -> MethodSpec:
    number, name, *fields = line.split()
    class_id, method_id = map(int, number.split("."))
    pairs = (field.split(":") for field in fields)
    return MethodSpec(class_id << 16 | method_id, name, tuple((n, t) for n, t in pairs))


METHODS = [_parse(line) for line in _SCHEMA.replace("\n  ", " ").strip().splitlines()]
BY_NUMBER = {spec.number: spec for spec in METHODS}
BY_NAME = {spec.name: spec for spec in METHODS}

_NUMBERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
_STRUCTS = {name: struct.Struct(layout) for name, layout in _NUMBERS.items()}
_LONG = struct.Struct(">I")
_HEAD = struct.Struct(">BHII")


class Method(NamedTuple):
    """A decoded method."""

    name: str
    arguments: Mapping[str, object]

    def text(self, name: str) -> str:
        """Return an argument that is a string."""
        value = self.arguments[name]
        assert isinstance(value, str)
        return value

    def data(self, name: str) -> bytes:
        """Return an argument that is a long string."""
        value = self.arguments[name]
        assert isinstance(value, bytes)
        return value

    def number(self, name: str) -> int:
        """Return an argument that is a number."""
        value = self.arguments[name]
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """Return an argument that is a bit."""
        return bool(self.arguments[name])

    def table(self, name: str) -> dict[str, object]:
        """Return an argument that is a table."""
        value = self.arguments[name]
        assert isinstance(value, dict)
        return value


def method_name(number: int) -> str:
    """Return the name of a method for messages; its numbers if it is unknown."""
    spec = BY_NUMBER.get(number)
    return spec.name if spec is not None else f"{number >> 16}.{number & 0xFFFF}"


def decode(payload: bytes) -> Method:
    """Decode the payload of a method frame.

    Raises:
        ConnectionClosedError: the method is unknown (540).
        MalformedError: its arguments can't be decoded.
    """
    if len(payload) < 4:
        raise MalformedError("a method frame is shorter than the number of a method")
    (number,) = _LONG.unpack_from(payload)
    spec = BY_NUMBER.get(number)
    if spec is None:
        raise ConnectionClosedError(
            540, f"unknown method {number & 0xFFFF} of class {number >> 16}"
        )
    arguments: dict[str, object] = {}
    at, end, bits = 4, len(payload), -1
    for name, kind in spec.fields:
        if kind == "bit":
            if bits < 0:
                _need(1, at, end, spec)
                at += 1
                bits = 0
            arguments[name] = bool(payload[at - 1] >> bits & 1)
            bits += 1
            continue
        bits = -1
        if kind == "table":
            arguments[name], at = decode_table(payload, at, end)
        elif kind == "shortstr":
            _need(1, at, end, spec)
            after = at + 1 + payload[at]
            _need(after - at, at, end, spec)
            arguments[name] = _utf8(payload[at + 1 : after])
            at = after
        elif kind == "longstr":
            _need(4, at, end, spec)
            size = _LONG.unpack_from(payload, at)[0]
            _need(4 + size, at, end, spec)
            arguments[name] = payload[at + 4 : at + 4 + size]
            at += 4 + size
        else:
            layout = _STRUCTS[kind]
            _need(layout.size, at, end, spec)
            (arguments[name],) = layout.unpack_from(payload, at)
            at += layout.size
    return Method(spec.name, arguments)


def _need(count: int, at: int, end: int, spec: MethodSpec) -> None:
    if at + count > end:
        raise MalformedError(f"the arguments of {spec.name} are longer than its frame")


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"a short string is not UTF-8: {data[:32]!r}") from error


def encode(channel: int, name: str, **arguments: object) -> bytes:
    """Encode a method frame. Arguments that are not given are zero or empty."""
    spec = BY_NAME[name]
    parts: list[bytes] = []
    bits = count = 0
    for field, kind in spec.fields:
        if kind == "bit":
            bits |= bool(arguments.get(field)) << count
            count += 1
            continue
        if count:
            parts.append(bytes((bits,)))
            bits = count = 0
        parts.append(_encode_value(kind, arguments.get(field)))
    if count:
        parts.append(bytes((bits,)))
    payload = b"".join(parts)
    return _HEAD.pack(1, channel, len(payload) + 4, spec.number) + payload + b"\xce"


def _encode_value(kind: str, value: object) -> bytes:
    if kind == "shortstr":
        return short_string(str(value or ""))
    if kind == "longstr":
        return long_string(value if isinstance(value, bytes) else str(value or "").encode())
    if kind == "table":
        return encode_table(value if isinstance(value, Mapping) else {})
    return _STRUCTS[kind].pack(value or 0)
