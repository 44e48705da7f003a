"""Answers questions about queues, exchanges, bindings and permissions, and sets permissions.

A client sends a JSON object to the default exchange with the routing key ``tidemill.management``
and a direct reply-to, and gets a JSON object back: ``{"result": [...]}`` or ``{"error": "..."}``.
The questions are ``{"list": "queues"}``, ``"exchanges"``, ``"bindings"`` and ``"permissions"``. It
shows what the client's user can see. ``{"set": "permission", "user": "alice", "configure": "^$",
"write": ".*", "read": ".*"}`` sets a permission; with an ``exchange`` it is a topic permission, and
without expressions it is deleted. ``{"close": "connection", "name": "127.0.0.1:50210 ->
127.0.0.1:5672", "reason": "maintenance"}`` closes a connection: one's own, or any with ALTER on the
cluster. Knows no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidemill.engine.authorize import CLUSTER, Operation
from tidemill.errors import TidemillError
from tidemill.state.routing.errors import UnknownQueueError
from tidemill.state.security.machine import LONGEST_NAME
from tidemill.state.security.types import Permission, TopicPermission

if TYPE_CHECKING:
    from tidemill.engine.authorize import Access
    from tidemill.engine.door import Queues, Security
    from tidemill.protocols.amqp.connections import Connections

_SLICE = 32
"""Elements of a list between two turns of the event loop."""
TOO_MANY = json.dumps({"error": "too many questions are being answered"}).encode()
CLOSED = "closed by an administrator"
LONGEST_REASON = 200
"""Bytes of a reason. A reply text has at most 255, with the name of its code."""
KEY = "tidemill.management"
"""The routing key of questions."""


async def change(security: Security, question: bytes) -> bytes:
    """Set what a question asks for, if it is one with ``set``; return the answer, as JSON."""
    try:
        asked = json.loads(question)
        fields = _text_fields(asked)
        user, exchange = fields.pop("user"), fields.pop("exchange", None)
        if exchange is None:
            permission = Permission(**fields) if fields else None
            await security.set_permission(user, permission)
        else:
            topic = TopicPermission(**fields) if fields else None
            await security.set_topic_permission(user, exchange, topic)
    except (KeyError, TypeError) as error:
        return json.dumps({"error": f"invalid permission: {error}"}).encode()
    except TidemillError as error:
        return json.dumps({"error": f"{error}. {error.hint}".strip()}).encode()
    return json.dumps({"result": []}).encode()


def is_closing(question: bytes) -> bool:
    """Return whether a question is for ``close``."""
    try:
        asked = json.loads(question)
    except (ValueError, RecursionError):
        return False
    return isinstance(asked, dict) and asked.get("close") == "connection"


def close(connections: Connections, access: Access, user: str, question: bytes) -> bytes:
    """Close the connection that a question names; return the answer, as JSON.

    Args:
        access: of the user who asks.
    """
    asked = json.loads(question)
    name, reason = asked.get("name"), asked.get("reason") or CLOSED
    if not isinstance(name, str) or not isinstance(reason, str):
        return json.dumps({"error": "invalid question: name and reason are texts"}).encode()
    found = connections.find(name)
    try:
        if found is None or found.user != user:
            access.check(Operation.ALTER, CLUSTER)
    except TidemillError as error:
        return json.dumps({"error": str(error)}).encode()
    if found is None:
        problem = f"there is no connection {name[:200]!r}"
        return json.dumps({"error": problem, "kind": "not_found"}).encode()
    text = "".join(each if each.isprintable() else " " for each in reason)
    found.end(text.encode("utf-8", "replace")[:LONGEST_REASON].decode("utf-8", "ignore"))
    return json.dumps({"result": [name]}).encode()


def is_change(question: bytes) -> bool:
    """Return whether a question is for ``change``."""
    try:
        asked = json.loads(question)
    except (ValueError, RecursionError):
        return False
    return isinstance(asked, dict) and asked.get("set") == "permission"


def _text_fields(asked: dict[str, object]) -> dict[str, str]:
    """Return the fields of a change, which are all text.

    Raises:
        TypeError: one is not.
    """
    fields = {name: value for name, value in asked.items() if name != "set"}
    for name, value in fields.items():
        if not isinstance(value, str) or len(value) > LONGEST_NAME:
            raise TypeError(f"{name} is not a text, or is too long")
    return {name: str(value) for name, value in fields.items()}


async def answer(queues: Queues, security: Security, question: bytes) -> bytes:
    """Return the answer to a question, as JSON. Others run between parts of a long list."""
    try:
        asked = json.loads(question)
        subject = asked.get("list") if isinstance(asked, dict) else None
        found = _ANSWERS.get(subject) if isinstance(subject, str) else None
        if subject == "permissions":
            return json.dumps({"result": security.permissions()}).encode()
        if found is None:
            said: dict[str, Any] = {
                "error": f"invalid question: expected an object with list = {' or '.join(_ANSWERS)}"
            }
        else:
            return await _listed(found(queues))
    except (ValueError, RecursionError) as error:
        said = {"error": f"the question is not JSON: {error}"}
    except TidemillError as error:
        said = {"error": str(error)}
    return json.dumps(said, default=plain).encode()


async def _listed(found: Iterator[dict[str, Any]]) -> bytes:
    parts: list[str] = []
    for each in found:
        parts.append(json.dumps(each, default=plain))
        if len(parts) % _SLICE == 0:
            await asyncio.sleep(0)
    return f'{{"result": [{", ".join(parts)}]}}'.encode()


def _queues(queues: Queues) -> Iterator[dict[str, Any]]:
    for name in sorted(queues.names()):
        with contextlib.suppress(UnknownQueueError):  # it was deleted meanwhile
            yield dataclasses.asdict(queues.describe(name))


def _exchanges(queues: Queues) -> Iterator[dict[str, Any]]:
    for name, spec in queues.exchanges():
        yield {"name": name, **dataclasses.asdict(spec)}


def _bindings(queues: Queues) -> Iterator[dict[str, Any]]:
    for each in queues.bindings():
        yield dataclasses.asdict(each)


_ANSWERS: dict[str, Callable[[Queues], Iterator[dict[str, Any]]]] = {
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
}


def plain(value: object) -> object:
    """Return a value of an argument as JSON can have it."""
    match value:
        case bytes() | bytearray():
            return value.decode("utf-8", "replace")
        case datetime():
            return value.isoformat()
        case Decimal():
            return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
