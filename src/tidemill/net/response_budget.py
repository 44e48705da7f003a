"""The memory of the response that one connection is making, for code that can wait.

Knows the event loop's futures, and no socket. ``responses`` decides who waits.
"""

from __future__ import annotations

import asyncio

from tidemill.net.responses import ResponseMemory


class ResponseBudget:
    """Reserves memory for one response at a time. Implements ``engine.api.ReadBudget``."""

    __slots__ = ("_closed", "_memory", "_waiting", "has_read", "held")

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None
        self.held = 0
        """Bytes of the response in the making."""
        self.has_read = False
        """Whether the client has read a large response before."""

    def close(self) -> None:
        """Hold nothing from now on, and cancel what waits: the client is gone."""
        if self._waiting is not None:
            self._waiting.cancel()
        self.hold(0)
        self._closed = True

    def share(self, size: int) -> int | None:
        """Return how many of ``size`` bytes can be loaded now. None: wait for a turn."""
        return self._memory.share(size)

    def hold(self, size: int) -> None:
        """Count ``size`` bytes for the response in the making; 0 when it is written."""
        if self._closed:
            return
        change, self.held = size - self.held, size
        if change:
            self._memory.count(change)

    async def turn(self, size: int) -> None:
        """Wait until ``size`` bytes can be loaded. They are counted when this returns."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> bool:
            if granted.done():  # cancelled
                return False
            self.held += size
            granted.set_result(None)
            return True

        self._waiting = granted
        turn = self._memory.wait(size, grant, has_read=self.has_read)
        try:
            await granted
        except asyncio.CancelledError:
            self._memory.withdraw(turn)
            self.hold(0)
            raise
        finally:
            self._waiting = None
