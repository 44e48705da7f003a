"""End requests that take too long, with one timer for all of them.

aiohttp has a timer for each request, which takes a twentieth of the time of a delivery. All
requests of an endpoint have the same limit, so the one that began first is the first to end. Must
not know: HTTP.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

_SOON_S = 0.001
"""Event loops count in milliseconds: a timer can fire so much too early."""


class Deadline:
    """The limit of one request. ``with`` it, also again inside, around what must end in time.

    Raises:
        TimeoutError: the time is over. It is raised once, by the innermost ``with``.
    """

    __slots__ = ("_at", "_is_late", "_task")

    def __init__(self, task: asyncio.Task[Any], at: float) -> None:
        self._task = task
        self._at = at
        self._is_late = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if not self._is_late:
            return
        self._is_late = False
        # Others can have cancelled the task, too: then it is not about the time.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Deadlines:
    """The limits of the requests under way. Use it on one event loop, and ``close`` it.

    Args:
        limit_s: how long each can take, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._running: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Deadline:
        """Begin a request of the task that calls this. Call ``end`` in any case."""
        task = asyncio.current_task()
        assert task is not None
        at = self._loop.time() + self._limit_s
        made = Deadline(task, at)
        self._running[made] = None
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._look)
        return made

    def end(self, deadline: Deadline) -> None:
        """Forget a request."""
        self._running.pop(deadline, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Cancel the tasks whose time is over, and wait for the next one."""
        self._timer = None
        now = self._loop.time() + _SOON_S
        for each in list(self._running):
            if each._at > now:
                self._timer = self._loop.call_at(each._at, self._look)
                return
            del self._running[each]
            each._is_late = True
            each._task.cancel()
