"""Queues and AMQP connections: depth, dead letters, and what moves, empties or closes them.

What is shown is what the broker publishes. Must not know: HTML, RabbitMQ's API.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tidemill.gateway.amqp.actions import AmqpActions
from tidemill.gateway.amqp.state import Entry
from tidemill.gateway.amqp.state import View as Amqp
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import (
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
from tidemill.gateway.console.render import plural
from tidemill.gateway.errors import HttpError

MOST_MOVED = 1000
"""Messages that one click moves."""
MOST_ROWS = 500
_DEAD_LETTERS = "x-dead-letter-exchange"
_LETTER_KEY = "x-dead-letter-routing-key"
_ANY_KEY = ("#", "")
"""Routing keys of bindings that get all letters."""
MOST_LETTERS = 10


async def _amqp(view: View) -> Amqp | None:
    """Return what the broker publishes; None where there is no AMQP."""
    return None if view.parts.amqp is None else await view.parts.amqp_state.view()


def _left_out(amqp: Amqp) -> int:
    """Return how many queues, connections, exchanges and bindings the broker does not publish."""
    return int(amqp.node.get("left_out", 0))


def _actions(view: View) -> AmqpActions:
    """Return what changes queues.

    Raises:
        HttpError: there is no AMQP (404).
    """
    if view.parts.amqp is None:
        raise HttpError(404, "not_found", "there is no AMQP here")
    return view.parts.amqp


def _row(amqp: Amqp, name: str, entry: Entry) -> dict[str, Any]:
    """Return a queue in a list.

    ``letters`` are the queues to which its dead letters go, as far as they follow from one binding.
    """
    fields, rates = entry.fields, entry.rates
    oldest = fields["oldest_ms"]
    return {
        "name": name,
        "type": fields["type"],
        "ready": fields["ready"],
        "unacknowledged": fields["unacknowledged"],
        "consumers": fields["consumer_count"],
        "bytes": fields["bytes"],
        "oldest_s": None if oldest is None else max(0.0, time.time() - oldest / 1000),
        "published_per_s": rates.get("published", 0.0),
        "delivered_per_s": rates.get("delivered", 0.0),
        "dead": fields["dead"],
        "letters": _letters(amqp, name, fields["arguments"]),
    }


def _ways(amqp: Amqp, name: str, arguments: Mapping[str, Any]) -> Iterator[Collection[str]]:
    """Yield queues that get a queue's dead letters: by name, or by a binding of that key."""
    exchange, key = arguments.get(_DEAD_LETTERS), arguments.get(_LETTER_KEY)
    if exchange == "":
        yield {key if isinstance(key, str) else name} & amqp.queues.keys()
    elif isinstance(exchange, str):
        for one in dict.fromkeys((key, *_ANY_KEY)) if isinstance(key, str) else (None,):
            yield amqp.targets.get((exchange, one), {})


def _letters(amqp: Amqp, name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the queues that get a queue's dead letters."""
    found = itertools.chain.from_iterable(_ways(amqp, name, arguments))
    return tuple(itertools.islice(found, MOST_LETTERS))


def _origins(amqp: Amqp, name: str) -> Iterator[str]:
    """Yield the queues whose dead letters go to a queue."""
    for other, each in amqp.queues.items():
        if any(name in found for found in _ways(amqp, other, each.fields["arguments"])):
            yield other


def _sorted_age(entry: Entry) -> float | None:
    """Return the age of the oldest message, for sorting; None without one."""
    oldest_ms = entry.fields["oldest_ms"]
    return None if oldest_ms is None else -oldest_ms


async def list_queues(view: View) -> Data:
    """Return the queues."""
    amqp = await _amqp(view)
    if amqp is None:
        return {"is_there": False, "list": None, "totals": {}, "left_out": 0}
    found = listed(
        view,
        amqp.queues.items(),
        {
            "name": lambda each: each[0],
            "ready": lambda each: each[1].fields["ready"],
            "unacknowledged": lambda each: each[1].fields["unacknowledged"],
            "consumers": lambda each: each[1].fields["consumer_count"],
            "dead": lambda each: each[1].fields["dead"],
            "oldest": lambda each: _sorted_age(each[1]),
            "in": lambda each: each[1].rates.get("published", 0.0),
            "out": lambda each: each[1].rates.get("delivered", 0.0),
        },
        search=lambda each: each[0],
        sort="-ready",
    )
    rows = [_row(amqp, *each) for each in found.rows]
    every = [each.fields for each in amqp.queues.values()]
    return {
        "is_there": True,
        "list": found.showing(rows),
        "totals": {
            "queues": len(every),
            "ready": sum(each["ready"] for each in every),
            "unacknowledged": sum(each["unacknowledged"] for each in every),
            "connections": len(amqp.connections),
            "consumers": sum(each["consumer_count"] for each in every),
        },
        "left_out": _left_out(amqp),
    }


async def describe(view: View) -> Data:
    """Return a queue: its figures, consumers, bindings and arguments."""
    name = view.needed("name")
    amqp = await _amqp(view)
    entry = None if amqp is None else amqp.queues.get(name)
    if amqp is None or entry is None:
        raise HttpError(404, "unknown_queue", f"queue {name[:200]} does not exist")
    fields = entry.fields
    connections = {each.partition(" -> ")[0]: each for each in amqp.connections}
    consumers = [
        {
            "tag": tag,
            "client": owner,
            "connection": connections.get(owner, ""),  # empty if it is not listed
            "unacknowledged": unacknowledged,
            "priority": priority,
            "active": active,
        }
        for tag, owner, unacknowledged, priority, active in fields["consumers"]
    ]
    bindings = [
        each
        for each in amqp.bindings
        if each["destination"] == name and each["destination_type"] == "queue"
    ]
    flags = [each for each in ("durable", "exclusive", "auto_delete") if fields[each]]
    return {
        "queue": _row(amqp, name, entry),
        "topic": fields["topic"],
        "flags": flags,
        "arguments": fields["arguments"],
        "counters": {key: fields[key] for key in ("published", "delivered", "acknowledged")},
        "redelivered": fields["redelivered"],
        "consumers": consumers,
        "bindings": bindings[:MOST_ROWS],
        "origins": list(itertools.islice(_origins(amqp, name), MOST_ROWS)),
        "most_moved": MOST_MOVED,
    }


async def purge(view: View, form: Form) -> Done:
    """Drop the messages of a queue that are ready."""
    name = view.needed("name")
    count = await _actions(view).purge(name)
    return Done(address("queue", name=name), f"Dropped {plural(count, 'message')} of {name}.")


async def move_back(view: View, form: Form) -> Done:
    """Return dead letters to the queues in which they died."""
    name = view.needed("name")
    moved = await _actions(view).move_back(name, MOST_MOVED)
    url = address("queue", name=name)
    text = "\n".join(
        f"{plural(count, 'message')} moved to {target}."
        for target, count in sorted(moved.targets.items())
    )
    if moved.stayed:
        text += f"\n{plural(moved.stayed, 'message')} stayed: without a queue to go back to."
    return Done(url, text.strip() or f"{name} has no message to move.")


# --- connections ---------------------------------------------------------------------------------


async def list_connections(view: View) -> Data:
    """Return the connections of AMQP."""
    amqp = await _amqp(view)
    if amqp is None:
        return {"is_there": False, "list": None, "left_out": 0}
    held: dict[str, int] = {}
    for channel in amqp.channels.values():
        name = channel.fields["connection"]
        held[name] = held.get(name, 0) + channel.fields["messages_unacknowledged"]
    rows = [
        {
            "name": name,
            "user": each.fields["user"],
            "client": _client(each.fields["client_properties"]),
            "channels": each.fields["channels"],
            "unacknowledged": held.get(name, 0),
            "state": each.fields["state"],
            "is_encrypted": each.fields["ssl"],
            "since_ms": each.fields["connected_at"],
        }
        for name, each in amqp.connections.items()
    ]
    found = listed(
        view,
        rows,
        {
            **by_key("name", "user", "channels", "unacknowledged"),
            "since": lambda each: each["since_ms"],
        },
        search=lambda each: f"{each['name']} {each['user']} {each['client']}",
        sort="-since",
    )
    return {"is_there": True, "list": found, "left_out": _left_out(amqp)}


def _client(about: Mapping[str, Any]) -> str:
    known = [about.get("connection_name"), about.get("product"), about.get("version")]
    return " ".join(str(each) for each in known if each)


async def close_connection(view: View, form: Form) -> Done:
    """Close a connection."""
    name = form.needed("name")
    await _actions(view).close_connection(name, "closed in the console")
    return Done(address("connections"), f"Closed {name}.")


async def check(view: View, snapshot: Snapshot) -> Sequence[Attention]:
    """Find queues that need attention, if they are followed now."""
    amqp = view.parts.amqp_state.latest if view.parts.amqp is not None else None
    if amqp is None:
        return []
    waiting = [
        (each.fields["ready"], name)
        for name, each in amqp.queues.items()
        if each.fields["ready"] and not each.fields["consumer_count"]
    ]
    return [
        Attention(
            "note",
            f"Queue {name} has {plural(count, 'message')} ready, and no consumer.",
            command_line("queue", "describe", name=name),
            address("queue", name=name),
        )
        for count, name in sorted(waiting, reverse=True)[:5]
    ]


QUEUES = Page(
    address="queues",
    about="Queues of AMQP: messages that are ready, out at consumers, and dead.",
    data=list_queues,
    section="Readers",
    live_s=3.0,
)
QUEUE = Page(
    address="queue",
    about="One queue: its consumers and bindings; empty it, or move dead letters back.",
    data=describe,
    actions={"purge": purge, "move-back": move_back},
    live_s=3.0,
    belongs_to="queues",
)
CONNECTIONS = Page(
    address="connections",
    about="Connections of AMQP clients, each with a button that closes it.",
    data=list_connections,
    actions={"close": close_connection},
    section="Readers",
    live_s=3.0,
)
