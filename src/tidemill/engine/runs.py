"""The data types of a run: ordinary batches that a client sent together, each to one partition.

Plain data, and the wait for it. No protocol and no I/O. ``records.append_runs`` appends runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias
from uuid import UUID

from tidemill.errors import TidemillError
from tidemill.log.errors import StorageError
from tidemill.log.format.validate import Limits, limits_of
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.native import extension

Facts: TypeAlias = tuple[int, int, int, int, int]
"""What the records of a checked batch have: their number, latest and earliest timestamp, how many
of them have no key, and the producer's id or -1."""

RunResult: TypeAlias = tuple[int, int, int] | TidemillError
"""Base offset, LogAppendTime or -1, and start of the log; or the error."""


class Target(extension.TargetFields):
    """A partition that a client writes to, with what was found out about it.

    Args:
        topic_id: the id of its topic; None accepts any topic of that name.
    """

    __slots__ = ()

    tp: TopicPartition
    topic_id: UUID | None
    log: PartitionLog | None
    limits: Limits | None

    def __init__(self, tp: TopicPartition, topic_id: UUID | None) -> None:
        self.tp = tp
        self.topic_id = topic_id

    def find(self, log: PartitionLog) -> None:
        """Use a log, with its present configs."""
        self.log, self.head, self.appender, self.config = log, log.head, log.appender, log.config
        self.limits = limits_of(log.config)


RunWrite: TypeAlias = tuple[Target, memoryview, Facts]


class PendingRun:
    """The results of a run that waits for the disk."""

    __slots__ = ("_callback", "remaining", "results")

    def __init__(self, results: list[RunResult]) -> None:
        self.results = results
        self.remaining = 0
        self._callback: Callable[[list[RunResult]], None] | None = None

    def call_when_done(self, callback: Callable[[list[RunResult]], None]) -> None:
        """Call ``callback`` with the results, on the event loop. It must not raise.

        This must be called in the turn of the event loop that made the run.
        """
        self._callback = callback

    def count(self, places: Sequence[int], error: Exception | None) -> None:
        """Note that the log of some results is on disk, or failed."""
        if error is not None:
            if not isinstance(error, TidemillError):
                error = StorageError(f"the sync failed: {error!r}")
            for place in places:
                if not isinstance(self.results[place], TidemillError):
                    self.results[place] = error
        self.remaining -= 1
        if not self.remaining and self._callback is not None:
            callback, self._callback = self._callback, None  # it refers to this run
            callback(self.results)
