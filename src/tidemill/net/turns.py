"""Share the event loop fairly: requests and long work run in turns of a few milliseconds.

A *turn* is one pass of the event loop. Requests start as soon as they arrive while the turn has
time left. After that, connections wait in a queue and start one request each, round robin, so that
a client that sends a thousand requests delays the others by one turn and not by a thousand
requests. Urgent work has a queue of its own, which gets up to half of a turn first.

Work that is long (a request with many elements, see ``work``) is a coroutine that calls ``pause``
each time its slice is over. All long work together gets one slice per turn.

This module must not know what a request is, any socket or any protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

TURN_SECONDS = 0.002
"""How long requests can start in one pass of the event loop."""
SLICE_SECONDS = 0.001
"""How long a piece of long work runs before it lets others run."""


class Turns:
    """The turns of one event loop.

    Attributes:
        large: held for one part of a large write, until it is on disk. What the disk's answer
            causes runs in one piece, so only one such part may wait for it at a time.
    """

    def __init__(self) -> None:
        self._urgent: deque[Callable[[], None]] = deque()
        self._ready: deque[Callable[[], None]] = deque()
        self._paused: deque[asyncio.Future[None]] = deque()
        self._at_end: list[Callable[[], None]] = []
        self._spent = 0.0
        self._armed = False
        self._slice_end = 0.0
        self.large = asyncio.Lock()

    # --- requests --------------------------------------------------------------------------------

    def deadline(self, now: float, *, urgent: bool = False) -> float:
        """Return until when (``perf_counter``) requests can start in this turn.

        Requests that are not urgent can't start while others wait in the queue.
        """
        if urgent:
            return now if self._urgent else now + 1.5 * TURN_SECONDS - self._spent
        return now if self._ready else now + TURN_SECONDS - self._spent

    def spend(self, seconds: float) -> None:
        """Count time that requests have taken in this turn."""
        self._spent += seconds
        self._arm()

    def begin_slice(self, now: float) -> None:
        """Note that a request starts: it may run for one slice before it has to pause."""
        self._slice_end = now + SLICE_SECONDS

    def queue(self, start: Callable[[], None], *, urgent: bool = False) -> None:
        """Call ``start`` in a later turn, behind the work that waits already."""
        (self._urgent if urgent else self._ready).append(start)
        self._arm()

    def at_end(self, finish: Callable[[], None]) -> None:
        """Call ``finish`` once, behind the queued requests of this turn."""
        self._at_end.append(finish)
        self._arm()

    # --- long work -------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the slice of the work that is running is over, so that it must pause."""
        return perf_counter() > self._slice_end

    async def pause(self) -> None:
        """Wait for the next slice. Work that has called this earlier goes first."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._paused.append(future)
        self._arm()
        await future
        self._slice_end = perf_counter() + SLICE_SECONDS

    async def pause_if_due(self) -> None:
        """Pause if the slice of the work that is running is over."""
        if perf_counter() > self._slice_end:
            await self.pause()

    # --- inside ----------------------------------------------------------------------------------

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn: run what waits, for as long as the turn allows."""
        self._armed = False
        self._spent = 0.0
        if not (self._urgent or self._ready or self._paused or self._at_end):
            return
        started = perf_counter()
        granted = self._grant_slice()
        end = started + TURN_SECONDS - granted
        try:
            _run(self._urgent, (started + end) / 2)
            _run(self._ready, end)
        finally:
            finish, self._at_end = self._at_end, []
            for call in finish:
                call()
            self._spent = perf_counter() - started + granted
            self._arm()

    def _grant_slice(self) -> float:
        """Let the long work that waits longest run next; return the seconds that it gets."""
        while self._paused:
            future = self._paused.popleft()
            if not future.done():
                future.set_result(None)
                return SLICE_SECONDS
        return 0.0


def _run(queue: deque[Callable[[], None]], end: float) -> None:
    """Run the entries of a queue until ``end``, but one at least."""
    while queue:
        queue.popleft()()
        if perf_counter() > end:
            return
