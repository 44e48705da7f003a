"""The commands of the routing table: check a declaration, and return its records.

A command changes nothing. The engine writes its records where they must survive, and then replays
them. Knows neither logs nor consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.state.outcome import StateRecord
from tidemill.state.routing.arguments import EXCHANGE_ARGUMENTS, QUEUE_ARGUMENTS, check_arguments
from tidemill.state.routing.errors import (
    InvalidQueueArgumentError,
    InvalidQueueNameError,
    PreconditionError,
    QueueInUseError,
    UnknownExchangeError,
    UnknownExchangeTypeError,
)
from tidemill.state.routing.format import (
    BINDING,
    EXCHANGE,
    QUEUE,
    encode_binding,
    encode_exchange,
    encode_key,
    encode_queue,
)
from tidemill.state.routing.table import RoutingTable
from tidemill.state.routing.types import (
    EXCHANGE_TYPES,
    Binding,
    Destination,
    ExchangeSpec,
    QueueDefinition,
)

MAX_NAME_BYTES = 255
MAX_BINDINGS = 100_000
"""Bindings that exist at the same time. Each is in memory."""
_X_MATCH = ("all", "any", "all-with-x", "any-with-x")


def check_name(kind: str, name: str) -> None:
    """Check the length and the characters of a name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidQueueNameError(f"the name of the {kind} is not UTF-8", name) from error
    if size > MAX_NAME_BYTES:
        raise InvalidQueueNameError(
            f"the name of the {kind} has {size} bytes; the limit is {MAX_NAME_BYTES}", name
        )


# --- exchanges -----------------------------------------------------------------------------------


def declare_exchange(table: RoutingTable, name: str, new: ExchangeSpec) -> list[StateRecord]:
    """Return the records of an exchange; none if it exists."""
    check_name("exchange", name)
    if new.type not in EXCHANGE_TYPES:
        raise UnknownExchangeTypeError(name, new.type)
    check_arguments("exchange", name, new.arguments, EXCHANGE_ARGUMENTS)
    current = table.exchanges.get(name)
    if current is None:
        return [StateRecord(encode_key(EXCHANGE, name), encode_exchange(new))]
    _compare(
        "exchange",
        name,
        {
            "type": (current.type, new.type),
            "durable": (current.durable, new.durable),
            "auto_delete": (current.auto_delete, new.auto_delete),
            "internal": (current.internal, new.internal),
        },
        current.arguments,
        new.arguments,
    )
    return []


def delete_exchange(table: RoutingTable, name: str, *, if_unused: bool) -> list[StateRecord]:
    """Return the records that delete an exchange and its bindings."""
    bindings = table.bindings_from(name)
    if if_unused and bindings:
        raise QueueInUseError("exchange", name)
    bindings += table.bindings_to(Destination(EXCHANGE, name))
    return [*_without(bindings), StateRecord(encode_key(EXCHANGE, name), None)]


# --- queues --------------------------------------------------------------------------------------


def check_same_queue(current: QueueDefinition, new: QueueDefinition) -> None:
    """Compare a queue with another declaration of it."""
    _compare(
        "queue",
        current.name,
        {
            "durable": (current.durable, new.durable),
            "exclusive": (current.exclusive, new.exclusive),
            "auto_delete": (current.auto_delete, new.auto_delete),
        },
        current.arguments,
        new.arguments,
    )


def declare_queue(new: QueueDefinition) -> list[StateRecord]:
    """Return the records of a new queue."""
    return [StateRecord(encode_key(QUEUE, new.name), encode_queue(new))]


def delete_queue(table: RoutingTable, name: str) -> list[StateRecord]:
    """Return the records that delete a queue and its bindings. A topic has bindings at most."""
    bindings = table.bindings_to(Destination(QUEUE, name))
    queue = [StateRecord(encode_key(QUEUE, name), None)] if name in table.queues else []
    return [*_without(bindings), *queue]


# --- bindings ------------------------------------------------------------------------------------


def bind(table: RoutingTable, new: Binding) -> list[StateRecord]:
    """Return the records of a binding; none if it exists."""
    source = table.exchanges.get(new.source)
    if source is None:
        raise UnknownExchangeError(new.source)
    if new.destination.kind == EXCHANGE and new.destination.name not in table.exchanges:
        raise UnknownExchangeError(new.destination.name)
    if source.type == "headers" and new.arguments.get("x-match", "all") not in _X_MATCH:
        raise InvalidQueueArgumentError(
            "binding", new.destination.name, "x-match", f"expected one of {', '.join(_X_MATCH)}"
        )
    if table.has_binding(new.identity):
        return []
    if len(table.bindings()) >= MAX_BINDINGS:
        raise InvalidQueueArgumentError(
            "binding", new.destination.name, "source", f"there are {MAX_BINDINGS} bindings already"
        )
    return [StateRecord(encode_key(BINDING, new.identity), encode_binding(new))]


def unbind(table: RoutingTable, old: Binding) -> list[StateRecord]:
    """Return the records that remove a binding; none if it, or one of its ends, does not exist."""
    return _without([old]) if table.has_binding(old.identity) else []


def unused_exchanges(table: RoutingTable, sources: Iterable[str]) -> list[str]:
    """Return the exchanges with auto-delete among ``sources`` that have no bindings left."""
    return [
        name
        for name in dict.fromkeys(sources)
        if name in table.exchanges
        and table.exchanges[name].auto_delete
        and not table.bindings_from(name)
    ]


def _without(bindings: Iterable[Binding]) -> list[StateRecord]:
    identities = dict.fromkeys(binding.identity for binding in bindings)
    return [StateRecord(encode_key(BINDING, each), None) for each in identities]


def _compare(
    kind: str,
    name: str,
    fields: Mapping[str, tuple[object, object]],
    current: Mapping[str, object],
    received: Mapping[str, object],
) -> None:
    """Raise ``PreconditionError`` for the first difference; unknown arguments don't count."""
    for argument, (one, other) in fields.items():
        if one != other:
            raise PreconditionError(kind, name, argument, one, other)
    known = EXCHANGE_ARGUMENTS if kind == "exchange" else QUEUE_ARGUMENTS
    for argument in sorted({*current, *received} & known.keys()):
        one, other = current.get(argument), received.get(argument)
        if argument == "x-queue-type":
            one, other = one or "classic", other or "classic"
        if one != other:
            raise PreconditionError(kind, name, argument, one, other)
