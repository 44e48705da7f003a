"""Event stores: which there are, their streams, and events as a timeline.

A store is read through its index on this machine, as every process that uses it does. Must not
know: HTML.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.errors import TidemillError, UnreachableError
from tidemill.eventstore.events import StoredEvent
from tidemill.eventstore.index_files import index_path
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import Data, Page, View
from tidemill.gateway.console.lists import by_key, listed
from tidemill.gateway.console.messages.decoding import Shown, compact, full
from tidemill.gateway.console.messages.masking import Mask
from tidemill.gateway.errors import HttpError

if TYPE_CHECKING:
    from tidemill.eventstore.store import Store

EVENTS, STREAMS = 25, 100
"""Events and streams of a page."""
_MOST, _LINE = 8_000, 160
"""Bytes of an event's content in a page, and in one line of it."""


async def list_(view: View) -> Data:
    """Return the stores that are known: those that publish, and those with an index here."""
    snapshot = await view.snapshot()
    published = await _published(view)
    names = {name for name in _indexed(snapshot) | published.keys() if name in snapshot.topics}
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "records": snapshot.topics[name].records,
            "bytes": snapshot.topics[name].bytes,
            "position": published.get(name, {}).get("position"),
            "topics": published.get(name, {}).get("topics", {}),
        }
        for name in sorted(names)
    ]
    columns = by_key("name", "records", "bytes", "position")
    return {"list": listed(view, rows, columns, search=operator.itemgetter("name"), sort="name")}


def _indexed(snapshot: Snapshot) -> set[str]:
    """Return the stores of this cluster that have an index on this machine."""
    folder = index_path(snapshot.cluster_id, "x", None).parent
    try:
        return {each.stem for each in folder.glob("*.sqlite")}
    except OSError:  # the folder can't be read: none is known
        return set()


async def _published(view: View) -> dict[str, dict[str, Any]]:
    """Return by store what its publishers have measured."""
    found: dict[str, dict[str, Any]] = {}
    try:
        processes = await view.parts.metrics.published()
    except TidemillError:
        return found
    for metric, rows in (family for each in processes for family in each.families):
        for labels, value in rows:
            if metric.name == "tidemill_events_position" and len(labels) == 1:
                found.setdefault(labels[0], {"topics": {}})["position"] = value
            elif metric.name == "tidemill_events_published_position" and len(labels) == 2:
                store = found.setdefault(labels[0], {"topics": {}})
                store["topics"][labels[1]] = value
    return found


async def described(view: View) -> Data:
    """Return a part of a store: the newest events of all streams, or of one.

    Raises:
        HttpError: there is no such store or stream (404), a parameter is malformed (400), or the
            values of the topic are hidden: they have the names of streams and the tags, too (403).
    """
    name, stream = view.needed("name"), view.text("stream")
    mask = Mask(name, view.settings.masked())
    if mask.is_whole:
        text = f"the values of topic {name} are hidden here, so its events are not shown"
        raise HttpError(403, "masked", text, hint="console.mask names them.")
    before = view.parameters.number("before", 0, 2**63 - 1)
    try:
        store = await view.parts.stores.get(name)
    except UnreachableError:
        raise
    except TidemillError as error:
        text = f"{name[:200]} can't be read as an event store: {error}"
        raise HttpError(404, "unknown_store", text, hint=error.hint) from error
    nothing: dict[str, Any] = {
        "events": [],
        "streams": [],
        "position": None,
        "version": None,
        "older": None,
    }
    q = view.text("q")
    about = {"name": name, "stream": stream, "q": q, "is_building": store is None}
    if store is None:
        return {**about, **nothing}
    found = await asyncio.to_thread(_look, store, mask, stream, q, before)
    if stream and not found["version"]:
        raise HttpError(404, "unknown_stream", f"store {name} has no stream {stream[:200]}")
    return {**about, **found}


def _look(store: Store, mask: Mask, stream: str, q: str, before: int | None) -> Mapping[str, Any]:
    """Return the newest events, and streams that begin with a text.

    Args:
        before: only events below this version, or without a stream below this position.
    """
    to = None if before is None else before - 1
    if stream:
        found = store.read(stream, to=to, backwards=True, limit=EVENTS + 1)
    else:
        found = store.read_all(to=to, backwards=True, limit=EVENTS + 1)
    events = list(found)
    last = events[EVENTS - 1] if len(events) > EVENTS else None
    streams = () if stream else store.streams(start=q)
    return {
        "events": [shown(each, mask) for each in events[:EVENTS]],
        "older": None if last is None else last.version if stream else last.position,
        "streams": [
            {"name": each, "events": store.version(each)}
            for each in itertools.takewhile(
                lambda each: each.startswith(q), itertools.islice(streams, STREAMS)
            )
        ],
        "position": store.position(),
        "version": store.version(stream) if stream else None,
    }


def shown(event: StoredEvent, mask: Mask) -> dict[str, Any]:
    """Return an event for a page, without the fields that are hidden in its topic."""
    data, metadata = (full(mask.value(each) or b"", _MOST) for each in (event.data, event.metadata))
    return {
        "position": event.position,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "schema": event.schema,
        "id": str(event.id),
        "time_ms": event.time_ms,
        "tags": sorted(event.tags),
        "data": _text(data),
        "metadata": _text(metadata),
        "is_cut": data.is_cut or metadata.is_cut,
    }


def _text(found: Shown) -> str:
    """Return a content, in one line if it is short JSON."""
    return compact(found.text) if found.kind == "json" and found.size <= _LINE else found.text


PAGES = [
    Page(
        address="event-stores",
        about="Event stores that publish, or that are used on the gateway's machine.",
        data=list_,
        section="Workers",
        live_s=5.0,
    ),
    Page(
        address="event-store",
        about="One event store: its streams, and the events of all or of one as a timeline.",
        data=described,
        live_s=2.0,
        belongs_to="event-stores",
    ),
]
