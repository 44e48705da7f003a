"""Changelogs in the memory of a process, each read once and then from where it was left.

Spark's Python workers live from task to task: what one has read of a table it keeps, and a
micro-batch costs the new records only. Must not know: Spark, schemas, queries.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tidemill.errors import JoinError, RequestTimedOutError
from tidemill.spark.cluster import KafkaCluster
from tidemill.spark.fetch import FetchPlan, fetch
from tidemill.spark.ranges import OffsetRange, TopicPartition
from tidemill.spark.source_options import EARLIEST, LATEST, Subscription
from tidemill.spark.table_changes import Change, TableSpec, canonical
from tidemill.spark.table_rows import Latest, Versions
from tidemill.spark.topics import missing

MOST_TABLES = 16
"""Tables that a process keeps; the one that was not used for longest goes first."""
IDLE_LIMIT_S = 600.0
"""A table that was not looked at for longer is read anew: compaction may have removed deletions
that it has not heard of. They stay for ``delete.retention.ms`` at least, a day by default."""
_BEHIND_LIMIT_S = 60.0

Rows = TypeVar("Rows", Latest, Versions)


@dataclass
class TableCache(Generic[Rows]):
    """A changelog in memory.

    Attributes:
        rows: what is kept of it, up to ``positions``.
        positions: the next offset to read, per partition.
        user: who has refreshed it last.
    """

    spec: TableSpec
    make: Callable[[TableSpec], Rows]
    positions: dict[int, int] = field(default_factory=dict)
    user: Any = None

    def __post_init__(self) -> None:
        self._cluster = KafkaCluster(dict(self.spec.kafka))
        self._plan = FetchPlan(dict(self.spec.kafka), fail_on_data_loss=False)
        self._topic_id = ""
        self._first: dict[int, int] = {}
        self._looked: float | None = None  # None: what is there can't be gone on from
        self.rows: Rows = self.make(self.spec)

    def refresh(self, at_least: Mapping[int, int] | None = None) -> None:
        """Read on, to the end that the topic has now.

        Args:
            at_least: positions that must be reached, per partition: those that others have seen.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            UnreachableError, RequestTimedOutError: the broker does not answer in time.
            JoinError: the table takes more memory than it may, or a record is malformed.
        """
        deadline = time.monotonic() + _BEHIND_LIMIT_S
        while True:
            self._read_on()
            behind = [p for p, n in (at_least or {}).items() if self.positions.get(p, 0) < n]
            if not behind:
                return
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"table {self.spec.topic}: partition {behind[0]} ends before offsets that were "
                    "read of it",
                )
            time.sleep(0.05)  # a replica that has just become leader may know less for a moment

    def _read_on(self) -> None:
        topic = self.spec.topic
        wanted = Subscription(topics=(topic,))
        found = self._cluster.describe(wanted)
        if (error := missing(wanted, found)) is not None:
            raise error
        partitions: list[TopicPartition] = [(topic, p) for p in found[topic].partitions]
        first = self._cluster.offsets(dict.fromkeys(partitions, EARLIEST))
        last = self._cluster.offsets(dict.fromkeys(partitions, LATEST))
        again = self._topic_id != found[topic].topic_id
        shorter = any(last[tp] < self.positions.get(tp[1], 0) for tp in partitions)
        idle = self._looked is None or time.monotonic() - self._looked > IDLE_LIMIT_S
        if again or shorter or idle:
            self._begin_anew()
        read_on = bool(self.positions)
        self._topic_id = found[topic].topic_id
        self._looked = None  # until all is read, it may hold half a batch
        self._read_all(first, last)
        if self.rows.is_stale and read_on:
            self._begin_anew()
            self._read_all(first, last)
        moved = {p: n for (_, p), n in first.items() if self._first.get(p, 0) < n}
        self._first = {p: n for (_, p), n in first.items()}
        self.rows.settle(moved)
        self._looked = time.monotonic()

    def _begin_anew(self) -> None:
        self.rows, self.positions, self._first = self.make(self.spec), {}, {}

    def _read_all(
        self, first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]
    ) -> None:
        for tp in first:
            self._read(tp, first[tp], last[tp], len(first))

    def _read(self, tp: TopicPartition, first: int, last: int, partitions: int) -> None:
        topic, partition = tp
        start = max(self.positions.get(partition, 0), first)
        if start < last:
            for batch in fetch(OffsetRange(topic, partition, start, last), self._plan):
                self._apply(batch, partition, partitions)
        self.positions[partition] = max(start, last)

    def _apply(self, batch: Any, partition: int, partitions: int) -> None:
        spec, rows = self.spec, self.rows
        columns = (batch.column(name) for name in ("key", "value", "offset"))
        stamps = batch.column("timestamp").cast("int64").to_pylist()
        for key, value, offset, at in zip(*(c.to_pylist() for c in columns), stamps, strict=True):
            made = None if key is None else canonical(key, spec)
            if made is None:
                raise JoinError(
                    f"table {spec.topic}: the record at offset {offset} of partition {partition} "
                    f"has no key of {', '.join(spec.key)}",
                    hint="One column is written as its text, several as a JSON object.",
                )
            rows.apply(Change(made, value, partition, offset, at))
        if rows.size > spec.limit:
            rows.shrink(partitions)
        if rows.size > spec.limit:
            raise JoinError(
                f"table {spec.topic} takes more than {spec.limit >> 20} MiB of memory",
                hint="Raise memory_limit; or join with the table's .df, which keeps nothing.",
            )


_caches: OrderedDict[tuple[type, TableSpec], TableCache[Any]] = OrderedDict()
_owner = 0
_lock = threading.Lock()


def cache_of(spec: TableSpec, make: Callable[[TableSpec], Rows]) -> TableCache[Rows]:
    """The cache of this process for a table, as it was left."""
    global _owner
    with _lock:
        if _owner != os.getpid():  # clients do not survive a fork
            _caches.clear()
            _owner = os.getpid()
        name: Any = (make, spec)
        if name not in _caches:
            _caches[name] = TableCache(spec, make)
        _caches.move_to_end(name)
        while len(_caches) > MOST_TABLES:
            _caches.popitem(last=False)
        return _caches[name]
