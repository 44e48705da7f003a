"""Connections whose clients have logged in with a password. They end when their user is deleted.

A changed password ends none, as in RabbitMQ and Apache Kafka: so it can be changed while clients
are at work. Must not know: a protocol, sockets, where users are stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from tidemill.protocols.logins.contract import MOST_SHOWN

log = structlog.get_logger("tidemill.logins")

USER_DELETED = "the user was deleted"
_SLICE = 32
"""Connections that are ended in one turn of the event loop."""


class KnownUsers(Protocol):
    """The users among whom the user of a connection is."""

    def has_user(self, user: str) -> bool:
        """Return whether the user exists."""


class Watched:
    """Connections by their users. Use it on the event loop."""

    def __init__(self) -> None:
        self._open: dict[tuple[KnownUsers, str], set[_Connection]] = {}
        self._ending: deque[_Connection] = deque()

    def __len__(self) -> int:
        """Return the number of connections."""
        return sum(map(len, self._open.values()))

    def add(self, users: KnownUsers, user: str, end: Callable[[], None]) -> Callable[[], None]:
        """Watch a connection; return a function that forgets it.

        Args:
            end: closes the connection. It is called at most once, and not before this returns.
        """
        at = (users, user)
        connection = _Connection(end)
        self._open.setdefault(at, set()).add(connection)

        def forget() -> None:
            connection.end = None
            found = self._open.get(at, set())
            found.discard(connection)
            if not found:
                self._open.pop(at, None)

        return forget

    def look(self) -> None:
        """End the connections of users who do not exist any more, some in each turn."""
        was_ending = bool(self._ending)
        for users, user in list(self._open):
            if users.has_user(user):
                continue
            found = self._open.pop((users, user))
            log.warning(
                "login.ended", user=user[:MOST_SHOWN], connections=len(found), why=USER_DELETED
            )
            self._ending += found
        if self._ending and not was_ending:
            self._end_some()

    def _end_some(self) -> None:
        for _ in range(min(_SLICE, len(self._ending))):
            end = self._ending.popleft().end
            if end is not None:  # the connection was not closed meanwhile
                end()
        if self._ending:
            asyncio.get_running_loop().call_soon(self._end_some)


class _Connection:
    """A connection, until it is closed."""

    __slots__ = ("end",)

    def __init__(self, end: Callable[[], None]) -> None:
        self.end: Callable[[], None] | None = end
