"""Maps AMQP's messages to records, and records to AMQP's messages.

A record that AMQP wrote has the header ``amqp.properties`` with the properties as they arrived, so
that consumers get exactly these. Application headers that are text, numbers or flags are headers
of the record too, for clients of other protocols. A record without ``amqp.properties`` comes from
another protocol: its headers become application headers.

Knows the codec and the engine's plain data; no channel and no connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from tidemill.engine.queues.api import DEATHS_HEADER, KEYS_HEADER, Delivery, Header
from tidemill.protocols.amqp.codec.properties import NONE, Properties, parse, with_headers
from tidemill.protocols.amqp.codec.tables import Timestamp
from tidemill.protocols.amqp.error_codes import precondition
from tidemill.protocols.amqp.errors import MalformedError

PROPERTIES_HEADER = "amqp.properties"
"""The header of a record with a message's properties: flags and values as in a content header."""
RESERVED_PREFIXES = ("amqp.", "tidemill.")
"""Names of record headers that are not application headers."""
DIRECT_REPLY_TO = b"amq.rabbitmq.reply-to"
_CACHED_BYTES = 128
_CACHED = 1024
_MOST_MS = 2**63 - 1
LARGEST_PROPERTIES = 131_072 - 20
"""What a content header of the usual frame size holds. It can't be split, and clients close the
connection on a larger one."""


class Published(NamedTuple):
    """The part of a message's properties that the engine needs."""

    properties: Properties
    headers: tuple[Header, ...]
    """Headers of the record."""
    priority: int
    ttl_ms: int | None
    delay_ms: int
    more_keys: tuple[str, ...]
    """CC and BCC."""
    user_id: str | None
    wants_direct_reply: bool


class PropertyReader:
    """Reads properties of published messages. Most publishers repeat theirs, so it keeps some."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Published] = {}

    def read(self, data: bytes) -> Published:
        """Check properties and translate them."""
        published = self._kept.get(data)
        if published is None:
            published = read(data)
            if len(data) <= _CACHED_BYTES:
                if len(self._kept) >= _CACHED:
                    self._kept.clear()
                self._kept[data] = published
        return published


def read(data: bytes) -> Published:
    """Check properties and translate them; see ``PropertyReader.read``."""
    properties = parse(data)
    values, headers = properties.values, properties.headers
    shown, hidden = (_keys(headers, "CC"), _keys(headers, "BCC")) if headers else ([], [])
    if "BCC" in headers:
        data = with_headers(data, {}, ["BCC"])
        properties = parse(data)
        headers = properties.headers
    user = values.get("user_id")
    priority = values.get("priority", 0)
    assert isinstance(priority, int)
    own = record_headers(properties)
    if shown or hidden:
        keys = {"shown": shown, "hidden": hidden}
        own = (*own, (KEYS_HEADER, json.dumps(keys).encode()))
    return Published(
        properties,
        own,
        priority,
        _expiration(values.get("expiration")),
        _delay(headers.get("x-delay")),
        (*shown, *hidden),
        user.decode("utf-8", "replace") if isinstance(user, bytes) else None,
        values.get("reply_to") == DIRECT_REPLY_TO,
    )


def record_headers(properties: Properties) -> tuple[Header, ...]:
    """Return the headers of the record: the properties, and readable application headers."""
    own: list[Header] = [] if properties.data == NONE else [(PROPERTIES_HEADER, properties.data)]
    for name, value in properties.headers.items():
        if not name.startswith(RESERVED_PREFIXES):
            text = _readable(value)
            if text is not None:
                own.append((name.encode("utf-8", "replace").decode(), text))
    return tuple(own)


def _readable(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return str(value).encode()
    return None


def _keys(headers: object, name: str) -> list[str]:
    assert isinstance(headers, dict)
    keys = headers.get(name)
    if keys is None:
        return []
    if not isinstance(keys, list):
        raise precondition(f"invalid_message: unexpected type of header '{name}': use an array")
    if not all(isinstance(key, str | bytes) for key in keys):
        raise precondition(f"invalid_message: header '{name}' has values that are not strings")
    return [k if isinstance(k, str) else k.decode("utf-8", "surrogateescape") for k in keys]


def _expiration(value: bytes | int | None) -> int | None:
    if value is None:
        return None
    assert isinstance(value, bytes)
    if not value.isdigit() or len(value) > 18:
        shown = value.decode("utf-8", "replace")
        raise precondition(f"invalid expiration '{shown}': use milliseconds in digits")
    return int(value)


def _delay(value: object) -> int:
    """Return the delay; a value that is not a number is not one, as in RabbitMQ's plugin."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return min(max(value, 0), _MOST_MS)


# --- from records ---------------------------------------------------------------------------------


class PropertyWriter:
    """Makes the properties of messages for consumers.

    Any client can write a record with a header ``amqp.properties``, so they are checked. Those that
    were valid are kept, because most are the same.
    """

    def __init__(self) -> None:
        self._valid: set[bytes] = {NONE}

    def write(self, delivery: Delivery) -> bytes:
        """Return the properties of a message. Never raises."""
        headers = delivery.headers
        data = deaths = keys = None
        for name, value in headers:
            if name == PROPERTIES_HEADER:
                data = value
            elif name == DEATHS_HEADER:
                deaths = value
            elif name == KEYS_HEADER:
                keys = value
        if data is None or not self._is_valid(data):
            data = from_record(headers)
        if deaths is None and not delivery.delivery_count:
            return data
        added = {} if deaths is None else death_headers(deaths, data)
        if delivery.delivery_count:
            added["x-delivery-count"] = delivery.delivery_count
        # A queue that has a key for its dead letters takes theirs away, and so RabbitMQ does CC.
        removed = ["CC"] if deaths is not None and keys is None else []
        written = with_headers(data, added, removed, expires=deaths is None)
        return written if len(written) <= LARGEST_PROPERTIES else data

    def _is_valid(self, data: bytes) -> bool:
        if data in self._valid:
            return True
        if len(data) > LARGEST_PROPERTIES:
            return False
        try:
            parse(data)
        except MalformedError:
            return False
        if len(data) <= _CACHED_BYTES:
            if len(self._valid) >= _CACHED:
                self._valid.clear()
            self._valid.add(data)
        return True


def from_record(headers: Sequence[Header]) -> bytes:
    """Return properties with the headers of a record as application headers.

    Another protocol's headers can be larger than a content header: those that don't fit are left
    out.
    """
    table: dict[str, object] = {}
    left = LARGEST_PROPERTIES - 16
    for name, value in headers:
        size = len(name.encode()) + len(value or b"") + 8
        if not name.startswith(RESERVED_PREFIXES) and len(name.encode()) <= 255 and size <= left:
            table[name] = value
            left -= size
    return with_headers(NONE, table) if table else NONE


def death_headers(deaths: bytes, data: bytes) -> dict[str, object]:
    """Return ``x-death`` and the headers of the first and the last death, as RabbitMQ names them.

    Args:
        deaths: the header ``tidemill.deaths``. What is not one, gives no headers.
    """
    try:
        table: list[dict[str, object]] = [_death(entry) for entry in orjson.loads(deaths)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    if not table:
        return {}
    expiration = parse(data).values.get("expiration")
    if isinstance(expiration, bytes):
        table[-1]["original-expiration"] = expiration
    added: dict[str, object] = {"x-death": table}
    for which, death in (("first", table[-1]), ("last", table[0])):
        for field in ("exchange", "queue", "reason"):
            added[f"x-{which}-death-{field}"] = death[field]
    return added


def _death(entry: dict[str, object]) -> dict[str, object]:
    count, time, keys = entry["count"], entry["time"], entry["keys"]
    if not isinstance(count, int) or not isinstance(time, int) or not isinstance(keys, list):
        raise TypeError("not a death")
    return {
        "count": min(abs(count), _MOST_MS),
        "exchange": str(entry["exchange"]),
        "queue": str(entry["queue"]),
        "reason": str(entry["reason"]),
        "routing-keys": [str(key) for key in keys],
        "time": Timestamp(abs(time) // 1000),
    }
