"""The data types of a run: ordinary batches that a client sent together, each to one partition.

Plain data. No protocol and no I/O. ``records.append_runs`` appends runs.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from tidemill.log.format.validate import Limits, limits_of
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.native import extension

Facts: TypeAlias = tuple[int, int, int, int, int]
"""What the records of a checked batch have: their number, latest and earliest timestamp, how many
of them have no key, and the producer's id or -1."""


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
