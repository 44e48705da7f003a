"""Long polls: fetches that wait until a partition they read has something new.

Readers of committed records wait for the last stable offset: what others write behind an open
transaction neither wakes them nor is synced for them. What "enough" means is decided by the fetch
itself, which looks again each time it is woken. Knows partitions' offsets and futures only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog

_Future = asyncio.Future[None]


class Waiters:
    """Who waits for which partition."""

    def __init__(self) -> None:
        self._for_all: dict[TopicPartition, set[_Future]] = {}
        self._for_stable: dict[TopicPartition, dict[_Future, int]] = {}
        """Each with the last stable offset that it has seen."""

    def register(
        self, partitions: Sequence[TopicPartition], stable: Sequence[int] | None = None
    ) -> _Future:
        """A future that is done when any of the partitions moves. Unregister it afterwards.

        Args:
            stable: for a reader of committed records: each partition's last stable offset, as it
                is in this turn of the loop.
        """
        future: _Future = asyncio.get_running_loop().create_future()
        if stable is None:
            for tp in partitions:
                self._for_all.setdefault(tp, set()).add(future)
        else:
            for tp, seen in zip(partitions, stable, strict=True):
                self._for_stable.setdefault(tp, {})[future] = seen
        return future

    def unregister(self, future: _Future, partitions: Sequence[TopicPartition]) -> None:
        """Forget a future that ``register`` gave."""
        for tp in partitions:
            everything = self._for_all.get(tp)
            if everything is not None:
                everything.discard(future)
                if not everything:
                    del self._for_all[tp]
            stable = self._for_stable.get(tp)
            if stable is not None:
                stable.pop(future, None)
                if not stable:
                    del self._for_stable[tp]

    def wait_for_sync(self, log: PartitionLog) -> bool:
        """Does anybody wait who would see more if the log was synced?"""
        if log.tp in self._for_all:
            return True
        # Behind an open transaction a sync shows nothing; its end asks for its own.
        return log.tp in self._for_stable and log.last_stable_offset == log.high_watermark

    def advanced(self, log: PartitionLog) -> None:
        """The log's high watermark moved, and perhaps its last stable offset."""
        _wake(self._for_all.get(log.tp, ()))
        stable = self._for_stable.get(log.tp)
        if stable:
            offset = log.last_stable_offset
            _wake(future for future, seen in stable.items() if seen < offset)

    def wake(self, tp: TopicPartition) -> None:
        """The partition's start moved, or it is gone: everybody has to look."""
        _wake(self._for_all.get(tp, ()))
        _wake(self._for_stable.get(tp, ()))

    def wake_all(self) -> None:
        """The broker stops: everybody answers with what there is."""
        for tp in [*self._for_all, *self._for_stable]:
            self.wake(tp)


def _wake(futures: Iterable[_Future]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
