"""Long polls: fetches that wait until a partition they read has something new.

Knows partitions' names and futures only; what "enough" means is decided by the fetch itself, which
looks again each time it is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tidemill.log.names import TopicPartition


class Waiters:
    """Who waits for which partition."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, set[asyncio.Future[None]]] = {}

    def register(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[None]:
        """A future that is done when any of the partitions moves. Unregister it afterwards."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for tp in partitions:
            self._by_partition.setdefault(tp, set()).add(future)
        return future

    def unregister(
        self, future: asyncio.Future[None], partitions: Iterable[TopicPartition]
    ) -> None:
        """Forget a future that ``register`` gave."""
        for tp in partitions:
            waiting = self._by_partition.get(tp)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._by_partition[tp]

    def waits_for(self, tp: TopicPartition) -> bool:
        """Does anybody wait for this partition?"""
        return tp in self._by_partition

    def wake(self, tp: TopicPartition) -> None:
        """The partition moved, or is gone."""
        for future in self._by_partition.get(tp, ()):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """The broker stops: everybody answers with what there is."""
        for tp in list(self._by_partition):
            self.wake(tp)
