"""Keep work running: it starts again after a failure and after an order, and rests while paused.

Bridges and views use it. A webhook continues during most orders, so it has a keeper of its own.
Must not know: what works, the topic that orders come from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from tidemill.connect.base.board import BoardWriter
from tidemill.connect.base.manager import Commands
from tidemill.connect.base.runs import Runs


class Work(Protocol):
    """The part that a keeper keeps running."""

    async def run(self, keeper: RestartingKeeper) -> None:
        """Work until it fails or is cancelled, and call ``keeper.works`` when it has begun."""

    def failed(self, pause_s: float | None, said: Mapping[str, Any]) -> None:
        """Log that it has failed, and starts again after a pause; None: it waits for the user."""

    def figures(self) -> dict[str, Any]:
        """Return what its status has besides that of its runs, as JSON values."""


class RestartingKeeper:
    """Keeps work running until ``stop``. Create and use it on the event loop.

    Args:
        commands: the present commands. While ``pause`` says so, nothing runs.

    Attributes:
        commands: those that the present run was started with.
    """

    def __init__(self, work: Work, runs: Runs, commands: Commands) -> None:
        self.commands = dict(commands)
        self._work = work
        self._runs = runs
        self._changed = asyncio.Event()
        self._stopping = False
        self._finished: deque[str] = deque()

    def order(self, commands: Commands) -> None:
        """Take over the present commands. If they are others, the work starts again."""
        left = {name: each for name, each in commands.items() if name not in self._finished}
        if left != self.commands:
            self.commands = left
            self._changed.set()

    def stop(self) -> None:
        """Ask it to end; ``run`` then returns soon."""
        self._stopping = True
        self._changed.set()

    def works(self) -> None:
        """Note that the work has begun. Any thread can call this."""
        self._runs.work()

    def finish(self, command: str) -> None:
        """Note that a command was carried out. Any thread can call this."""
        self._finished.append(command)
        self.commands.pop(command, None)

    def take_finished(self, writer: BoardWriter) -> Collection[str]:
        """Return the commands that were carried out since."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    async def run(self) -> None:
        """Keep the work running until ``stop``."""
        while not self._stopping:
            self._changed.clear()
            if self.commands.get("pause", {}).get("paused"):
                self._runs.rest("paused")
                await self._changed.wait()
                continue
            await self._run_once()
        self._runs.phase = "stopped"

    async def _run_once(self) -> None:
        """Work until it fails, or there is an order."""
        self._runs.begin()
        running = asyncio.create_task(self._work.run(self))
        order = asyncio.create_task(self._changed.wait())
        await asyncio.wait([running, order], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        order.cancel()
        if result is None or isinstance(result, asyncio.CancelledError):
            return
        pause_s = self._runs.fail(result)
        self._work.failed(pause_s, self._runs.said())
        try:
            await asyncio.wait_for(self._changed.wait(), pause_s)
        except TimeoutError:
            return

    def status(self) -> dict[str, Any]:
        """Return the present status, as JSON values."""
        return {**self._runs.status(), **self._work.figures()}
