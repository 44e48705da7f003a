"""Event classes to stored events and back: names, schema versions, upcasting.

Pydantic checks and encodes the content, so an event is any class that pydantic understands: a
dataclass, a named tuple, a model. Knows no store.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from tidemill.eventstore.app.context import Context
from tidemill.eventstore.app.errors import (
    DeclarationError,
    InvalidEventError,
    UnknownEventTypeError,
)
from tidemill.eventstore.events import NewEvent, StoredEvent
from tidemill.eventstore.ids import new_id

RESERVED = "process."
"""The names of the events that process managers write about their work begin with this."""

Event = TypeVar("Event")
Upcast = Callable[[dict[str, Any]], dict[str, Any]]
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def in_words(name: str, between: str) -> str:
    """Return the name of a class in small letters: ``AccountOpened`` is ``account opened``."""
    return _CAPITALS.sub(between, name).lower()


@dataclass(frozen=True, slots=True)
class _Kind:
    """One class of events."""

    name: str
    version: int
    adapter: TypeAdapter[Any]
    tags: Callable[[Any], Iterable[str]] | None


class Codec:
    """The classes of the events of an application, with their stored names.

        events = Codec()

        @events.event("account opened")
        @dataclass(frozen=True)
        class Opened:
            owner: str

    The stored name stays when the class is renamed. A new shape gets a new schema version, and a
    function that makes it of the old one (``upcast``).
    """

    def __init__(self) -> None:
        self._kinds: dict[type, _Kind] = {}
        self._classes: dict[str, type] = {}
        self._upcasts: dict[tuple[str, int], tuple[str, Upcast]] = {}

    def event(
        self,
        name: str | None = None,
        *,
        version: int = 1,
        tags: Callable[[Any], Iterable[str]] | None = None,
    ) -> Callable[[type[Event]], type[Event]]:
        """Return a decorator that registers a class of events.

        Args:
            name: the stored name; by default that of the class, in words.
            version: the version of the schema, from 1.
            tags: returns the tags of an event, for append conditions and queries.

        Raises:
            DeclarationError: the name or the class is registered already, or is reserved.
        """

        def register(owner: type[Event]) -> type[Event]:
            stored = in_words(owner.__name__, " ") if name is None else name
            if stored.startswith(RESERVED) or not stored.strip():
                raise DeclarationError(
                    f"invalid event name {stored!r}: it is empty or begins with {RESERVED!r}"
                )
            self._register(owner, _Kind(stored, version, TypeAdapter(owner), tags))
            return owner

        return register

    def _register(self, owner: type, kind: _Kind) -> None:
        if owner in self._kinds or kind.name in self._classes:
            raise DeclarationError(
                f"event {kind.name!r} ({owner.__name__}) is registered twice",
                hint="Give each class of events a name of its own.",
            )
        if kind.version < 1:
            raise DeclarationError(f"invalid version {kind.version} of {kind.name!r}: from 1")
        self._kinds[owner] = kind
        self._classes[kind.name] = owner

    def upcast(
        self, name: str, version: int, *, to: str | None = None
    ) -> Callable[[Upcast], Upcast]:
        """Return a decorator for a function from one schema version to the next.

        The function takes and returns the content as a dict of JSON values. Functions are chained:
        version 1 becomes 2, then 3.

        Args:
            name: the stored name.
            version: the version that the function takes.
            to: the new stored name, if it changes: its version 1 is the result.
        """

        def register(function: Upcast) -> Upcast:
            if (name, version) in self._upcasts:
                raise DeclarationError(f"version {version} of {name!r} has two upcasts")
            self._upcasts[name, version] = (to or name, function)
            return function

        return register

    def encode(
        self,
        event: object,
        context: Context | None = None,
        *,
        event_id: uuid.UUID | None = None,
        tags: Iterable[str] = (),
    ) -> NewEvent:
        """Return an event as it is stored.

        Args:
            tags: in addition to those that its class declares.

        Raises:
            DeclarationError: its class is not registered.
        """
        kind = self._kind(type(event))
        own = kind.tags(event) if kind.tags is not None else ()
        return NewEvent(
            type=kind.name,
            data=kind.adapter.dump_json(event),
            id=event_id or new_id(),
            metadata=b"" if context is None else context.encode(),
            tags=frozenset((*own, *tags)),
            schema=kind.version,
        )

    def decode(self, stored: StoredEvent) -> Any:
        """Return a stored event as an object of its class, in the present version.

        Raises:
            UnknownEventTypeError: the name or the version is not known.
            InvalidEventError: the content does not fit the class.
        """
        name, version, data = stored.type, stored.schema, stored.data
        if (name, version) in self._upcasts:
            name, version, data = self._upcasted(stored)
        owner = self._classes.get(name)
        kind = self._kinds[owner] if owner is not None else None
        if kind is None or kind.version != version:
            raise UnknownEventTypeError(
                f"unknown event {name!r} version {version} at position {stored.position}",
                hint="Register its class, or an upcast. A newer version means that a newer "
                "program wrote it: update this one.",
            )
        try:
            return kind.adapter.validate_json(data)
        except ValidationError as error:
            raise InvalidEventError(
                f"invalid event {name!r} at position {stored.position}: {error}",
                hint="A changed class needs a new schema version and an upcast.",
            ) from error

    def _upcasted(self, stored: StoredEvent) -> tuple[str, int, bytes]:
        name, version = stored.type, stored.schema
        try:
            content = orjson.loads(stored.data)
        except orjson.JSONDecodeError as error:
            raise InvalidEventError(
                f"event {stored.type!r} at position {stored.position} is not JSON"
            ) from error
        passed: set[tuple[str, int]] = set()
        while (step := self._upcasts.get((name, version))) is not None:
            if (name, version) in passed:
                raise DeclarationError(f"the upcasts of {stored.type!r} form a circle")
            passed.add((name, version))
            renamed, function = step
            try:
                content = function(content)
            except Exception as error:
                raise InvalidEventError(
                    f"the upcast of {name!r} version {version} failed at position "
                    f"{stored.position}: {error!r}"
                ) from error
            version = version + 1 if renamed == name else 1
            name = renamed
        return name, version, orjson.dumps(content)

    def names(self, classes: Iterable[type]) -> frozenset[str]:
        """Return the stored names of classes, with the earlier ones that become them."""
        wanted = {self._kind(each).name for each in classes}
        grown = True
        while grown:
            earlier = {old for (old, _), (new, _) in self._upcasts.items() if new in wanted}
            grown = not earlier <= wanted
            wanted |= earlier
        return frozenset(wanted)

    def name(self, owner: type) -> str:
        """Return the stored name of a class."""
        return self._kind(owner).name

    def decided(self, result: object) -> tuple[object, ...]:
        """Return what a command has returned as events: one, several (an iterable) or None.

        Raises:
            DeclarationError: it is neither a registered event nor an iterable of them.
        """
        if result is None or type(result) in self._kinds:
            return () if result is None else (result,)
        events = tuple(result) if isinstance(result, Iterable) else (result,)
        for each in events:
            self._kind(type(each))
        return events

    def is_event(self, value: object) -> bool:
        """Return whether the class of a value is registered."""
        return type(value) in self._kinds

    def _kind(self, owner: type) -> _Kind:
        try:
            return self._kinds[owner]
        except KeyError:
            raise DeclarationError(
                f"{owner.__name__} is not a registered event",
                hint="Put @codec.event() above its class.",
            ) from None
