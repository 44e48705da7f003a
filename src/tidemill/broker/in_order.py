"""Work that is done in order per key, to its end, whoever waits for it or goes away.

Knows locks and tasks, and nothing of what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from tidemill.errors import TidemillError

R = TypeVar("R")

log_line = structlog.get_logger("tidemill.broker")


class InOrder:
    """Locks by key, and the tasks that run under them or beside them."""

    def __init__(self) -> None:
        # A lock lives as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Keys in use, and tasks."""
        return len(self._locks) + len(self._tasks)

    def lock(self, key: str) -> asyncio.Lock:
        """The key's lock: who comes first is served first."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def detached(self, key: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Do the work under the key's lock. A caller that is cancelled leaves it running.

        Raises:
            CancelledError: the caller was cancelled, or (by ``cancel``) the work.
        """

        async def in_order() -> R:
            async with self.lock(key):
                return await work()

        task = self._start(in_order())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.add_done_callback(_report)  # its caller will not hear of it
            raise
        return task.result()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in the background."""
        self._start(work).add_done_callback(_report)

    def cancel(self) -> None:
        """Stop all that runs."""
        for task in self._tasks:
            task.cancel()

    async def cancelled(self) -> None:
        """Wait until nothing runs any more, after ``cancel``."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _report(task: asyncio.Task[Any]) -> None:
    """Nobody waits for the task: say what went wrong."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, TidemillError):
        log_line.warning("background.refused", error=str(error), hint=error.hint)
    elif error is not None:
        log_line.error("background.failed", exc_info=error)
