"""The one timer of the transaction coordinator: who is overdue is worked on, each once at a time.

Knows when; what is done with a transaction whose time is up is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tidemill.broker.in_order import InOrder
from tidemill.clock import Clock

OVERDUE_MS = 100
"""How often to look while some are being worked on: they stay overdue until that is done."""


class Overdue(Protocol):
    """A state machine with deadlines."""

    def next_deadline(self) -> int | None: ...

    def due(self, now_ms: int) -> list[str]: ...


class Deadlines:
    """Watches a machine's deadlines.

    Args:
        work: what is done with an id whose deadline has passed, in the background.
    """

    def __init__(
        self,
        machine: Overdue,
        clock: Clock,
        tasks: InOrder,
        work: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._tasks = tasks
        self._work = work
        self._at_work: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: int | None = None
        self._stopped = False

    def watch(self) -> None:
        """Set the timer; to be called whenever deadlines may have changed."""
        deadline = self._machine.next_deadline()
        if self._timer is not None:
            if deadline == self._deadline:
                return
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None and not self._stopped:
            delay_ms = deadline - self._clock.now_ms()
            delay_ms = max(delay_ms, OVERDUE_MS if self._at_work else 0)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def stop(self) -> None:
        """No more timers."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        for key in self._machine.due(self._clock.now_ms()):
            if key not in self._at_work:
                self._at_work.add(key)
                self._tasks.spawn(self._at(key))
        self.watch()

    async def _at(self, key: str) -> None:
        try:
            await self._work(key)
        finally:
            self._at_work.discard(key)
            self.watch()
