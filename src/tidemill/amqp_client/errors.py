"""Errors of the small AMQP client."""

from __future__ import annotations

from tidemill.errors import TidemillError


class AmqpUrlError(TidemillError):
    """The URL of the broker is invalid."""


class AmqpNotFoundError(TidemillError):
    """The queue, the exchange or the connection does not exist."""


class AmqpConflictError(TidemillError):
    """It can't be done with what exists, such as a queue with other arguments."""


class QueueRefusedError(TidemillError):
    """The broker refuses what a client asks for."""
