"""Errors of queues, exchanges and bindings. A protocol translates them in one table of codes."""

from __future__ import annotations

from tidemill.errors import TidemillError


class QueueError(TidemillError):
    """Base of the errors of queues and exchanges.

    Attributes:
        name: the queue or the exchange.
    """

    def __init__(self, message: str, name: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.name = name


class UnknownQueueError(QueueError):
    """The queue does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no queue {name!r}", name, hint="Declare the queue first.")


class UnknownExchangeError(QueueError):
    """The exchange does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no exchange {name!r}", name, hint="Declare the exchange first.")


class PreconditionError(QueueError):
    """The queue or the exchange exists with another argument than the declaration asks for.

    Attributes:
        kind: ``queue`` or ``exchange``.
        argument: what differs: ``durable``, ``auto_delete``, ``exclusive``, ``type``, ``internal``
            or the name of an argument (``x-max-length``).
        current, received: its two values; None for an argument that is absent.
    """

    def __init__(
        self, kind: str, name: str, argument: str, current: object, received: object
    ) -> None:
        super().__init__(
            f"{kind} {name!r} exists with {argument}={current!r}; received {received!r}",
            name,
            hint=f"Declare the {kind} with the same arguments, or delete it first.",
        )
        self.kind = kind
        self.argument = argument
        self.current = current
        self.received = received


class InvalidQueueArgumentError(QueueError):
    """An argument of a queue, an exchange, a binding or a consumer is unknown or invalid.

    Attributes:
        argument: the name of the argument.
        kind: ``queue``, ``exchange``, ``binding`` or ``consumer``.
        unknown: whether tidemill does not know the argument.
    """

    def __init__(
        self, kind: str, name: str, argument: str, problem: str, *, unknown: bool = False
    ) -> None:
        super().__init__(f"invalid argument {argument!r} for {kind} {name!r}: {problem}", name)
        self.kind = kind
        self.argument = argument
        self.problem = problem
        self.unknown = unknown


class UnknownExchangeTypeError(QueueError):
    """The type of an exchange is not direct, fanout, topic or headers.

    Attributes:
        type: the type that was asked for.
    """

    def __init__(self, name: str, type_: str) -> None:
        super().__init__(
            f"unknown type {type_!r} of exchange {name!r}",
            name,
            hint="Use direct, fanout, topic or headers.",
        )
        self.type = type_


class InvalidQueueNameError(QueueError):
    """The name of a queue or an exchange is too long or has characters that can't be stored."""


class ResourceLockedError(QueueError):
    """The queue is exclusive to another connection."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} is exclusive to another connection", name)


class ConsumerAccessError(QueueError):
    """The queue has an exclusive consumer, or has consumers where exclusive access is asked for."""


class QueueInUseError(QueueError):
    """The queue has consumers, or the exchange has bindings, and the deletion forbids that.

    Attributes:
        kind: ``queue`` or ``exchange``.
    """

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} is in use", name)
        self.kind = kind


class QueueNotEmptyError(QueueError):
    """The queue has messages, and the deletion forbids that."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} is not empty", name)


class NotSupportedByStreamError(QueueError):
    """A queue of the type stream can't do this.

    Attributes:
        operation: what was asked for, such as ``purge`` or ``get``.
    """

    def __init__(self, name: str, operation: str) -> None:
        super().__init__(f"queue {name!r} is a stream, which does not support {operation}", name)
        self.operation = operation


class MessageRefusedError(QueueError):
    """The queue can't take the message, such as one that is larger than its topic allows."""
