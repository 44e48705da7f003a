"""Limit the memory of responses over all connections.

A response made of stored bytes first asks for memory. It counts from then until the kernel
has taken its last byte. Below half of the limit it gets all that it asks for. Above, it is cut: to
half of what is left, or to one batch. When the limit is passed, by one response at most, the others
wait in the order in which they asked. Every other turn belongs to the clients that have read a
large response before, so that those who never read can't hold them up.

A client that does not read would hold its memory for ever. So while the limit is passed or others
wait, a client that takes nothing for ``STUCK_SECONDS``, or less than a sixteenth of its unread
bytes in ``SLOW_SECONDS``, is reported to the listener, which closes its connection. And while the
limit is passed, a client with unread responses gets no others. As long as there is memory for all,
a client may be as slow as it likes.

This is bookkeeping for ``listener``: it knows no sockets, no event loop and no protocol. Time is a
parameter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

LEAST_BYTES = 1_048_576
"""A response that is cut or has waited for its turn can be this large, or have one batch."""
UNCOUNTED_BYTES = 16_384
"""Unread bytes of a connection that are not counted, so that small responses cost nothing."""
STUCK_SECONDS = 1.0
"""How long a client can read nothing, while others wait."""
SLOW_SECONDS = 5.0
"""How long a client can read less than a sixteenth of its unread bytes, while others wait."""


class Client(Protocol):
    """A connection as this module sees it."""

    @property
    def unread_bytes(self) -> int:
        """Bytes that are written and that the kernel has not taken."""

    def has_read(self) -> None:
        """Note that all that was counted is read. The call must not send a response."""


@dataclass(slots=True, eq=False)
class Turn:
    """A response that waits for memory."""

    size: int
    granted: Callable[[], bool]


class _Backlog:
    """The unread responses of one connection.

    The memory of a response is free when its last byte is taken, not byte by byte.
    """

    __slots__ = ("held", "last", "last_at", "mark", "marked_at", "sizes")

    def __init__(self, now: float) -> None:
        self.sizes: deque[int] = deque()
        self.held = 0
        self.last = self.mark = 0
        """Unread bytes when the client last read a byte, and when it last read a sixteenth."""
        self.last_at = self.marked_at = now

    def add(self, size: int, unread: int) -> None:
        self.sizes.append(size)
        self.held += size
        self.last = self.mark = unread

    def drop_read(self, unread: int) -> None:
        """Drop the responses of which the client has taken the last byte."""
        while self.sizes and self.held - self.sizes[0] >= unread:
            self.held -= self.sizes.popleft()

    def is_stuck(self, unread: int, now: float) -> bool:
        """Return whether the client takes too little, and note its progress."""
        if unread < self.last:
            self.last, self.last_at = unread, now
        if self.mark - unread >= max(1, self.mark // 16):
            self.mark, self.marked_at = unread, now
        return now - self.last_at >= STUCK_SECONDS or now - self.marked_at >= SLOW_SECONDS


class ResponseMemory:
    """The bytes of responses that are made or unread, over all connections.

    Args:
        limit: bytes that may be held. One response passes it at most.
        on_shortage: called when a response has to wait, or the limit is passed. From then on
            ``relieve`` must be called regularly, while ``needs_relief``.
    """

    def __init__(self, limit: int, on_shortage: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.used = 0
        self._on_shortage = on_shortage
        self._backlogs: dict[Client, _Backlog] = {}
        self._turns: tuple[deque[Turn], deque[Turn]] = (deque(), deque())
        """Those of all clients, and those of clients that have read a large response before."""
        self._next = 1
        self._blocked: set[Client] = set()

    @property
    def left(self) -> int:
        """Bytes that are left."""
        return max(0, self.limit - self.used)

    @property
    def waiting(self) -> int:
        """The number of responses that wait for their turn."""
        return sum(map(len, self._turns))

    @property
    def is_short(self) -> bool:
        """Whether responses wait, or the limit is passed."""
        return self.used > self.limit or any(self._turns)

    @property
    def needs_relief(self) -> bool:
        """Whether memory is short, or a client is blocked until it has read."""
        return self.is_short or bool(self._blocked)

    # --- making a response -----------------------------------------------------------------------

    def share(self, size: int) -> int | None:
        """Return how many of ``size`` bytes a response can have now. None: it must wait."""
        if any(self._turns):
            return None
        if size > self.left // 2:
            self.measure()
        if self.used > self.limit:
            return None
        left = self.left
        return size if size <= left // 2 else max(left // 2, min(left, LEAST_BYTES))

    def count(self, change: int) -> None:
        """Change the bytes of responses that are made and not written yet."""
        self.used += change
        if change < 0:
            self._settle()
        elif self.used > self.limit:
            self._on_shortage()

    def wait(self, size: int, granted: Callable[[], bool], *, has_read: bool = False) -> Turn:
        """Wait for the turn to make a response of ``size`` bytes, which are then counted.

        Args:
            granted: called when it is the turn; it returns False if the client is gone.
            has_read: whether the client has read a large response before.
        """
        turn = Turn(size, granted)
        self._turns[has_read].append(turn)
        self._on_shortage()
        return turn

    def withdraw(self, turn: Turn) -> None:
        """Wait no longer."""
        for turns in self._turns:
            if turn in turns:
                turns.remove(turn)

    def _settle(self) -> None:
        while self.used <= self.limit and any(self._turns):
            turns = self._turns[self._next] or self._turns[1 - self._next]
            self._next = 1 - self._next
            turn = turns.popleft()
            if turn.granted():
                self.used += turn.size

    # --- unread responses ------------------------------------------------------------------------

    def wrote(self, client: Client, size: int, now: float) -> None:
        """Count a response that was written and that the kernel has not taken completely."""
        backlog = self._backlogs.get(client)
        if backlog is None:
            backlog = self._backlogs[client] = _Backlog(now)
        backlog.add(size, client.unread_bytes)
        self.used += size
        self._drop_read(client, backlog)
        if self.used > self.limit:
            self._on_shortage()

    def has_unread(self, client: Client) -> bool:
        """Return whether unread bytes of the client are counted."""
        return client in self._backlogs

    def blocks(self, client: Client) -> bool:
        """Return whether the client gets no other response until ``has_read``: memory is short."""
        if self.used <= self.limit or client not in self._backlogs:
            return False
        self._blocked.add(client)
        return True

    def forget(self, client: Client) -> None:
        """Forget a closed connection."""
        self._blocked.discard(client)
        backlog = self._backlogs.pop(client, None)
        if backlog is not None:
            self.used -= backlog.held
            self._settle()

    def measure(self) -> None:
        """Count as free what the clients have read."""
        for client, backlog in list(self._backlogs.items()):
            self._drop_read(client, backlog)
        self._settle()

    def _drop_read(self, client: Client, backlog: _Backlog) -> None:
        held = backlog.held
        backlog.drop_read(client.unread_bytes)
        self.used += backlog.held - held
        if not backlog.sizes:
            del self._backlogs[client]
            self._blocked.discard(client)
            client.has_read()

    def relieve(self, now: float, evict: Callable[[Client, int, float], None]) -> None:
        """Measure; while memory is short, evict the stuck clients, those that hold most first.

        Args:
            evict: closes a connection, whose bytes are free when it is forgotten. It gets the
                client, its unread bytes, and for how many seconds it has read nothing.
        """
        self.measure()
        stuck = [
            (backlog.held, client)
            for client, backlog in self._backlogs.items()
            if backlog.is_stuck(client.unread_bytes, now)
        ]
        needed = self.used - self.limit + sum(turn.size for turns in self._turns for turn in turns)
        for held, client in sorted(stuck, key=lambda each: -each[0]):
            if needed <= 0 or not self.is_short:
                return
            evict(client, client.unread_bytes, now - self._backlogs[client].last_at)
            needed -= held
