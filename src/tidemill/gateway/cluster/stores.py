"""Event stores that pages look into: opened when someone looks, closed when no one has for a while.

Opening one builds its index on this machine, which can take long, so it is done in a thread, and a
look waits for a moment only. It belongs to one event loop. Must not know: pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.eventstore.store import Store

MOST = 4
"""Stores of one user that are open at the same time."""
IDLE_S = 300.0
WAIT_S = 3.0
"""How long a look waits for a store that is being opened."""


@dataclass
class _Opened:
    task: asyncio.Task[Store]
    looked_s: float


class Stores:
    """The event stores of one user."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._opened: dict[str, _Opened] = {}

    async def get(self, name: str) -> Store | None:
        """Return a store that has read all there is, or None as long as its index is built.

        Raises:
            TidemillError: the topic is not an event store, or can't be read.
        """
        now_s = time.monotonic()
        found = self._opened.get(name)
        if found is None:
            await self._make_room(now_s)
            task = asyncio.create_task(asyncio.to_thread(self._open, name))
            found = self._opened[name] = _Opened(task, now_s)
        found.looked_s = now_s
        try:
            async with asyncio.timeout(WAIT_S):
                return await asyncio.shield(found.task)
        except TimeoutError:
            if not found.task.done():
                return None
            raise
        except TidemillError:
            self._opened.pop(name, None)
            raise

    async def close(self) -> None:
        """Close all stores."""
        for name in list(self._opened):
            await self._close(name)

    def _open(self, name: str) -> Store:
        # Imported here, as a gateway without event stores needs neither it nor SQLite: 1.5 MB.
        from tidemill.eventstore.store import Store

        return Store(self._kafka, name, create=False)

    async def _make_room(self, now_s: float) -> None:
        """Close what no one looks at, and the oldest if there are too many."""
        idle = [name for name, each in self._opened.items() if now_s - each.looked_s > IDLE_S]
        left = sorted(self._opened.keys() - set(idle), key=lambda each: self._opened[each].looked_s)
        for name in [*idle, *left[: max(0, len(left) - MOST + 1)]]:
            await self._close(name)

    async def _close(self, name: str) -> None:
        opened = self._opened.pop(name)
        with contextlib.suppress(TidemillError):  # it could not be opened
            store = await opened.task
            await asyncio.to_thread(store.close)
