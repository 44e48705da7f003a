"""Run tasks in order per key, and to their end even if the caller goes away.

Knows locks and tasks, and nothing of the work that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from tidemill.errors import TidemillError

R = TypeVar("R")

logger = structlog.get_logger("tidemill.engine")


class KeyedTasks:
    """Locks by key, and the tasks that run with or without them."""

    def __init__(self) -> None:
        # A lock exists as long as a task holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of keys in use plus the number of tasks."""
        return len(self._locks) + len(self._tasks)

    def lock(self, key: str) -> asyncio.Lock:
        """Return the key's lock. It is granted in the order of requests."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def under_lock(self, key: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Do the work while no other task has the key's lock."""
        async with self.lock(key):
            return await work()

    async def run(self, key: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Do the work under the key's lock. It continues if the caller is cancelled.

        Raises:
            CancelledError: the caller was cancelled, or the work was (by ``cancel``).
        """
        task = self._start(self.under_lock(key, work))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.add_done_callback(_log_error)  # the caller will not see it
            raise
        return task.result()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in the background."""
        self._start(work).add_done_callback(_log_error)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def cancelled(self) -> None:
        """Wait until no task runs any more, after ``cancel``."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _log_error(task: asyncio.Task[Any]) -> None:
    """Log the error of a task that no caller waits for."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, TidemillError):
        logger.warning("task.refused", error=str(error), hint=error.hint)
    elif error is not None:
        logger.error("task.failed", exc_info=error)
