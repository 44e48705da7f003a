"""Keep changelogs in the memory of a process, and read only their new records each time.

Spark's Python workers live longer than one task. A worker keeps the tables that it has read, so a
micro-batch costs only the records that are new. Must not know: Spark, schemas, queries.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tidemill.errors import RequestTimedOutError
from tidemill.reading.fetch import FetchPlan, fetch
from tidemill.reading.ranges import OffsetRange, TopicPartition
from tidemill.spark.errors import JoinError
from tidemill.spark.source.cluster import KafkaCluster
from tidemill.spark.source.planning.options import EARLIEST, LATEST, Subscription
from tidemill.spark.source.planning.topics import missing
from tidemill.spark.tables.captured_records import CapturedRecords, Record
from tidemill.spark.tables.changes import Change, TableSpec, canonical
from tidemill.spark.tables.rows import Latest, Versions

MAX_TABLES = 16
"""Most tables that a process keeps; the least recently used one is dropped first."""
IDLE_LIMIT_S = 600.0
"""A table that was not refreshed for longer is read again from the beginning: compaction may have
removed deletions that the cache has not read. They are kept for ``delete.retention.ms`` at least,
which is a day by default."""
_BEHIND_LIMIT_S = 60.0

Rows = TypeVar("Rows", Latest, Versions)


@dataclass
class TableCache(Generic[Rows]):
    """A changelog in memory.

    Attributes:
        spec: the changelog, and which records to keep.
        make: makes empty rows.
        rows: the rows up to ``positions``.
        positions: the next offset to read, per partition.
        user: the task that refreshed the cache last.
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
        self._envelopes = CapturedRecords(self.spec)
        self._refreshed_at: float | None = None  # None: the rows are incomplete
        self.rows: Rows = self.make(self.spec)

    def refresh(self, at_least: Mapping[int, int] | None = None) -> None:
        """Read new records up to the current end of the topic.

        Args:
            at_least: the positions that must be reached, per partition, because another reader has
                already read so far.

        Raises:
            UnknownTopicOrPartitionError: the topic does not exist.
            UnreachableError: no broker is reachable.
            RequestTimedOutError: the broker does not answer in time.
            JoinError: the table takes more memory than its limit, or a record is malformed.
        """
        deadline = time.monotonic() + _BEHIND_LIMIT_S
        while True:
            self._read_new()
            behind = [p for p, n in (at_least or {}).items() if self.positions.get(p, 0) < n]
            if not behind:
                return
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"table {self.spec.topic}: partition {behind[0]} ends before offsets that "
                    "another reader has read",
                )
            time.sleep(0.05)  # a new leader may report an older end for a moment

    def _read_new(self) -> None:
        topic = self.spec.topic
        wanted = Subscription(topics=(topic,))
        found = self._cluster.describe(wanted)
        if (error := missing(wanted, found)) is not None:
            raise error
        partitions: list[TopicPartition] = [(topic, p) for p in found[topic].partitions]
        first = self._cluster.offsets(dict.fromkeys(partitions, EARLIEST))
        last = self._cluster.offsets(dict.fromkeys(partitions, LATEST))
        is_other = self._topic_id != found[topic].topic_id
        is_shorter = any(last[tp] < self.positions.get(tp[1], 0) for tp in partitions)
        before = self._refreshed_at
        is_outdated = before is None or time.monotonic() - before > IDLE_LIMIT_S
        if is_other or is_shorter or is_outdated:
            self._clear()
        has_rows = bool(self.positions)
        self._topic_id = found[topic].topic_id
        self._refreshed_at = None  # if reading fails, the rows are incomplete
        self._read_all(first, last)
        if self.rows.is_stale and has_rows:
            self._clear()
            self._read_all(first, last)
        moved = {p: n for (_, p), n in first.items() if self._first.get(p, 0) < n}
        self._first = {p: n for (_, p), n in first.items()}
        self.rows.settle(moved)
        self._refreshed_at = time.monotonic()

    def _clear(self) -> None:
        self.rows, self.positions, self._first = self.make(self.spec), {}, {}
        self._envelopes = CapturedRecords(self.spec)

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
            if spec.captured:
                self._envelopes.apply(Record(key, value, partition, offset, at), rows)
                continue
            made = None if key is None else canonical(key, spec)
            if made is None:
                raise JoinError(
                    f"table {spec.topic}: the record at offset {offset} of partition {partition} "
                    f"has no key of {', '.join(spec.key)}",
                    hint="A key of one column must be its text; a key of several columns must be a "
                    "JSON object.",
                )
            rows.apply(Change(made, value, partition, offset, at))
        if rows.size > spec.limit:
            rows.shrink(partitions)
        if rows.size > spec.limit:
            raise JoinError(
                f"table {spec.topic} takes more than {spec.limit >> 20} MiB of memory",
                hint="Raise memory_limit of the join.",
            )


_caches: OrderedDict[tuple[type, TableSpec], TableCache[Any]] = OrderedDict()
_owner = 0
_lock = threading.Lock()


def cache_of(spec: TableSpec, make: Callable[[TableSpec], Rows]) -> TableCache[Rows]:
    """Return this process's cache of a table, without new records."""
    global _owner
    with _lock:
        if _owner != os.getpid():  # Kafka clients can't be used after a fork
            _caches.clear()
            _owner = os.getpid()
        name: Any = (make, spec)
        if name not in _caches:
            _caches[name] = TableCache(spec, make)
        _caches.move_to_end(name)
        while len(_caches) > MAX_TABLES:
            _caches.popitem(last=False)
        return _caches[name]
