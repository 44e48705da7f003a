"""Errors of queues, exchanges and bindings. A protocol translates them in one table of codes.

Those of the declarations come from ``state.routing.errors``.
"""

from __future__ import annotations

from tidemill.engine.errors import AuthorizationError
from tidemill.state.routing.errors import (
    ConsumerAccessError,
    InvalidQueueArgumentError,
    InvalidQueueNameError,
    MessageRefusedError,
    NotSupportedByStreamError,
    PreconditionError,
    QueueError,
    QueueInUseError,
    QueueNotEmptyError,
    ResourceLockedError,
    UnknownExchangeError,
    UnknownExchangeTypeError,
    UnknownQueueError,
)

__all__ = [
    "ConsumerAccessError",
    "InternalExchangeError",
    "InvalidQueueArgumentError",
    "InvalidQueueNameError",
    "MessageRefusedError",
    "NotSupportedByStreamError",
    "PreconditionError",
    "QueueError",
    "QueueInUseError",
    "QueueNotEmptyError",
    "ReservedNameError",
    "ResourceLockedError",
    "UnknownExchangeError",
    "UnknownExchangeTypeError",
    "UnknownQueueError",
]


class ReservedNameError(AuthorizationError):
    """The name belongs to the broker: the default exchange, ``amq.*`` and internal topics.

    Attributes:
        name: the queue or the exchange.
        kind: ``queue`` or ``exchange``.
    """

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} name {name!r} is reserved")
        self.kind = kind
        self.name = name


class InternalExchangeError(AuthorizationError):
    """Clients can't publish to an internal exchange; only bindings reach it.

    Attributes:
        name: the exchange.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"exchange {name!r} is internal")
        self.name = name
