"""Hold a client back: do not read its connection until consumers have caught up, or for a time.

Knows a connection and the event loop's time, and no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.net.budget import Hold
from tidemill.net.link import Link

LOOK_SECONDS = 0.1
"""How often a connection that is held looks whether it still must wait."""


class Pause:
    """Holds one connection back, for a limited time.

    Args:
        why: the reason; each has a pause of its own.
    """

    def __init__(self, link: Link, why: Hold = Hold.LAG) -> None:
        self._link = link
        self._why = why
        self._until = 0.0
        self._must_wait: Callable[[], bool] = lambda: False
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, hold_ms: int, must_wait: Callable[[], bool]) -> None:
        """Read no more from the connection, and start no request of it.

        It continues as soon as ``must_wait`` returns False, or after ``hold_ms`` milliseconds.
        """
        loop = asyncio.get_running_loop()
        self._until = max(self._until, loop.time() + hold_ms / 1000)
        self._must_wait = must_wait
        self._link.hold(self._why)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def throttle(self, hold_ms: int) -> None:
        """Read no more from the connection, and start no request of it, for so long."""
        self.hold(hold_ms, _always)

    def _look(self) -> None:
        self._timer = None
        if self._link.is_closing:
            return
        loop = asyncio.get_running_loop()
        rest = self._until - loop.time()
        if rest > 0 and self._must_wait():
            self._timer = loop.call_later(min(rest, LOOK_SECONDS), self._look)
        else:
            self._link.release(self._why)


def _always() -> bool:
    return True
