"""Test aggregates without a store: given events, when a command, then events.

    given(Account, Opened("ada"), Deposited(10)).when(Account.withdraw, 7).then(Withdrawn(7))

For a process manager, the command is a reaction to an event, and what follows has commands:

    given(Transfer).when(Transfer.on_requested, order).then(Send(Account.withdraw, "ada", cents=7))

Failures are ``AssertionError``, so it works with any test runner. With ``codec``, each event also
goes through its stored form and back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tidemill.eventstore.app.codec import Codec
from tidemill.eventstore.app.handlers import evolve
from tidemill.eventstore.app.process import Cancel, Send, Timeout
from tidemill.eventstore.events import StoredEvent

State = TypeVar("State")


def given(
    aggregate: Callable[[], State], *events: object, codec: Codec | None = None
) -> Case[State]:
    """Return a test case: an aggregate to which these events have happened."""
    return Case(aggregate(), codec)._behind(events)


def as_stored(codec: Codec, event: object, **place: Any) -> StoredEvent:
    """Return an event as a store would return it, for tests of projections and processes.

    Args:
        place: attributes of the stored event, as ``stream``; they have defaults.
    """
    new = codec.encode(event)
    defaults: dict[str, Any] = {
        "stream": "test-1",
        "version": 1,
        "position": 1,
        "time_ms": int(time.time() * 1000),
        "id": uuid.uuid4(),
        "metadata": new.metadata,
    }
    return StoredEvent(
        type=new.type, data=new.data, tags=new.tags, schema=new.schema, **{**defaults, **place}
    )


class Case(Generic[State]):
    """An aggregate of a test, with what its last command decided.

    Attributes:
        state: the aggregate, behind all events so far.
    """

    def __init__(self, state: State, codec: Codec | None) -> None:
        self.state = state
        self._codec = codec
        self._decided: tuple[object, ...] | None = None
        self._raised: Exception | None = None

    def _behind(self, events: tuple[object, ...]) -> Case[State]:
        for event in events:
            self.state = evolve(self.state, self._stored_and_back(event))
        return self

    def _stored_and_back(self, event: object) -> object:
        if self._codec is None:
            return event
        back = self._codec.decode(as_stored(self._codec, event))
        assert back == event, f"the stored form of {event!r} is read as {back!r}"
        return back

    def when(self, command: Callable[..., object], *arguments: Any, **named: Any) -> Case[State]:
        """Run a command: a method of the aggregate, or any function of it."""
        assert self._raised is None, f"the last command raised {self._raised!r}"
        try:
            result = command(self.state, *arguments, **named)
            self._decided = _as_events(result, self._codec)
        except AssertionError:
            raise
        except Exception as error:
            self._raised, self._decided = error, None
            return self
        events = (each for each in self._decided if not isinstance(each, Send | Timeout | Cancel))
        return self._behind(tuple(events))

    def then(self, *events: object) -> Case[State]:
        """Check that the last command decided exactly these events, or reactions."""
        if self._raised is not None:
            raise AssertionError(f"expected {events!r}, but it raised") from self._raised
        assert self._decided is not None, "there was no command: call when() before then()"
        assert self._decided == events, f"expected {events!r}, got {self._decided!r}"
        return self

    def raises(self, kind: type[Exception], text: str = "") -> Case[State]:
        """Check that the last command raised an error of a class, with a text in its message."""
        assert self._raised is not None, f"expected {kind.__name__}, got {self._decided!r}"
        if not isinstance(self._raised, kind) or text not in str(self._raised):
            raise AssertionError(f"expected {kind.__name__} {text!r}") from self._raised
        self._raised = None
        return self

    def is_now(self, **values: object) -> Case[State]:
        """Check attributes of the aggregate."""
        found = {name: getattr(self.state, name) for name in values}
        assert found == values, f"expected {values!r}, got {found!r}"
        return self


def _as_events(result: object, codec: Codec | None) -> tuple[object, ...]:
    if result is None:
        return ()
    if isinstance(result, Send | Timeout | Cancel) or (codec and codec.is_event(result)):
        return (result,)
    marks = ("_fields", "__dataclass_fields__", "model_fields")
    is_one = any(hasattr(type(result), each) for each in marks)
    return (result,) if is_one or not isinstance(result, Iterable) else tuple(result)
