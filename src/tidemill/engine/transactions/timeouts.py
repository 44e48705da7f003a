"""The one timer of the transaction coordinator. Overdue transactions are worked on, one task each.

Knows deadlines only. The caller decides what to do with an overdue transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidemill.clock import Clock
from tidemill.engine.transactions.keyed_tasks import KeyedTasks
from tidemill.state.transactions.upkeep import Upkeep

RECHECK_MS = 100
"""How often to check while some keys are being worked on: they stay overdue until that is done."""


class Timeouts:
    """Watches a machine's deadlines.

    Args:
        machine: has the deadlines.
        tasks: runs the work in the background.
        on_timeout: the work for a key whose deadline has passed.
    """

    def __init__(
        self,
        machine: Upkeep,
        clock: Clock,
        tasks: KeyedTasks,
        on_timeout: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._tasks = tasks
        self._on_timeout = on_timeout
        self._running: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: int | None = None
        self._stopped = False

    def update(self) -> None:
        """Set the timer. Call this whenever deadlines might have changed."""
        deadline = self._machine.next_deadline()
        if self._timer is not None:
            if deadline == self._deadline:
                return
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None and not self._stopped:
            delay_ms = deadline - self._clock.now_ms()
            delay_ms = max(delay_ms, RECHECK_MS if self._running else 0)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def stop(self) -> None:
        """Set no more timers."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        for key in self._machine.due(self._clock.now_ms()):
            if key not in self._running:
                self._running.add(key)
                self._tasks.spawn(self._run(key))
        self.update()

    async def _run(self, key: str) -> None:
        try:
            await self._on_timeout(key)
        finally:
            self._running.discard(key)
            self.update()
