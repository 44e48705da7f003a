"""Counts the memory of messages.

``Accounts`` counts those of one connection against the limits of ``net``: frames and messages that
have arrived in part, and messages that were published and are not on disk yet. ``Kept`` counts the
bodies that were delivered and are not settled. Knows no channel and no frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.engine.queues.api import Delivery
from tidemill.net.budget import Budget
from tidemill.net.link import Link

KEPT_BYTES = 1 << 25
"""Bodies of unsettled deliveries that stay in memory, over all connections. Others are read from
the log again, which only a rejection with a dead letter needs."""


class Kept:
    """The bodies of unsettled deliveries in memory, of all connections.

    Attributes:
        size: their bytes.
    """

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def add(self, delivery: Delivery) -> None:
        """Keep the body of a delivery that was sent, or free it if there are too many."""
        size = len(delivery.value)
        if self.size + size > KEPT_BYTES:
            delivery.drop_value()
        else:
            self.size += size

    def remove(self, delivery: Delivery) -> None:
        """Forget a delivery that is settled."""
        self.size -= len(delivery.value)


class Accounts:
    """The memory of one connection.

    Args:
        budget: the memory of all connections.
        measure: returns the bytes that are published and not on disk yet.
        grew: called after these bytes have grown.
    """

    def __init__(
        self, link: Link, budget: Budget, measure: Callable[[], int], grew: Callable[[], None]
    ) -> None:
        self._link = link
        self._budget = budget
        self._measure = measure
        self._grew = grew
        self._partial = 0
        self._pending = 0
        self._is_scheduled = False
        self._is_closed = False

    def count_partial(self, partial: int) -> None:
        """Count bytes of frames and messages that have arrived in part."""
        if partial != self._partial:
            self._partial = partial
            self._budget.count_partial(self._link, partial)

    def count_pending(self) -> None:
        """Count bytes that are published and not on disk yet."""
        pending = self._measure()
        change, self._pending = pending - self._pending, pending
        if change > 0:
            self._link.hold_request(change)
            self._grew()
        elif change < 0:
            self._link.release_request(-change)

    def count_pending_later(self) -> None:
        """Count in the next turn of the event loop, once."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._count_scheduled)

    def _count_scheduled(self) -> None:
        self._is_scheduled = False
        if not self._is_closed:
            self.count_pending()

    def close(self) -> None:
        """Return everything: the connection is gone. Nothing is measured any more."""
        self._is_closed = True
        self._measure, self._grew = lambda: 0, lambda: None  # the old ones refer to the session
        self.count_partial(0)
        pending, self._pending = self._pending, 0
        if pending:
            self._link.release_request(pending)
