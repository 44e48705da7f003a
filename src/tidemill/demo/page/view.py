"""The page: its data and its stream of changes. Must not know: Kafka, how pages are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tidemill.demo.page.following import Following
from tidemill.demo.page.live import LEVELS, LONGEST
from tidemill.demo.page.places import HEIGHT, WIDTH, bend, country, places
from tidemill.gateway.console.contract import Page, View
from tidemill.gateway.parts import Parts
from tidemill.gateway.server_sent import HEARTBEAT, HEARTBEAT_S, event, event_stream

FRAME_S = 0.25
"""How often changes are sent."""
_LABELS = (
    "ATL",
    "BOS",
    "CLT",
    "DEN",
    "DFW",
    "IAH",
    "LAX",
    "MCO",
    "MIA",
    "MSP",
    "ORD",
    "SEA",
    "SFO",
)
"""Destinations that have their names on the map."""

_followings: dict[int, tuple[Parts, Following]] = {}
"""What is followed for the clients of each user, by their ids. It belongs to the event loop."""


def following_of(parts: Parts) -> Following:
    """Return what follows the topics for a user, as all viewers of the user share it."""
    for key, (_, each) in list(_followings.items()):
        if not each.is_running:
            del _followings[key]
    if id(parts) not in _followings:
        _followings[id(parts)] = parts, Following(parts.kafka)
    return _followings[id(parts)][1]


async def data(view: View) -> Mapping[str, Any]:
    """Return everything that the page shows now."""
    live = following_of(view.parts).look()
    known = places()
    return {
        **_with_routes(live.since(0)),
        "levels": [*(text for text, _ in LEVELS), LONGEST],
        "map": {
            "width": WIDTH,
            "height": HEIGHT,
            "country": country(),
            "labels": [(name, known[name].x, known[name].y) for name in _LABELS],
            "airports": [(name, known[name].x, known[name].y) for name in ("EWR", "LGA", "JFK")],
        },
    }


async def changes(view: View) -> AsyncIterator[bytes]:
    """Yield server-sent events: all there is, and then what has changed, four times a second."""
    live, version, sent_s, is_first = None, 0, time.monotonic(), True
    while not view.parts.hub.is_stopping:
        found = following_of(view.parts).look()
        if found is not live:
            live, version, is_first = found, 0, True
        if is_first or found.version != version:
            more = found.since(version)
            version, sent_s = more["version"], time.monotonic()
            yield event("all" if is_first else "more", _with_routes(more))
            is_first = False
        elif time.monotonic() - sent_s > HEARTBEAT_S:
            sent_s = time.monotonic()
            yield HEARTBEAT
        await asyncio.sleep(FRAME_S)  # the rate of the frames


def _with_routes(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was found, where each plane has the three points of its route."""
    known = places()
    planes = []
    for plane in found["planes"]:
        a, b = known.get(plane["origin"]), known.get(plane["destination"])
        if a is not None and b is not None:
            c = bend(a, b)
            planes.append({**plane, "route": [a.x, a.y, c.x, c.y, b.x, b.y]})
    return {**found, "planes": planes}


async def _events(view: View) -> Any:
    return event_stream(changes(view))


PAGE = Page(
    address="demo",
    title="New York",
    about="The flights that the demo replays: planes, delays, windows as they close, alerts.",
    data=data,
    section="Demo",
    answers={"events": _events},
)
