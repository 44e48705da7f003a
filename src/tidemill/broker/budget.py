"""Memory of requests over all connections: who may be read, and who must wait.

Pure bookkeeping for ``listener``: no sockets, no event loop, no protocol.
"""

from __future__ import annotations

import enum
from typing import Protocol


class Hold(enum.Flag):
    """Why a connection is not read."""

    NONE = 0
    OWN = enum.auto()
    TOTAL = enum.auto()
    WRITE = enum.auto()


class Reader(Protocol):
    """A connection as the budget sees it."""

    @property
    def is_partial(self) -> bool:
        """A request has arrived in part."""

    def hold(self, why: Hold) -> None:
        """Stop reading."""

    def unhold(self, why: Hold) -> None:
        """Read again, unless there are other reasons not to."""


class Budget:
    """Bytes of requests that are held in memory, over all connections.

    Over the limit nobody is read. Where everything that is held are requests which have arrived in
    part, so that answering can't free anything, one connection at a time is let through.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.unanswered = 0
        """The part of ``used`` that answers will free."""
        self._waiting: dict[Reader, None] = {}
        self._favoured: Reader | None = None

    def add(self, link: Reader, size: int, *, whole: bool) -> None:
        """``size`` more bytes are held; ``whole``: of a request that has arrived."""
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
        """``size`` bytes are free again."""
        self.used -= size
        if whole:
            self.unanswered -= size
        self._settle()

    def forget(self, link: Reader) -> None:
        """The connection is gone."""
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
        """Whoever is between two requests, and one connection that is in the middle of one."""
        for link in list(self._waiting):
            if link.is_partial and self._favoured is not None:
                continue
            if link.is_partial:
                self._favoured = link
            del self._waiting[link]
            link.unhold(Hold.TOTAL)
