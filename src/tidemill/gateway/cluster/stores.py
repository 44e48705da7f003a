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
        self._closing: set[asyncio.Task[None]] = set()

    async def get(self, name: str) -> Store | None:
        """Return a store that has read all there is, or None as long as its index is built.

        Raises:
            TidemillError: the topic is not an event store, or can't be read.
        """
        now_s = time.monotonic()
        found = self._opened.get(name)
        if found is None:
            if not self._make_room(now_s):
                return None
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
        except Exception:
            if self._opened.get(name) is found:  # and not one that was opened after it
                del self._opened[name]
            raise

    async def close(self) -> None:
        """Close all stores."""
        for name in list(self._opened):
            self._leave(name)
        await asyncio.gather(*self._closing)

    def _open(self, name: str) -> Store:
        # Imported here, as a gateway without event stores needs neither it nor SQLite: 1.5 MB.
        from tidemill.eventstore.store import Store

        return Store(self._kafka, name, create=False)

    def _make_room(self, now_s: float) -> bool:
        """Begin to close what no one looks at, and the oldest if there are too many.

        Returns:
            False if there is no room: the indexes of all of them are being built.
        """
        built = [name for name, each in self._opened.items() if each.task.done()]
        built.sort(key=lambda name: self._opened[name].looked_s)
        for name in built:
            is_idle = now_s - self._opened[name].looked_s > IDLE_S
            if is_idle or len(self._opened) >= MOST:
                self._leave(name)
        return len(self._opened) < MOST

    def _leave(self, name: str) -> None:
        task = asyncio.create_task(_close(self._opened.pop(name)))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(opened: _Opened) -> None:
    with contextlib.suppress(Exception):  # it could not be opened: a look has said so
        store = await opened.task
        await asyncio.to_thread(store.close)
