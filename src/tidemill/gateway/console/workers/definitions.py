"""Sources, bridges and webhooks: their state, lag and errors, and the orders that commands give.

All three are definitions on a board (``connect/base/board``), so one module shows them. Must not
know: HTML, what a worker does.
"""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.confluent.reading import OutOfRangeError
from tidemill.connect.base import orders
from tidemill.connect.base.board import Board
from tidemill.connect.cdc.topics import SOURCES
from tidemill.connect.direct.topics import BRIDGES
from tidemill.connect.webhooks.history import decode
from tidemill.connect.webhooks.topics import WEBHOOKS, attempts_topic, dead_letters_topic
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import (
    Action,
    Attention,
    Data,
    Done,
    Form,
    Page,
    View,
    address,
    command_line,
)
from tidemill.gateway.console.lists import by_key, listed
from tidemill.gateway.console.messages.masking import Mask
from tidemill.gateway.errors import HttpError
from tidemill.gateway.parts import Parts

ATTEMPTS = 30
_WITHIN, _READ_BYTES = 100, 4 << 20
"""So many of the last attempts, and bytes of them, are looked at."""
_MOST = 20_000
"""Characters of what a definition or a status has, in a page."""


@dataclass(frozen=True)
class Column:
    """A figure of a kind: a value of the status, and the filter that writes it."""

    key: str
    title: str
    form: str = "number"


@dataclass(frozen=True)
class Kind:
    """A kind of definition.

    Attributes:
        noun: As the command line calls it.
        topic: The topic of the board.
        keys: Keys of the definition that lists show.
        columns: Figures of the status that lists show; ``more`` are for the page about one.
        when_paused: What a pause means.
    """

    noun: str
    topic: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    more: tuple[Column, ...]
    when_paused: str
    create: str


SOURCE = Kind(
    "source",
    SOURCES,
    ("kind",),
    (
        Column("lag_ms", "Lag", "ms"),
        Column("lag_bytes", "Held back", "size"),
        Column("written", "Records written"),
        Column("dead_letters", "Dead letters"),
    ),
    (Column("lag_changes", "Changes behind"), Column("attempts", "Failures in a row")),
    "Nothing is lost, but the database keeps its log until it continues.",
    "tidemill source create FILE",
)
BRIDGE = Kind(
    "bridge",
    BRIDGES,
    ("kind", "topic"),
    (
        Column("received", "Received"),
        Column("delivered", "Passed on"),
        Column("lost", "Lost"),
        Column("refused", "Refused"),
    ),
    (
        Column("recovered", "Recovered"),
        Column("retried", "Retried"),
        Column("failures", "Failures in a row"),
    ),
    "What arrives from outside in the meantime is not received.",
    "tidemill bridge create FILE",
)
WEBHOOK = Kind(
    "webhook",
    WEBHOOKS,
    ("topic", "url"),
    (
        Column("lag", "Behind"),
        Column("delivered", "Delivered"),
        Column("retrying", "Retrying"),
        Column("dead", "Dead letters"),
    ),
    (
        Column("failed", "Failed attempts"),
        Column("filtered", "Filtered out"),
        Column("waiting", "Waiting"),
        Column("in_flight", "Under way"),
        Column("next_retry_ms", "Next retry", "moment"),
    ),
    "Nothing is lost as long as the topic keeps its records.",
    "tidemill webhook create FILE",
)
KINDS = (SOURCE, BRIDGE, WEBHOOK)


# --- looking -------------------------------------------------------------------------------------


async def board_of(parts: Parts, kind: Kind) -> Board:
    """Return the board of a kind, as it was a moment ago.

    Raises:
        UnreachableError: no broker answers.
    """
    board = Board()
    for key, value in (await parts.tables.read(kind.topic)).items():
        board.apply(key, value)
    return board


def row(kind: Kind, board: Board, name: str) -> dict[str, Any]:
    """Return what a list shows of a definition. A figure that is not a number is None."""
    found = orders.describe(board, name)
    return {
        "name": name,
        "state": found.state,
        "badge": badge(found.state),
        "declared": found.declared,
        "keys": {key: _text(found.definition.get(key)) for key in kind.keys},
        "figures": {each.key: _figure(found.status.get(each.key)) for each in kind.columns},
        "error": _error(found.status),
        "hint": _text(found.status.get("hint")),
    }


def badge(state: str) -> str:
    """Return the look of a state."""
    if state in ("running", "snapshot"):
        return "good"
    return "problem" if state in ("failed", "disabled", "no worker", "lost") else "warning"


def _error(status: Mapping[str, Any]) -> str:
    values = (status.get(key) for key in ("error", "disabled", "last_error"))
    return next((_text(each) for each in values if each), "")


async def all_of(kind: Kind, view: View) -> Data:
    """Return the definitions of a kind."""
    board = await board_of(view.parts, kind)
    rows = [row(kind, board, name) for name in sorted(board.definitions)]
    columns: Mapping[str, Any] = {
        **by_key("name", "state"),
        **{
            column.key: functools.partial(lambda key, each: each["figures"][key], column.key)
            for column in kind.columns
        },
    }
    found = listed(view, rows, columns, search=lambda each: f"{each['name']} {each['keys']}")
    return {"kind": kind, "list": found}


async def _existing(kind: Kind, view: View, name: str) -> Board:
    board = await board_of(view.parts, kind)
    if name not in board.definitions:
        raise HttpError(404, f"unknown_{kind.noun}", f"there is no {kind.noun} {name[:200]}")
    return board


async def one_of(kind: Kind, view: View) -> Data:
    """Return one definition.

    Raises:
        HttpError: there is none with this name (404).
    """
    name = view.needed("name")
    board = await _existing(kind, view, name)
    found = orders.describe(board, name)
    status = found.status
    mask = Mask(_text(found.definition.get("topic")), view.settings.masked())
    hidden = {"blocked"} if mask.key(b"") else set()  # it has keys of records
    own = {*hidden, "phase", "error", "hint", "updated_ms", "source", "kind", "worker"}
    shown = {"tables", *(each.key for each in (*kind.columns, *kind.more))}
    return {
        "kind": kind,
        **row(kind, board, name),
        "worker": _text(status.get("worker")),
        "updated_ms": _figure(status.get("updated_ms")),
        "is_paused": found.is_paused,
        "buttons": _buttons(view.page, found),
        "more": {each.key: _figure(status.get(each.key)) for each in kind.more},
        "tables": _tables(status.get("tables")),
        "details": _pretty({k: v for k, v in status.items() if k not in own | shown and v}),
        "definition": _pretty(found.definition),
        "orders": sorted(board.commands.get(name, {}))[:50],
        "topics": _topics(kind, name, found.definition),
        "attempts": await _attempts(view, name) if kind is WEBHOOK else [],
    }


_BUTTONS = {
    "pause": "Pause",
    "resume": "Continue",
    "restart": "Start again",
    "test": "Send a test event",
    "redeliver": "Deliver dead letters again",
}


def _buttons(page: Page, found: orders.Described) -> list[tuple[str, str]]:
    """Return the orders that make sense in a state, with their words."""
    hidden = {"pause"} if found.is_paused else {"resume"}
    if found.state == "failed":
        hidden = set()
    elif found.state not in ("waiting", "no worker"):
        hidden.add("restart")
    actions = page.actions.keys() - hidden
    return [(action, text) for action, text in _BUTTONS.items() if action in actions]


def _topics(kind: Kind, name: str, definition: Mapping[str, Any]) -> list[str]:
    """Return the topics of a definition, for links."""
    topics = [_text(definition.get("topic"))]
    if kind is WEBHOOK:
        topics += [attempts_topic(name), dead_letters_topic(name)]
    return [each for each in topics if each]


async def _attempts(view: View, name: str) -> list[dict[str, Any]]:
    """Return the last attempts of a webhook, the newest first; hostile records harm nothing."""
    found = [each for value in await _last(view, name) if (each := decode(value)) is not None]
    return [
        {
            "at_ms": _figure(each.get("at")),
            "id": _text(each.get("id") or each.get("event")),
            "attempt": _figure(each.get("attempt")),
            "status": _figure(each.get("status")),
            "outcome": _text(each.get("outcome")),
            "took_ms": _figure(each.get("duration_ms")),
            "error": _text(each.get("error") or each.get("reason")),
            "record": _place(each.get("records")),
        }
        for each in reversed(found[-ATTEMPTS:])
    ]


async def _last(view: View, name: str) -> list[bytes | None]:
    """Return the values of the last records of a webhook's attempts."""
    catalog = view.parts.catalog
    try:
        topic = await catalog.topic(attempts_topic(name))
        start, end = (await catalog.ranges(topic))[0]
        if start >= end:
            return []
        place, begin = (topic.name, 0), max(start, end - _WITHIN)
        extract = await view.parts.pool.read(place, begin, _WITHIN, _READ_BYTES)
    except OutOfRangeError:  # retention has deleted them in this moment
        return []
    except HttpError as error:
        if error.status != 404:
            raise
        return []  # nothing was attempted yet
    return [each.value() for each in extract.records]


def _place(records: Any) -> tuple[int, int] | None:
    """Return partition and offset of an attempt for one record."""
    if not isinstance(records, list) or len(records) != 1:
        return None
    place = records[0]
    if not isinstance(place, list) or [type(each) for each in place] != [int, int]:
        return None
    return place[0], place[1]


def _tables(found: Any) -> list[tuple[str, str]]:
    """Return the tables of a source with their topics."""
    if not isinstance(found, dict):
        return []
    return [(_text(table), _text(topic)) for table, topic in sorted(found.items())[:1000]]


def _figure(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1 << 62 else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:1000]


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)[:_MOST] if value else ""


# --- orders --------------------------------------------------------------------------------------


async def _pause(kind: Kind, paused: bool, view: View, form: Form) -> Done:
    board, name = await _ordered(kind, view, form)
    kafka = view.parts.kafka
    await asyncio.to_thread(orders.pause, kafka, kind.topic, kind.noun, name, board, paused=paused)
    text = f"{kind.noun.capitalize()} {name} {'is paused' if paused else 'continues'}."
    return _done(kind, view, name, text)


async def _order(
    kind: Kind, view: View, form: Form, command: str, text: str, **payload: Any
) -> Done:
    """Give an order; its text has a place for the name."""
    _, name = await _ordered(kind, view, form)
    await asyncio.to_thread(
        functools.partial(orders.order, view.parts.kafka, kind.topic, name, command, **payload)
    )
    return _done(kind, view, name, text.format(name))


async def _restart(view: View, form: Form) -> Done:
    text = "Source {} starts again."
    return await _order(SOURCE, view, form, "restart", text, resnapshot=False)


async def _test(view: View, form: Form) -> Done:
    text = "A test event is sent: its attempt will be in the list."
    return await _order(WEBHOOK, view, form, f"test/{uuid.uuid4().hex}", text)


async def _redeliver(view: View, form: Form) -> Done:
    """Order a redelivery: of all dead letters, or of one record."""
    what = "All dead letters are"
    wanted: dict[str, Any] = {"failed": True}
    if "offset" in form:
        partition, offset = form.number("partition"), form.number("offset")
        what, wanted = "The record is", {"partition": partition, "from": offset, "to": offset + 1}
    text = f"{what} delivered again, with the same ids."
    return await _order(WEBHOOK, view, form, f"redeliver/{uuid.uuid4().hex}", text, **wanted)


async def _ordered(kind: Kind, view: View, form: Form) -> tuple[Board, str]:
    """Return the board, as it is now, and the name that a form is about.

    Raises:
        HttpError: there is none with this name (404).
    """
    name = form.needed("name")
    view.parts.tables.expire()
    return await _existing(kind, view, name), name


def _done(kind: Kind, view: View, name: str, text: str) -> Done:
    view.parts.tables.expire()
    return Done(address(kind.noun, name=name), text)


# --- pages ---------------------------------------------------------------------------------------


async def check(view: View, snapshot: Snapshot) -> Sequence[Attention]:
    """Find definitions that have failed, are disabled, or have no worker."""
    found: list[Attention] = []
    for kind in KINDS:
        if kind.topic not in snapshot.topics:
            continue
        board = await board_of(view.parts, kind)
        for name in sorted(board.definitions):
            each = row(kind, board, name)
            if each["state"] in ("failed", "disabled", "waiting", "no worker"):
                level = "problem" if each["state"] in ("failed", "disabled") else "warning"
                why = f": {each['error'][:300]}" if each["error"] else "."
                state = "has no worker" if each["state"] == "no worker" else f"is {each['state']}"
                text = f"{kind.noun.capitalize()} {name} {state}{why}"
                command = command_line(kind.noun, "describe", name=name)
                found.append(Attention(level, text, command, address(kind.noun, name=name)))
    return found[:20]


def _pages(kind: Kind, list_about: str, about: str, more: Mapping[str, Action]) -> list[Page]:
    actions: dict[str, Action] = {
        "pause": functools.partial(_pause, kind, True),
        "resume": functools.partial(_pause, kind, False),
        **more,
    }
    return [
        Page(
            address=f"{kind.noun}s",
            about=list_about,
            template="definitions.html",
            data=functools.partial(all_of, kind),
            section="Workers",
            live_s=2.0,
        ),
        Page(
            address=kind.noun,
            about=about,
            template="definition.html",
            data=functools.partial(one_of, kind),
            actions=actions,
            live_s=2.0,
            belongs_to=f"{kind.noun}s",
        ),
    ]


PAGES = [
    *_pages(
        SOURCE,
        "Sources of change data capture with their state, lag and last error.",
        "One source: lag, tables, snapshots, last error; pause, continue and start again.",
        {"restart": _restart},
    ),
    *_pages(
        BRIDGE,
        "Bridges of direct messaging with their state and counts.",
        "One bridge: what was received, lost and refused; pause and continue.",
        {},
    ),
    *_pages(
        WEBHOOK,
        "Webhooks that go out with their state, lag and last error.",
        "One webhook: lag, what waits, the last attempts; pause, test and deliver again.",
        {"test": _test, "redeliver": _redeliver},
    ),
]
