"""Limit the memory of requests over all connections.

Over the limit, connections are not read. This is bookkeeping for ``listener``: it knows no sockets,
no event loop and no protocol.
"""

from __future__ import annotations

import enum
from typing import Protocol


class Hold(enum.Flag):
    """The reasons not to read a connection."""

    NONE = 0
    OWN = enum.auto()
    """Its own unanswered requests take too much memory."""
    TOTAL = enum.auto()
    """The requests of all connections take too much memory."""
    WRITE = enum.auto()
    """The client does not read its responses."""
    QUEUE = enum.auto()
    """Many of its requests wait for their turn."""
    UNREAD = enum.auto()
    """The client has not read its responses, and memory for those of others is short."""
    LAG = enum.auto()
    """Consumers of what it produces are too far behind."""


class Reader(Protocol):
    """A connection as the budget sees it."""

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""

    def hold(self, why: Hold) -> None:
        """Stop reading, for one more reason."""

    def unhold(self, why: Hold) -> None:
        """Remove a reason. Read again if no other is left."""


class Budget:
    """The bytes of requests that are held in memory, over all connections.

    Over the limit no connection is read. If all requests in memory have arrived in part only, then
    no answer can free memory: one connection at a time is read until its request is complete.

    Attributes:
        limit: bytes that may be held.
        used: bytes that are held.
        unanswered: the part of ``used`` that answers will free.
        connections: open connections of all listeners.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.unanswered = 0
        self.connections = 0
        self._waiting: dict[Reader, None] = {}
        self._favoured: Reader | None = None

    def add(self, link: Reader, size: int, *, whole: bool) -> None:
        """Count ``size`` more bytes.

        Args:
            whole: they are of a request that has arrived completely.
        """
        self.used += size
        if whole:
            self.unanswered += size
            if link is self._favoured:
                self._favoured = None
        if self.used > self.limit and link is not self._favoured:
            self._waiting[link] = None
            link.hold(Hold.TOTAL)
            self._settle()

    def remove(self, size: int, *, whole: bool) -> None:
        """Count ``size`` bytes as free again."""
        self.used -= size
        if whole:
            self.unanswered -= size
        self._settle()

    def forget(self, link: Reader) -> None:
        """Forget a closed connection."""
        self._waiting.pop(link, None)
        if link is self._favoured:
            self._favoured = None
        self._settle()

    def _settle(self) -> None:
        if not self._waiting:
            return
        if self.used <= self.limit:
            waiting, self._waiting = self._waiting, {}
            for link in waiting:
                link.unhold(Hold.TOTAL)
        elif self.unanswered == 0:
            self._let_through()

    def _let_through(self) -> None:
        """Read the connections between two requests, and one in the middle of a request."""
        for link in list(self._waiting):
            if link.is_partial and self._favoured is not None:
                continue
            if link.is_partial:
                self._favoured = link
            del self._waiting[link]
            link.unhold(Hold.TOTAL)
