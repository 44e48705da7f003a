"""Answers that never end: server-sent events. Must not know: pages, records, Kafka.

Source: HTML Standard, 9.2 (server-sent events).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
from starlette.responses import StreamingResponse

EVENT_STREAM = "text/event-stream"
HEARTBEAT = b":\n\n"
HEARTBEAT_S = 15.0
"""The longest time without an event."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""With the second one, proxies pass each event on."""
RETRY = b"retry: 3000\n\n"
"""The first event: how long a browser waits before it connects again, in milliseconds."""


def event(kind: str, data: object) -> bytes:
    """Return an event, whose data is JSON."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


def event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Return the answer that sends events, as they are on the wire, until the client has gone.

    The console counts it among the answers that take long, whose number is limited.
    """
    return StreamingResponse(events, media_type=EVENT_STREAM, headers=_HEADERS)
