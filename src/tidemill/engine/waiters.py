"""Long polls: reads that wait until one of their partitions has new records.

Readers of committed records wait for the last stable offset. Records after an open transaction
neither wake them nor are synced for them. The read itself decides when it has enough: it checks
again each time it is woken. Knows partitions' offsets and futures only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog

_Future = asyncio.Future[None]


class Waiters:
    """The waiting reads, by partition."""

    def __init__(self) -> None:
        self._for_all: dict[TopicPartition, set[_Future]] = {}
        self._for_stable: dict[TopicPartition, dict[_Future, int]] = {}
        """Each future with the last stable offset that its reader has seen."""
        self.on_woken: Callable[[TopicPartition], None] = lambda _tp: None
        """Called after ``wake``."""

    def register(
        self, partitions: Sequence[TopicPartition], stable: Sequence[int] | None = None
    ) -> _Future:
        """Return a future that is done when any of the partitions moves. Unregister it afterwards.

        Args:
            stable: for a reader of committed records, the current last stable offset of each
                partition.
        """
        future: _Future = asyncio.get_running_loop().create_future()
        if stable is None:
            for tp in partitions:
                self._for_all.setdefault(tp, set()).add(future)
        else:
            for tp, seen in zip(partitions, stable, strict=True):
                self._for_stable.setdefault(tp, {})[future] = seen
        return future

    def has(self, tp: TopicPartition) -> bool:
        """Return whether a read waits for the partition."""
        return tp in self._for_all or tp in self._for_stable

    def unregister(self, future: _Future, partitions: Sequence[TopicPartition]) -> None:
        """Forget a future that ``register`` returned."""
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
        """Return whether a reader waits that would see more if the log was synced."""
        if log.tp in self._for_all:
            return True
        # After an open transaction a sync shows nothing. The transaction's end syncs by itself.
        return log.tp in self._for_stable and log.last_stable_offset == log.high_watermark

    def advanced(self, logs: Sequence[PartitionLog]) -> None:
        """Wake readers: high watermarks moved, and perhaps last stable offsets."""
        for_all, for_stable = self._for_all, self._for_stable
        if not for_all and not for_stable:
            return
        for log in logs:
            if log.tp in for_all:
                _wake(for_all[log.tp])
            if log.tp in for_stable:
                offset = log.last_stable_offset
                _wake(future for future, seen in for_stable[log.tp].items() if seen < offset)

    def wake(self, tp: TopicPartition) -> None:
        """Wake all readers of a partition: its start moved, or it was deleted."""
        _wake(self._for_all.get(tp, ()))
        _wake(self._for_stable.get(tp, ()))
        self.on_woken(tp)

    def wake_all(self) -> None:
        """Wake all readers: the broker stops, and they return what they have."""
        for tp in [*self._for_all, *self._for_stable]:
            self.wake(tp)


def _wake(futures: Iterable[_Future]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
