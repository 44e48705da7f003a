"""Follows a topic in a page: new records that match, as events.

It is one more client of ``following``, which reads each topic once for all. Must not know: HTML.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import orjson
from starlette.responses import Response

from tidemill.errors import TidemillError
from tidemill.gateway.console.contract import View
from tidemill.gateway.console.messages.masking import Mask, Record
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
        record = mask.record(_record(recent))
        return row_of(record) if matches(record) else None

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


def _record(recent: Recent) -> Record:
    fields = orjson.loads(recent.line)
    return Record(
        *(recent.topic, recent.partition, recent.offset, fields["timestamp"]),
        _bytes(fields["key"], fields.get("key_encoding")),
        _bytes(fields["value"], fields.get("value_encoding")),
        [(name, _bytes(*content)) for name, *content in fields["headers"]],
    )


def _bytes(text: str | None, encoding: str | None = None) -> bytes | None:
    if text is None:
        return None
    return base64.b64decode(text) if encoding else text.encode()
