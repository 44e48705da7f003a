"""Answers that never end: server-sent events of a page. Must not know: pages, Kafka.

Source: HTML Standard, 9.2 (server-sent events).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """Return the answer that sends events, as they are on the wire, until the client has gone.

    The console counts it among the answers that take long, whose number is limited.
    """
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)
