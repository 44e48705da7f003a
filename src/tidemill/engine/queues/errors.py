"""Errors of queues, exchanges and bindings. A protocol translates them in one table of codes.

Those of the declarations come from ``state.routing.errors``.
"""

from __future__ import annotations

from tidemill.engine.errors import AuthorizationError
from tidemill.state.routing.errors import ConsumerAccessError as ConsumerAccessError
from tidemill.state.routing.errors import InvalidQueueArgumentError as InvalidQueueArgumentError
from tidemill.state.routing.errors import InvalidQueueNameError as InvalidQueueNameError
from tidemill.state.routing.errors import MessageRefusedError as MessageRefusedError
from tidemill.state.routing.errors import NotSupportedByStreamError as NotSupportedByStreamError
from tidemill.state.routing.errors import PreconditionError as PreconditionError
from tidemill.state.routing.errors import QueueError as QueueError
from tidemill.state.routing.errors import QueueInUseError as QueueInUseError
from tidemill.state.routing.errors import QueueNotEmptyError as QueueNotEmptyError
from tidemill.state.routing.errors import ResourceLockedError as ResourceLockedError
from tidemill.state.routing.errors import UnknownExchangeError as UnknownExchangeError
from tidemill.state.routing.errors import UnknownExchangeTypeError as UnknownExchangeTypeError
from tidemill.state.routing.errors import UnknownQueueError as UnknownQueueError


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
