"""Limit the memory of requests over all connections.

Over the limit, connections are not read. A client that has sent a part of a request and sends too
little of the rest would hold its memory for ever, and all others would wait. So while memory is
short, its connection is closed: the slowest first, compared with what it holds. As long as there is
memory for all, a client may be as slow as it likes.

This is bookkeeping for ``listener``: it knows no sockets, no event loop and no protocol. Time is a
parameter.
"""

from __future__ import annotations

import enum
from typing import Protocol

SLOW_SECONDS = 0.5
"""How long a client can send less than ``SLOW_RATE`` of a request, while memory is short."""
SLOW_RATE = 65_536
"""Bytes in a second."""
TURN_SECONDS = 5.0
"""How long the others wait for the end of one request."""
LITTLE_BYTES = 16_384
"""A client of which less has arrived and is not read gets read: it is possibly the end."""


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
    QUOTA = enum.auto()
    """It has used more than its quota."""


class Reader(Protocol):
    """A connection as the budget sees it."""

    @property
    def is_partial(self) -> bool:
        """Whether a request has arrived in part."""

    def hold(self, why: Hold) -> None:
        """Stop reading, for one more reason."""

    def unhold(self, why: Hold) -> None:
        """Remove a reason. Read again if no other is left."""

    @property
    def received_bytes(self) -> int:
        """Bytes that were read since it was opened."""

    @property
    def queued_bytes(self) -> int:
        """Bytes that have arrived and are not read."""

    @property
    def waits_for_broker(self) -> bool:
        """Whether it is not read because the broker has work to do first."""

    def close_slow(self, held: int, rate: float) -> None:
        """Close the connection: it holds ``held`` bytes and sends ``rate`` in a second."""


class Budget:
    """The bytes of requests that are held in memory, over all connections.

    Over the limit no connection is read. If almost all requests in memory have arrived in part,
    then no answer can free memory: one connection at a time is read until its request is complete.

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
        self._favoured_at: float | None = None
        """When ``relieve`` first saw the favoured connection with its request."""
        self._partial: dict[Reader, int] = {}
        self._marks: dict[Reader, tuple[int, float]] = {}
        """While memory is short: the bytes that had arrived, and when."""

    @property
    def is_short(self) -> bool:
        """Whether the limit is passed. Then ``relieve`` must be called regularly."""
        return self.used > self.limit

    def add(self, link: Reader, size: int) -> None:
        """Count a request of ``size`` bytes that has arrived completely."""
        self.used += size
        self.unanswered += size
        if link is self._favoured:
            self._favour(None)
        self._hold_if_short(link)

    def remove(self, size: int) -> None:
        """Count a request of ``size`` bytes as answered."""
        self.used -= size
        self.unanswered -= size
        self._settle()

    def count_partial(self, link: Reader, size: int) -> None:
        """Count ``size`` bytes, all in all, for the requests of a connection that are not whole."""
        change = size - self._partial.pop(link, 0)
        if size:
            self._partial[link] = size
        else:
            self._marks.pop(link, None)
        self.used += change
        if change > 0:
            self._hold_if_short(link)
        else:
            self._settle()

    def forget(self, link: Reader) -> None:
        """Forget a closed connection, whose bytes are not counted any more."""
        self._waiting.pop(link, None)
        self._marks.pop(link, None)
        if link is self._favoured:
            self._favour(None)
        self._settle()

    def _hold_if_short(self, link: Reader) -> None:
        if self.used > self.limit and link is not self._favoured:
            self._waiting[link] = None
            link.hold(Hold.TOTAL)
            self._settle()

    def _favour(self, link: Reader | None) -> None:
        self._favoured, self._favoured_at = link, None

    def _settle(self) -> None:
        if not self._waiting:
            return
        if self.used <= self.limit:
            waiting, self._waiting = self._waiting, {}
            for link in waiting:
                link.unhold(Hold.TOTAL)
        elif self.unanswered <= self.limit // 16:  # some requests wait for long, such as a fetch
            self._let_through()

    def _let_through(self) -> None:
        """Read the connections between two requests, and one in the middle of a request."""
        for link in list(self._waiting):
            if link.is_partial and self._favoured is not None:
                continue
            if link.is_partial:
                self._favour(link)
            self._let(link)

    def _let(self, link: Reader) -> None:
        del self._waiting[link]
        link.unhold(Hold.TOTAL)

    # --- clients that send too little ------------------------------------------------------------

    def relieve(self, now: float) -> None:
        """While memory is short, close the connections that stop the others.

        The slow ones are closed until a quarter of the limit is free, so that the next request
        does not begin the same again.
        """
        if not self.is_short:
            self._marks.clear()
            return
        slow = sorted(self._slow(now), key=lambda each: each[0])
        needed = self.used - self.limit * 3 // 4
        for _, link in slow:
            if needed <= 0 or not self._waiting:
                break
            needed -= self._close(link, now)
        self._end_turn(now)

    def _slow(self, now: float) -> list[tuple[float, Reader]]:
        """Return the connections that send too little, and their bytes for each one they hold."""
        slow: list[tuple[float, Reader]] = []
        for link, held in list(self._partial.items()):
            queued = link.queued_bytes
            arrived = link.received_bytes + queued
            before, since = self._marks.setdefault(link, (arrived, now))
            if link.waits_for_broker or (link in self._waiting and queued >= LITTLE_BYTES):
                self._marks[link] = arrived, now
            elif now - since >= SLOW_SECONDS:
                if arrived - before >= SLOW_RATE * (now - since):
                    self._marks[link] = arrived, now
                elif not queued or link not in self._waiting or now - since >= 2 * SLOW_SECONDS:
                    slow.append(((arrived - before + 1) / held, link))
            if queued and queued < LITTLE_BYTES and link in self._waiting:
                self._let(link)
        return slow

    def _close(self, link: Reader, now: float) -> int:
        """Close a connection; return the bytes that it holds."""
        before, since = self._marks.pop(link, (0, now))
        arrived = link.received_bytes + link.queued_bytes
        held = self._partial.get(link, 0)
        link.close_slow(held, (arrived - before) / max(now - since, 0.001))
        return held

    def _end_turn(self, now: float) -> None:
        """End the turn of the favoured connection: it has no request in part, or takes too long."""
        link = self._favoured
        if link is None or not self._waiting:
            return
        if not link.is_partial:
            self._favour(None)
            self._settle()
        elif self._favoured_at is None or link.waits_for_broker:
            self._favoured_at = now
        elif now - self._favoured_at >= TURN_SECONDS:
            self._close(link, now)
