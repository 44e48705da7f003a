"""Answers questions about queues, exchanges and bindings.

A client sends a JSON object to the default exchange with the routing key ``tidemill.management``
and a direct reply-to, and gets a JSON object back: ``{"result": [...]}`` or ``{"error": "..."}``.
The questions are ``{"list": "queues"}``, ``"exchanges"`` and ``"bindings"``. It shows what the
client's user can see. Knows no connection.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.engine.door import Queues

KEY = "tidemill.management"
"""The routing key of questions."""


def answer(queues: Queues, question: bytes) -> bytes:
    """Return the answer to a question, as JSON."""
    try:
        asked = json.loads(question)
        subject = asked.get("list") if isinstance(asked, dict) else None
        found = _ANSWERS.get(subject) if isinstance(subject, str) else None
        if found is None:
            said: dict[str, Any] = {
                "error": f"invalid question: expected an object with list = {' or '.join(_ANSWERS)}"
            }
        else:
            said = {"result": found(queues)}
    except (ValueError, RecursionError) as error:
        said = {"error": f"the question is not JSON: {error}"}
    except TidemillError as error:
        said = {"error": str(error)}
    return json.dumps(said, default=_plain).encode()


def _queues(queues: Queues) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in queues.queues()]


def _exchanges(queues: Queues) -> list[dict[str, Any]]:
    return [{"name": name, **dataclasses.asdict(spec)} for name, spec in queues.exchanges()]


def _bindings(queues: Queues) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in queues.bindings()]


_ANSWERS: dict[str, Callable[[Queues], list[dict[str, Any]]]] = {
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
}


def _plain(value: object) -> object:
    """Return a value of an argument as JSON can have it."""
    match value:
        case bytes() | bytearray():
            return value.decode("utf-8", "replace")
        case datetime():
            return value.isoformat()
        case Decimal():
            return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
