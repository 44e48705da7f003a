"""Translates the engine's errors to AMQP's codes, with the texts that RabbitMQ's clients know.

This is the only table of codes. It must not decide anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from tidemill.engine.errors import AuthorizationError, BrokerStoppingError
from tidemill.engine.queues import errors
from tidemill.errors import TidemillError
from tidemill.log.errors import TooManyOpenFilesError
from tidemill.metrics.errors import count_error
from tidemill.protocols.amqp.errors import AmqpError, ChannelClosedError, ConnectionClosedError

E = TypeVar("E", bound=TidemillError)

VHOST = "/"
"""The only virtual host."""


def amqp_error(error: TidemillError) -> AmqpError:
    """Return the error with which a channel or a connection is closed."""
    count_error("amqp", type(error))
    if isinstance(error, AmqpError):
        return error
    for kind in type(error).__mro__:
        make = _TABLE.get(kind)
        if make is not None:
            return make(error)
    return ConnectionClosedError(541, str(error))


def not_found(kind: str, name: str) -> ChannelClosedError:
    """Return the error for a queue or an exchange that does not exist."""
    return ChannelClosedError(404, f"no {kind} '{name}' in vhost '{VHOST}'")


def precondition(problem: str) -> ChannelClosedError:
    """Return the error for something that does not fit."""
    return ChannelClosedError(406, problem)


def _inequivalent(error: errors.PreconditionError) -> AmqpError:
    if error.argument == "exclusive":
        return _locked(error)
    where = (
        f"inequivalent arg '{error.argument}' for {error.kind} '{error.name}' in vhost '{VHOST}'"
    )
    if error.argument.startswith("x-") or error.argument == "alternate-exchange":
        received, current = _typed(error.received), _typed(error.current)
        return precondition(f"{where}: received {received} but current is {current}")
    received, current = _plain(error.received), _plain(error.current)
    return precondition(f"{where}: received '{received}' but current is '{current}'")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(value: object) -> str:
    if value is None:
        return "none"
    names = {bool: "bool", int: "long", str: "longstr", float: "double", bytes: "longstr"}
    return f"the value '{_plain(value)}' of type '{names.get(type(value), 'table')}'"


def _invalid_argument(error: errors.InvalidQueueArgumentError) -> AmqpError:
    what = "unknown argument" if error.unknown else "invalid arg"
    return precondition(
        f"{what} '{error.argument}' for {error.kind} '{error.name}' in vhost '{VHOST}': "
        f"{error.problem}"
    )


def _locked(error: errors.QueueError) -> AmqpError:
    return ChannelClosedError(
        405,
        f"cannot obtain exclusive access to locked queue '{error.name}' in vhost '{VHOST}'. It "
        "could be originally declared on another connection or the exclusive property value does "
        "not match that of the original declaration.",
    )


def _in_use(error: errors.QueueInUseError) -> AmqpError:
    return precondition(f"{error.kind} '{error.name}' in vhost '{VHOST}' in use")


def _reserved(error: errors.ReservedNameError) -> AmqpError:
    if not error.name:
        return ChannelClosedError(403, "operation not permitted on the default exchange")
    return ChannelClosedError(
        403, f"{error.kind} name '{error.name}' contains reserved prefix 'amq.*'"
    )


_TABLE: dict[type, Callable[[TidemillError], AmqpError]] = {}


def _add(kind: type[E], make: Callable[[E], AmqpError]) -> None:
    _TABLE[kind] = cast("Callable[[TidemillError], AmqpError]", make)


_add(errors.UnknownQueueError, lambda error: not_found("queue", error.name))
_add(errors.UnknownExchangeError, lambda error: not_found("exchange", error.name))
_add(errors.PreconditionError, _inequivalent)
_add(errors.InvalidQueueArgumentError, _invalid_argument)
_add(
    errors.UnknownExchangeTypeError,
    lambda error: precondition(f"unknown exchange type '{error.type}'"),
)
_add(errors.InvalidQueueNameError, lambda error: precondition(str(error)))
_add(errors.MessageRefusedError, lambda error: precondition(str(error)))
_add(errors.ResourceLockedError, _locked)
_add(
    errors.ConsumerAccessError,
    lambda error: ChannelClosedError(
        403, f"queue '{error.name}' in vhost '{VHOST}' in exclusive use"
    ),
)
_add(errors.QueueInUseError, _in_use)
_add(
    errors.QueueNotEmptyError,
    lambda error: precondition(f"queue '{error.name}' in vhost '{VHOST}' not empty"),
)
_add(
    errors.NotSupportedByStreamError,
    lambda error: ConnectionClosedError(
        540, f"{error.operation} is not supported by stream queue '{error.name}' in vhost '{VHOST}'"
    ),
)
_add(errors.ReservedNameError, _reserved)
_add(
    errors.InternalExchangeError,
    lambda error: ChannelClosedError(
        403, f"cannot publish to internal exchange '{error.name}' in vhost '{VHOST}'"
    ),
)
_add(AuthorizationError, lambda error: ChannelClosedError(403, str(error)))
_add(
    BrokerStoppingError,
    lambda _: ConnectionClosedError(320, "broker forced connection closure with reason 'shutdown'"),
)
_add(TooManyOpenFilesError, lambda error: ChannelClosedError(506, str(error)))
