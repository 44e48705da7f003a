"""Find the log of a partition, or the reason why it can't be used.

Knows the store of logs and whether the engine is stopping.
"""

from __future__ import annotations

from collections.abc import Set

from tidemill.engine.errors import (
    BrokerStoppingError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
)
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.log.errors import InvalidTopicError, StorageError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.state.internal_topics import is_internal


class Partitions:
    """The partitions that clients can use.

    Args:
        uncommitted: partitions whose topic is not in the catalog yet. Clients must not see them.
            The set changes while topics are created.

    Attributes:
        logs: all logs.
        uncommitted: see the argument.
        is_stopping: whether appends are refused.
    """

    def __init__(self, store: LogStore, uncommitted: Set[TopicPartition] = frozenset()) -> None:
        self.store = store
        self.logs = store.partitions
        self.uncommitted = uncommitted
        self.is_stopping = False
        self._failure: StorageError | None = None

    def stop(self, failure: StorageError | None = None) -> None:
        """Refuse appends from now on. After a storage failure, refuse reads too."""
        self.is_stopping = True
        self._failure = failure

    def exists(self, tp: TopicPartition) -> bool:
        """Return whether clients can use the partition's log."""
        return tp in self.logs and tp not in self.uncommitted

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the partition's log.

        Raises:
            UnknownTopicOrPartitionError: the partition does not exist.
            StorageError: the partition was damaged when the broker started, and is offline.
        """
        tp = TopicPartition(topic, partition)
        log = self.logs.get(tp)
        if log is not None and tp not in self.uncommitted:
            return log
        damage = self.store.offline.get(tp)
        if damage is not None:
            raise damage.with_traceback(None)
        raise UnknownTopicOrPartitionError(f"there is no partition {tp}")

    def readable(self, topic: str, partition: int, leader_epoch: int | None) -> PartitionLog:
        """Return the partition's log for a read.

        Raises:
            StorageError: the storage has failed.
            TidemillError: as ``log`` and ``check_leader_epoch``.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        log = self.log(topic, partition)
        if leader_epoch is not None:
            check_leader_epoch(log, leader_epoch)
        return log

    def writable(self, topic: str, partition: int) -> PartitionLog:
        """Return the partition's log for a write by a client.

        Raises:
            BrokerStoppingError, StorageError: the engine is stopping, or has failed.
            InvalidTopicError: the topic is internal.
            TidemillError: as ``log``.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self.is_stopping:
            raise BrokerStoppingError("the broker is stopping")
        log = self.log(topic, partition)
        if is_internal(topic):
            raise InvalidTopicError(f"topic {topic!r} is internal: clients can't write to it")
        return log


def check_leader_epoch(log: PartitionLog, epoch: int | None) -> None:
    """Compare the client's leader epoch, if it knows one, with the partition's (KIP-320).

    Raises:
        FencedLeaderEpochError: the client's epoch is older.
        UnknownLeaderEpochError: the client's epoch is newer.
    """
    if epoch is None or epoch == log.leader_epoch:
        return
    if epoch < log.leader_epoch:
        raise FencedLeaderEpochError(
            f"{log.tp}: leader epoch {epoch} is older than the current epoch {log.leader_epoch}"
        )
    raise UnknownLeaderEpochError(
        f"{log.tp}: leader epoch {epoch} is newer than the current epoch {log.leader_epoch}"
    )
