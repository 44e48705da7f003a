"""The errors of the application side. Knows no store and no database."""

from __future__ import annotations

from tidemill.eventstore.errors import EventStoreError


class DeclarationError(EventStoreError):
    """An event, an aggregate, a process or a projection is declared in an invalid way."""


class UnknownEventTypeError(EventStoreError):
    """A stored event has a type or a schema version that the code does not know."""


class InvalidEventError(EventStoreError):
    """The content of a stored event does not fit its class."""


class MissingHandlerError(EventStoreError):
    """An aggregate has no ``apply`` method for an event of its stream."""


class TruncatedStreamError(EventStoreError):
    """The first events of a stream were truncated, and no snapshot replaces them."""


class CommandRefusedError(EventStoreError):
    """A command with this id was refused before. It is not tried again under the same id.

    Attributes:
        reason: why, as it was recorded.
    """

    def __init__(self, stream: str, command_id: str, reason: str) -> None:
        super().__init__(
            f"command {command_id} of stream {stream!r} was refused: {reason}",
            hint="Give a new attempt a command id of its own.",
        )
        self.reason = reason


class ProcessFailedError(EventStoreError):
    """A process manager can't handle an event. The worker stops before it."""


class ProjectionFailedError(EventStoreError):
    """A projection can't handle an event. Its position stays before it."""


class ProjectionFencedError(EventStoreError):
    """Another runner has moved the projection, or has switched to another generation."""


class ProjectionAheadError(EventStoreError):
    """A projection has seen more events than the store has: the store was replaced or restored."""
