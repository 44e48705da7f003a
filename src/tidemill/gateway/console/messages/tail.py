"""Follows a topic in a page: new records that match, as events.

It is one more client of ``following``, which reads each topic once for all. Must not know: HTML.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.responses import Response

from tidemill.errors import TidemillError
from tidemill.gateway.console.contract import View
from tidemill.gateway.console.messages.masking import Mask
from tidemill.gateway.console.messages.search import Criteria, Row, matcher, row_of
from tidemill.gateway.following import Recent
from tidemill.gateway.server_sent import (
    HEARTBEAT,
    HEARTBEAT_S,
    RETRY,
    event,
    event_stream,
)

EVERY_S = 0.5
"""How often new records are sent."""
MOST = 50
"""Records that are sent each time. The rest is counted, and looked at in the search."""


async def tail(view: View) -> Response:
    """Follow a topic from its end on.

    Raises:
        HttpError: it does not exist (404), or a parameter is malformed (400).
    """
    criteria = Criteria.of(view)
    matches = matcher(criteria)
    topic = await view.parts.catalog.topic(criteria.topic)
    mask = Mask(topic.name, view.settings.masked())

    def row_of_recent(recent: Recent) -> Row | None:
        if criteria.partition not in (None, recent.partition):
            return None
        record: Any = _Record(recent)
        headers = mask.headers(record.headers())
        key, value = mask.key(record.key()), mask.value(record.value())
        if not matches(key, value, headers, record):
            return None
        return row_of(record, key, value, headers)

    async def events() -> AsyncIterator[bytes]:
        yield RETRY
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        try:
            async with view.parts.hub.following(topic) as (found, _):
                number = found.number
                yield event("progress", {"scanned": 0, "left_out": 0})  # from here on
                while not found.gone and not view.parts.hub.is_stopping:
                    rows: list[Row] = []
                    left_out = scanned = 0
                    for after, recent in found.since(number):
                        # Those in between came and went since the last look.
                        left_out += after - 1 - number
                        scanned += after - number
                        number = after
                        if len(rows) >= MOST:
                            left_out += 1
                            continue
                        row = row_of_recent(recent)
                        if row is not None:
                            rows.append(row)
                    if rows:
                        context = {"rows": rows[::-1], "topic": topic.name}
                        yield event("rows", view.render("rows.html", context))
                    if scanned:
                        sent_s = loop.time()
                        yield event("progress", {"scanned": scanned, "left_out": left_out})
                    elif loop.time() - sent_s > HEARTBEAT_S:
                        sent_s = loop.time()
                        yield HEARTBEAT
                    await asyncio.sleep(EVERY_S)
                yield event("problem", found.gone or "the gateway stops")
        except TidemillError as error:
            yield event("problem", str(error))

    return event_stream(events())


class _Record:
    """A recent record with the methods of a ``Message`` that rows and conditions use."""

    def __init__(self, recent: Recent) -> None:
        self._recent = recent
        self._fields = orjson.loads(recent.line)

    def topic(self) -> str:
        return self._recent.topic

    def partition(self) -> int:
        return self._recent.partition

    def offset(self) -> int:
        return self._recent.offset

    def timestamp(self) -> tuple[int, int]:
        found = self._fields["timestamp"]
        return (0, -1) if found is None else (1, found)

    def key(self) -> bytes | None:
        return _bytes(self._fields["key"], self._fields.get("key_encoding"))

    def value(self) -> bytes | None:
        return _bytes(self._fields["value"], self._fields.get("value_encoding"))

    def headers(self) -> list[tuple[str, bytes | None]]:
        pairs = self._fields["headers"]
        return [(each[0], _bytes(each[1], each[2] if len(each) > 2 else None)) for each in pairs]


def _bytes(text: str | None, encoding: str | None) -> bytes | None:
    if text is None:
        return None
    return base64.b64decode(text) if encoding else text.encode()
