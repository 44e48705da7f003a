"""Metrics of consumer groups, share groups and transactions.

The lag in seconds is the age of the next record that a group reads. To find it, the record's batch
is looked up in the log, and what was found is kept as long as the group does not move.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.clock import Clock
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.metrics.bounds import Sums, bounded
from tidemill.engine.shares.core import ShareCore
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.errors import TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.metrics.definition import gauge
from tidemill.metrics.registry import Family, Registry

GROUPS = gauge("tidemill_groups", "Groups, also those without members.")
MEMBERS = gauge("tidemill_group_members", "Members of a group.", "group")
_SUM = "the sum of its partitions, from committed offsets; also of a group without members."
LAG_RECORDS = gauge(
    "tidemill_group_lag_records",
    f"Records of a topic that a group has not read: {_SUM}",
    "group",
    "topic",
)
LAG_SECONDS = gauge(
    "tidemill_group_lag_seconds",
    "Age of the oldest record of a topic that a group has not read, by its timestamp; "
    "0 if it has read everything.",
    "group",
    "topic",
)
PARTITION_OFFSET = gauge(
    "tidemill_group_partition_committed_offset",
    "Committed offset of a group in a partition.",
    *("group", "topic", "partition"),
)
PARTITION_LAG = gauge(
    "tidemill_group_partition_lag_records",
    "Records of a partition that a group has not read.",
    *("group", "topic", "partition"),
)
SHARE_LAG = gauge(
    "tidemill_share_group_lag_records",
    "Records of a topic that a share group has not finished, also those that are delivered.",
    "group",
    "topic",
)
TRANSACTIONS = gauge("tidemill_transactions_open", "Transactions that have begun and not ended.")
OLDEST = gauge(
    "tidemill_transactions_oldest_seconds", "Age of the oldest open transaction; 0 without one."
)
IDS = gauge("tidemill_transactional_ids", "Transactional ids that the broker knows.")

MOST_LOOKUPS = 1000
"""Times of records that one scrape looks up. The others keep their last value until a later one."""
MOST_KEPT = 100_000
"""Times of records that are kept."""
_Key = tuple[str, str, int]
"""Group, topic and partition."""


class GroupMetrics:
    """Metrics of the groups and transactions of one broker.

    Args:
        most: groups, and topics of all groups, with series of their own.
    """

    def __init__(
        self,
        store: LogStore,
        groups: GroupCoordinator,
        shares: ShareCore,
        transactions: TransactionCoordinator,
        clock: Clock,
        most: int,
    ) -> None:
        self._logs = store.partitions
        self._groups = groups
        self._shares = shares
        self._transactions = transactions
        self._clock = clock
        self._most = most
        self._times: dict[_Key, tuple[int, int]] = {}
        """The offset that a group has reached, and the time of its record."""
        self._lookups = 0

    def register(self, registry: Registry) -> None:
        """Add these metrics to a registry."""
        registry.collect(self._collect_groups)
        registry.collect(self._collect_shares)
        registry.collect(self._collect_transactions)
        registry.collect(self._collect_partitions, detailed=True)

    # --- groups ----------------------------------------------------------------------------------

    def committed(self) -> Iterator[tuple[_Key, PartitionLog, int] | None]:
        """Yield each committed offset with its log, and None where there is nothing to show."""
        for group in self._groups.offsets.group_ids():
            for topic, partition in self._groups.offsets.positions(group):
                tp = TopicPartition(topic, partition)
                log = self._logs.get(tp)
                offset = None if log is None else self._groups.committed_offset(group, tp)
                if log is None or offset is None:
                    yield None
                else:
                    yield (group, topic, partition), log, offset

    def _collect_groups(self) -> Iterator[Family]:
        members = self._groups.member_counts()
        names = {*members, *self._groups.offsets.group_ids()}
        yield GROUPS, [((), len(names))]
        label = bounded(names, self._most)
        counts = Sums(1)
        for group, count in members.items():
            counts.at(label(group))[0] += count
        yield MEMBERS, counts.rows(0)
        sums = Sums(2, self._most)
        now_ms = self._clock.now_ms()
        self._lookups = 0
        for number, found in enumerate(self.committed()):
            if found is not None:
                (group, topic, partition), log, offset = found
                each = sums.at(label(group), topic)
                lag = max(log.high_watermark - max(offset, log.log_start_offset), 0)
                each[0] += lag
                if lag:
                    time_ms = self._time_of((group, topic, partition), log, offset)
                    each[1] = max(each[1], (now_ms - time_ms) / 1000 if time_ms >= 0 else 0)
            if number % 16 == 15:
                yield GROUPS, ()  # a place to pause
        yield LAG_RECORDS, sums.rows(0)
        yield LAG_SECONDS, sums.rows(1)

    def _time_of(self, key: _Key, log: PartitionLog, offset: int) -> int:
        """Return the timestamp of the next record of a group in ms, or -1 if it is not known."""
        known = self._times.get(key, (-1, -1))
        if known[0] == offset or self._lookups >= MOST_LOOKUPS or log.failure is not None:
            return known[1]
        self._lookups += 1
        if len(self._times) >= MOST_KEPT:
            self._times.clear()
        try:
            found = log.distance(offset).timestamp_ms
        except TidemillError:
            found = None  # damage is reported to readers, with its place
        self._times[key] = offset, -1 if found is None else found
        return self._times[key][1]

    def _collect_partitions(self) -> Iterator[Family]:
        found = []
        for number, each in enumerate(self.committed()):
            if each is not None:
                (group, topic, partition), log, offset = each
                lag = max(log.high_watermark - max(offset, log.log_start_offset), 0)
                found.append(((group, topic, str(partition)), offset, lag))
            if number % 64 == 63:
                yield PARTITION_OFFSET, ()
        yield PARTITION_OFFSET, ((labels, offset) for labels, offset, _ in found)
        yield PARTITION_LAG, ((labels, lag) for labels, _, lag in found)

    def _collect_shares(self) -> Iterator[Family]:
        sums = Sums(1, self._most)
        for group, topic, lag in self._shares.lags():
            sums.at(group, topic)[0] += lag
        yield SHARE_LAG, sums.rows(0)

    # --- transactions ----------------------------------------------------------------------------

    def _collect_transactions(self) -> Iterator[Family]:
        ids, count, oldest_ms = self._transactions.machine.open_since()
        yield IDS, [((), ids)]
        yield TRANSACTIONS, [((), count)]
        age = 0 if oldest_ms is None else max(self._clock.now_ms() - oldest_ms, 0) / 1000
        yield OLDEST, [((), age)]
