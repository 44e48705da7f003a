"""The open connections of a broker by name, for listings and for administrators who close one.

A name is ``client -> broker``, as in RabbitMQ. Knows no socket and no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class Connection(Protocol):
    """A connection, as administrators see it."""

    @property
    def user(self) -> str:
        """The user who has logged in."""

    def describe(self) -> dict[str, Any]:
        """Return the facts that a listing shows."""

    def describe_channels(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each channel with the facts that a listing shows."""

    def end(self, reason: str) -> None:
        """Close the connection with the code 320 (CONNECTION_FORCED) and this reason."""


class Connections:
    """Connections that are open, by name.

    Attributes:
        opened, closed: how many there have been since the start.
        channels_opened, channels_closed: the same, of channels.
    """

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.channels_opened = self.channels_closed = 0
        self._open: dict[str, Connection] = {}

    def add(self, name: str, connection: Connection) -> None:
        """Add a connection whose client has logged in."""
        self.opened += 1
        self._open[name] = connection

    def remove(self, name: str, connection: Connection) -> None:
        """Forget a connection, if it was added."""
        if self._open.get(name) is connection:
            del self._open[name]
            self.closed += 1

    def find(self, name: str) -> Connection | None:
        """Return the connection with this name, if it is open."""
        return self._open.get(name)

    def all(self) -> list[tuple[str, Connection]]:
        """Return all connections with their names."""
        return list(self._open.items())
