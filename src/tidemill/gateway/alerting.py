"""The state of alerts for pages, kept for a short time. Must not know: routes, HTML."""

from __future__ import annotations

import asyncio
import time

from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.desk import Desk
from tidemill.connect.alerts.topics import ALERTS
from tidemill.gateway.reach import Reach

KEPT_S = 2.0
"""How long a state is shown again."""


class KeptAlerts:
    """The state of alerts. It belongs to one event loop."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._reach = Reach(kafka)
        self._lock = asyncio.Lock()
        self._kept: tuple[float, Desk] | None = None

    async def get(self) -> Desk:
        """Return the state.

        Raises:
            UnreachableError: no broker answers.
            TidemillError: the user must not read it.
        """
        async with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > KEPT_S:
                desk = await asyncio.to_thread(self._read)
                self._kept = time.monotonic(), desk
            return self._kept[1]

    def _read(self) -> Desk:
        self._reach.check(f"read topic {ALERTS}")
        return Desk(self._kafka)

    def expire(self) -> None:
        """Ask again at the next look."""
        self._kept = None
