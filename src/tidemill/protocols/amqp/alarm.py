"""connection.blocked and connection.unblocked: clients that publish learn that memory is short.

While the unanswered requests of all connections take more than ``limits.total_inflight_bytes``,
``net.budget`` does not read connections. Clients that understand it are notified.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidemill.net.budget import Budget

CHECK_SECONDS = 0.1
"""How often the memory is measured while clients are blocked."""


class Blockable(Protocol):
    """A connection that can be notified."""

    def notify_blocked(self, blocked: bool) -> None:
        """Send connection.blocked or connection.unblocked."""


class Alarm:
    """Notifies connections while memory is short.

    Args:
        budget: the memory of requests.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._blocked: dict[Blockable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def published(self, connection: Blockable) -> None:
        """Notify a connection that has published, if memory is short."""
        if self._budget.used > self._budget.limit and connection not in self._blocked:
            self._blocked[connection] = None
            connection.notify_blocked(True)
            if self._timer is None:
                self._later()

    def forget(self, connection: Blockable) -> None:
        """Forget a closed connection."""
        self._blocked.pop(connection, None)

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._budget.used <= self._budget.limit:
            blocked, self._blocked = self._blocked, {}
            for connection in blocked:
                connection.notify_blocked(False)
        elif self._blocked:
            self._later()
