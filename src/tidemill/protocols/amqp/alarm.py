"""connection.blocked and connection.unblocked: clients that publish learn why they have to wait.

While the unanswered requests of all connections take more than ``limits.total_inflight_bytes``,
``net.budget`` does not read connections. A connection is not read either while it is held back,
because consumers of what it publishes are behind, or the disk is full. Clients that understand it
are notified.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tidemill.net.budget import Budget

CHECK_SECONDS = 0.1
"""How often it is checked whether clients are still blocked."""
LOW_ON_MEMORY = "low on memory"


class Blockable(Protocol):
    """A connection that can be notified."""

    @property
    def held_back_by(self) -> str | None:
        """The reason why it must wait before it publishes more; None if it need not."""

    def notify_blocked(self, reason: str | None) -> None:
        """Send connection.blocked, or connection.unblocked if there is no reason any more."""


class Alarm:
    """Notifies connections while memory is short, or they are held back."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._blocked: dict[Blockable, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def published(self, connection: Blockable) -> None:
        """Notify a connection that has published, if it has to wait."""
        reason = self._reason(connection)
        if reason is not None and connection not in self._blocked:
            self._blocked[connection] = None
            connection.notify_blocked(reason)
            if self._timer is None:
                self._later()

    def _reason(self, connection: Blockable) -> str | None:
        if self._budget.used > self._budget.limit:
            return LOW_ON_MEMORY
        return connection.held_back_by

    def forget(self, connection: Blockable) -> None:
        """Forget a closed connection."""
        self._blocked.pop(connection, None)

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        for connection in [each for each in self._blocked if self._reason(each) is None]:
            del self._blocked[connection]
            connection.notify_blocked(None)
        if self._blocked:
            self._later()
