"""A message as the log has it, and what the engine's own headers say about it.

Knows the names of headers, and neither queues nor logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.engine.queues.api import EXCHANGE_HEADER, EXPIRES_HEADER, Header, Message
from tidemill.log.format.records import NewRecord, Record

PREFIX = "tidemill."
DELIVER_AT_HEADER = "tidemill.deliver_at"
"""When a delayed message can be delivered: ms since the epoch, as text."""
ORIGIN_HEADER = "tidemill.origin"
"""The record that a dead letter was made of: topic id, partition and offset."""


@dataclass(slots=True, eq=False)
class Stored:
    """One message.

    Attributes:
        timestamp: when it was published (ms since the epoch).
        key, value, headers: of the record.
        exchange: the exchange that it was published to.
        expires: ms since the epoch; None if only the queue's limit counts.
        deliver_at: ms since the epoch; 0 for now.
    """

    timestamp: int
    key: bytes | None
    value: bytes | memoryview
    headers: Sequence[Header]
    exchange: str = ""
    expires: int | None = None
    deliver_at: int = 0

    def record(self) -> NewRecord:
        """Return the record to write."""
        return NewRecord(self.key, self.value, self.headers, self.timestamp)  # type: ignore[arg-type]


def of_message(message: Message, exchange: str, now_ms: int) -> Stored:
    """Return what is stored for a message that a client publishes."""
    headers = message.headers
    expires = None
    deliver_at = 0
    if exchange or message.ttl_ms is not None or message.delay_ms > 0:
        headers = list(headers)
        if exchange:
            headers.append((EXCHANGE_HEADER, exchange.encode()))
        if message.ttl_ms is not None:
            expires = now_ms + max(0, message.ttl_ms) + max(0, message.delay_ms)
            headers.append((EXPIRES_HEADER, str(expires).encode()))
        if message.delay_ms > 0:
            deliver_at = now_ms + message.delay_ms
            headers.append((DELIVER_AT_HEADER, str(deliver_at).encode()))
    return Stored(now_ms, message.key, message.value, headers, exchange, expires, deliver_at)


def of_record(record: Record) -> Stored:
    """Return the message of a record. Invalid values of the engine's headers are ignored."""
    exchange = ""
    expires: int | None = None
    deliver_at = 0
    for name, content in record.headers:
        if not name.startswith(PREFIX) or content is None:
            continue
        if name == EXCHANGE_HEADER:
            exchange = content.decode("utf-8", "replace")
        elif name == EXPIRES_HEADER:
            expires = _time(content)
        elif name == DELIVER_AT_HEADER:
            deliver_at = _time(content) or 0
    value = b"" if record.value is None else record.value
    return Stored(
        record.timestamp, record.key, value, record.headers, exchange, expires, deliver_at
    )


def content_of(headers: Sequence[Header], name: str) -> bytes | None:
    """Return the content of the first header of this name that has one, or None."""
    return next((each[1] for each in headers if each[0] == name and each[1] is not None), None)


def expires_of(headers: Sequence[Header]) -> int | None:
    """Return when a message with these headers expires (ms since the epoch), or None."""
    content = content_of(headers, EXPIRES_HEADER)
    return None if content is None else _time(content)


def _time(content: bytes) -> int | None:
    return int(content) if content.isdigit() and len(content) < 16 else None
