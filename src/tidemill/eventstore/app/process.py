"""Process managers: they react to events with commands, and remember where they are.

A process manager is an aggregate (``repository``) whose class also has methods ``on_…``. Each
takes an event and returns *reactions*: events of its own, ``Send`` for a command to another
aggregate, ``Timeout`` and ``Cancel``. Everything that follows from an event is stored in one
commit, before anything is done. So all of it is done once, whenever a worker dies.

Must not know: brokers, databases, the wall clock (it is passed in).
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from tidemill.eventstore.app.codec import RESERVED, Codec
from tidemill.eventstore.app.errors import DeclarationError
from tidemill.eventstore.events import StoredEvent

DECIDED = RESERVED + "decided"
REFUSED = RESERVED + "refused"
UNCHANGED = RESERVED + "unchanged"
CHECKPOINT = RESERVED + "checkpoint"


@dataclasses.dataclass(init=False, repr=False, slots=True, unsafe_hash=True)
class Send:
    """A reaction: run a command on another aggregate.

        Send(Account.withdraw, event.source, cents=event.cents)

    Args:
        command: the method of its class.
        to: the id of the aggregate.
        arguments: the arguments of the method, by name: values that JSON can hold, or that
            pydantic makes of JSON by the annotations of the method.
    """

    command: Callable[..., Any]
    to: str
    arguments: dict[str, Any] = dataclasses.field(hash=False)

    def __init__(self, command: Callable[..., Any], to: str, /, **arguments: Any) -> None:
        self.command = command
        self.to = to
        self.arguments = arguments

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"Send({self.command.__qualname__}, {self.to!r}{given})"


@dataclasses.dataclass(frozen=True, slots=True)
class Timeout:
    """A reaction: if nothing cancels it, this event happens to the process manager after a time.

    A process manager has one time-out for each class of events; another one replaces it.

    Attributes:
        event: what happens then.
        after: how long after the event that is reacted to.
    """

    event: object
    after: timedelta


@dataclasses.dataclass(frozen=True, slots=True)
class Cancel:
    """A reaction: the time-out with this class of events does not happen."""

    event: type


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """Happens to a process manager: one of its commands was refused.

    Attributes:
        command: the name of the method.
        to: the id of the aggregate.
        reason: the text of the error.
        error: the name of its class.
    """

    command: str
    to: str
    reason: str
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class StoredCommand:
    """A command as a decision has stored it.

    Attributes:
        category: of the aggregate.
        to: its id.
        method: the name of the method.
        arguments: by name, as JSON values.
    """

    category: str
    to: str
    method: str
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTimeout:
    """A time-out as a decision has stored it.

    Attributes:
        type: the stored name of the event.
        schema: its version.
        data: its content.
        due_ms: when it happens.
    """

    type: str
    schema: int
    data: str
    due_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """All that a process manager has decided about an event: the content of ``process.decided``.

    Attributes:
        cause: the id of the event.
        position: its position.
        commands: what is to be done, in this order.
        timeouts: what happens later.
        cancelled: the stored names of time-outs that do not happen any more.
    """

    cause: str
    position: int
    commands: tuple[StoredCommand, ...] = ()
    timeouts: tuple[StoredTimeout, ...] = ()
    cancelled: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTimeout:
    """A time-out that has not happened yet.

    Attributes:
        stream: the process manager's.
        set_by: the id of the decision.
        position: the position of the decision.
        timeout: what happens, and when.
    """

    stream: str
    set_by: str
    position: int
    timeout: StoredTimeout


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The place where a worker can continue: the content of ``process.checkpoint``.

    Attributes:
        position: everything up to it is done.
        timeouts: those that were open there.
    """

    position: int
    timeouts: tuple[OpenTimeout, ...] = ()


DECISIONS = TypeAdapter(Decision)
CHECKPOINTS = TypeAdapter(Checkpoint)
REFUSALS = TypeAdapter(Refused)


def timeout_tag(stream: str, name: str) -> str:
    """Return the tag of what sets, cancels or is a time-out of a process manager."""
    return f"timeout:{stream}/{name}"


def decide(
    reactions: object,
    cause: StoredEvent,
    codec: Codec,
    categories: Mapping[type, str],
) -> tuple[Decision, list[object]]:
    """Return the decision in the reactions to an event, and the events among them.

    Args:
        categories: the categories of the aggregates that get commands, by their classes.

    Raises:
        DeclarationError: a reaction is not valid.
    """
    commands: list[StoredCommand] = []
    timeouts: list[StoredTimeout] = []
    cancelled: list[str] = []
    events: list[object] = []
    for each in _listed(reactions, codec):
        if isinstance(each, Send):
            commands.append(_stored_command(each, categories))
        elif isinstance(each, Timeout):
            new = codec.encode(each.event)
            due_ms = cause.time_ms + int(each.after.total_seconds() * 1000)
            timeouts.append(StoredTimeout(new.type, new.schema, new.data.decode(), due_ms))
        elif isinstance(each, Cancel):
            cancelled.append(codec.name(each.event))
        else:
            events.extend(codec.decided(each))
    decision = Decision(
        str(cause.id), cause.position, tuple(commands), tuple(timeouts), tuple(cancelled)
    )
    return decision, events


def _listed(reactions: object, codec: Codec) -> Iterable[object]:
    if reactions is None:
        return ()
    if isinstance(reactions, Send | Timeout | Cancel) or codec.is_event(reactions):
        return (reactions,)
    if not isinstance(reactions, Iterable):
        raise DeclarationError(
            f"invalid reaction {reactions!r}",
            hint="Return events, Send, Timeout or Cancel: one of them, or several.",
        )
    return reactions


def _stored_command(sent: Send, categories: Mapping[type, str]) -> StoredCommand:
    name = sent.command.__name__
    for owner, category in categories.items():
        if getattr(owner, name, None) is sent.command:
            try:
                arguments = to_jsonable_python(sent.arguments)
                inspect.signature(sent.command).bind(None, **sent.arguments)
            except (TypeError, ValueError) as error:
                raise DeclarationError(f"invalid arguments of {sent!r}: {error}") from error
            return StoredCommand(category, str(sent.to), name, arguments)
    raise DeclarationError(
        f"{sent.command.__qualname__} is not a method of an aggregate that the worker knows",
        hint="Give its repository to the worker (targets).",
    )


def bound(command: StoredCommand, owner: type) -> Callable[[Any], Any]:
    """Return a stored command as a function of the aggregate.

    Raises:
        DeclarationError: the class has no such method any more, or the arguments do not fit.
    """
    method = getattr(owner, command.method, None)
    if method is None:
        raise DeclarationError(
            f"{owner.__name__} has no method {command.method!r}, to which a process has sent a "
            "command",
            hint="Keep the method until no command is left.",
        )
    hints = typing.get_type_hints(method)
    try:
        arguments = {
            name: TypeAdapter(hints[name]).validate_json(orjson.dumps(value))
            if name in hints
            else value
            for name, value in command.arguments.items()
        }
    except ValidationError as error:
        raise DeclarationError(
            f"invalid arguments of {owner.__name__}.{command.method}: {error}"
        ) from error
    return lambda state: method(state, **arguments)


def command_id(decision: uuid.UUID, number: int) -> str:
    """Return the id of a command of a decision: it makes the command happen once."""
    return f"{decision}:{number}"


def classes_of(targets: Sequence[Any]) -> dict[type, str]:
    """Return the categories of repositories by the classes of their aggregates.

    Raises:
        DeclarationError: one makes its aggregates with a function, so commands can't be found.
    """
    found: dict[type, str] = {}
    for each in targets:
        if not isinstance(each.aggregate, type):
            raise DeclarationError(
                f"the repository of {each.category!r} is not made with a class",
                hint="A process manager sends commands to methods of a class.",
            )
        found[each.aggregate] = each.category
    return found
