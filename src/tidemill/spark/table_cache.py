"""Changelogs in the memory of a process, each read once and then from where it was left.

Spark's Python workers live from task to task: what one has read of a table it keeps, and a
micro-batch costs the new records only. Must not know: Spark, schemas, queries.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import orjson

from tidemill.errors import JoinError, RequestTimedOutError
from tidemill.spark.cluster import KafkaCluster
from tidemill.spark.fetch import FetchPlan, fetch
from tidemill.spark.ranges import OffsetRange, TopicPartition
from tidemill.spark.source_options import EARLIEST, LATEST, Subscription
from tidemill.spark.topics import missing

DEFAULT_LIMIT = 1 << 30
"""Most bytes that one table may take in one process."""
MOST_TABLES = 16
"""Tables that a process keeps; the one that was not used for longest goes first."""
IDLE_LIMIT_S = 600.0
"""A table that was not looked at for longer is read anew: compaction may have removed deletions
that it has not heard of. They stay for ``delete.retention.ms`` at least, a day by default."""
_BEHIND_LIMIT_S = 60.0
# What Python's objects take for a row, besides the bytes of its key and value.
_ROW_BYTES = 250


@dataclass(frozen=True, slots=True)
class Change:
    """A record of a changelog; a value of None deletes. ``at`` is in microseconds since 1970."""

    key: bytes
    value: bytes | None
    partition: int
    offset: int
    at: int

    @property
    def order(self) -> tuple[int, int]:
        """Of two changes of a key, the greater one is the later."""
        return (self.offset, self.partition)


@dataclass(frozen=True)
class TableSpec:
    """Which changelog, and what is kept of it. Two that are equal share a cache.

    Attributes:
        topic: of the changelog.
        key: columns of the record's key.
        kafka: librdkafka's settings, sorted.
        foreign_key: for ``Latest``: columns of the value by which rows are found, too, each with
            the column of the other table's key.
        keep: for ``Versions``: microseconds for which those that were replaced are kept.
        valid_from: for ``Versions``: column of the value that says since when it holds, or None
            for the record's timestamp.
        limit: most bytes of memory.
    """

    topic: str
    key: tuple[str, ...]
    kafka: tuple[tuple[str, str], ...]
    foreign_key: tuple[tuple[str, str], ...] = ()
    keep: int = 0
    valid_from: str | None = None
    limit: int = DEFAULT_LIMIT


class Latest:
    """The last value of each key; by foreign key, too, where there is one."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._rows: dict[bytes, Change] = {}
        self._by_foreign: dict[bytes, set[bytes]] = {}
        self._foreign: dict[bytes, bytes] = {}
        self.size = 0

    def apply(self, change: Change) -> None:
        """Take a change; one that is older than what is known changes nothing."""
        known = self._rows.get(change.key)
        if known is not None:
            if known.order > change.order:
                return
            self._remove(known)
        if change.value is not None:
            self._rows[change.key] = change
            self.size += _size(change)
            self._index(change)

    def settle(self, first: Mapping[int, int]) -> None:
        """Forget what retention has removed.

        Args:
            first: of partitions whose first offset has risen.
        """
        if first:
            gone = [c for c in self._rows.values() if c.offset < first.get(c.partition, 0)]
            for change in gone:
                self._remove(change)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key as it is now."""
        change = self._rows.get(key)
        return None if change is None else change.value

    def all(self) -> Iterator[Change]:
        """All rows as they are now."""
        yield from self._rows.values()

    def foreign_key(self, key: bytes) -> bytes | None:
        """The foreign key of a row."""
        return self._foreign.get(key)

    def referring_to(self, foreign_key: bytes) -> frozenset[bytes] | set[bytes]:
        """Keys of the rows with this foreign key."""
        return self._by_foreign.get(foreign_key, frozenset())

    def _index(self, change: Change) -> None:
        if not self._spec.foreign_key:
            return
        foreign = _foreign_key(change, self._spec)
        if foreign is not None:
            self._foreign[change.key] = foreign
            self._by_foreign.setdefault(foreign, set()).add(change.key)

    def _remove(self, change: Change) -> None:
        del self._rows[change.key]
        self.size -= _size(change)
        foreign = self._foreign.pop(change.key, None)
        if foreign is not None:
            keys = self._by_foreign[foreign]
            keys.discard(change.key)
            if not keys:
                del self._by_foreign[foreign]


class Versions:
    """The versions of each key in the order of their validity."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._rows: dict[bytes, list[tuple[int, tuple[int, int], Change]]] = {}
        self._touched: set[bytes] = set()
        self._newest = -(2**62)
        self.size = 0

    def apply(self, change: Change) -> None:
        """Take a version, or a deletion; they may come in any order of validity."""
        since = _valid_from(change, self._spec)
        bisect.insort(self._rows.setdefault(change.key, []), (since, change.order, change))
        self._touched.add(change.key)
        self._newest = max(self._newest, since)
        self.size += _size(change)

    def settle(self, first: Mapping[int, int]) -> None:
        """Forget what was replaced before the period, and what retention has removed."""
        horizon = min(self._newest, time.time_ns() // 1000) - self._spec.keep
        for key in self._touched:
            versions = self._rows[key]
            passed = bisect.bisect_right(versions, horizon, key=lambda v: v[0])
            if passed and versions[passed - 1][2].value is not None:
                passed -= 1  # it holds on, behind the horizon
            self._drop(key, versions[:passed])
        self._touched.clear()
        for key, versions in list(self._rows.items()) if first else ():
            gone = [v for v in versions if v[2].offset < first.get(v[2].partition, 0)]
            self._drop(key, gone)

    def get(self, key: bytes, at: int) -> bytes | None:
        """The value that held at an instant, in microseconds since 1970."""
        versions = self._rows.get(key)
        if versions is None:
            return None
        passed = bisect.bisect_right(versions, at, key=lambda v: v[0])
        return versions[passed - 1][2].value if passed else None

    def all(self) -> Iterator[tuple[Change, int, int | None]]:
        """All versions, with the time in which each held, its end excluded."""
        for versions in self._rows.values():
            ends: list[int | None] = [since for since, _, _ in versions[1:]]
            for (since, _, change), until in zip(versions, [*ends, None], strict=True):
                if change.value is not None and since != until:
                    yield change, since, until

    def _drop(self, key: bytes, gone: list[tuple[int, tuple[int, int], Change]]) -> None:
        if not gone:
            return
        self.size -= sum(_size(change) for _, _, change in gone)
        kept = [version for version in self._rows[key] if version not in gone]
        if kept:
            self._rows[key] = kept
        else:
            del self._rows[key]


Rows = TypeVar("Rows", Latest, Versions)


@dataclass
class TableCache(Generic[Rows]):
    """A changelog in memory.

    Attributes:
        rows: what is kept of it, up to ``positions``.
        positions: the next offset to read, per partition.

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
        self._looked = 0.0
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
        idle = time.monotonic() - self._looked > IDLE_LIMIT_S
        if again or shorter or idle:
            self.rows, self.positions, self._first = self.make(self.spec), {}, {}
        self._topic_id = found[topic].topic_id
        try:
            for tp in partitions:
                self._read(tp, first[tp], last[tp])
        except BaseException:
            self._looked = 0.0  # it may hold half a batch: begin again
            raise
        moved = {p: n for (_, p), n in first.items() if self._first.get(p, 0) < n}
        self._first = {p: n for (_, p), n in first.items()}
        self.rows.settle(moved)
        self._looked = time.monotonic()

    def _read(self, tp: TopicPartition, first: int, last: int) -> None:
        topic, partition = tp
        start = max(self.positions.get(partition, 0), first)
        if start < last:
            for batch in fetch(OffsetRange(topic, partition, start, last), self._plan):
                self._apply(batch, partition)
        self.positions[partition] = max(start, last)

    def _apply(self, batch: Any, partition: int) -> None:
        spec, rows = self.spec, self.rows
        columns = (batch.column(name) for name in ("key", "value", "offset"))
        stamps = batch.column("timestamp").cast("int64").to_pylist()
        for key, value, offset, at in zip(*(c.to_pylist() for c in columns), stamps, strict=True):
            made = None if key is None else canonical(key, spec.key)
            if made is None:
                raise JoinError(
                    f"table {spec.topic}: the record at offset {offset} of partition {partition} "
                    f"has no key of {', '.join(spec.key)}",
                    hint="One column is written as its text, several as a JSON object.",
                )
            rows.apply(Change(made, value, partition, offset, at))
        if rows.size > spec.limit:
            rows.settle({})
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


def canonical(key: bytes, columns: tuple[str, ...]) -> bytes | None:
    """A record's key as bytes that are equal for equal keys; None if it lacks a column."""
    if len(columns) == 1:
        return key
    try:
        fields = orjson.loads(key)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    return _join(fields, [(name, name) for name in columns])


def _join(fields: dict[str, Any], columns: Sequence[tuple[str, str]]) -> bytes | None:
    """An object of some of the fields, under new names."""
    if any(fields.get(name) is None for name, _ in columns):
        return None
    return orjson.dumps({new: fields[name] for name, new in columns})


def _foreign_key(change: Change, spec: TableSpec) -> bytes | None:
    """A row's foreign key, as the other table has it for its key."""
    fields = _object(change, spec)
    if len(spec.foreign_key) > 1:
        return _join(fields, spec.foreign_key)
    found = fields.get(spec.foreign_key[0][0])
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else orjson.dumps(found)


def _valid_from(change: Change, spec: TableSpec) -> int:
    if spec.valid_from is None or change.value is None:
        return change.at
    found = _object(change, spec).get(spec.valid_from)
    if found is None:
        return change.at
    try:
        # As Spark's from_json: a number counts seconds.
        made = datetime.fromisoformat(found) if isinstance(found, str) else None
        if made is None:
            return int(found) * 1_000_000
    except (TypeError, ValueError):
        raise _malformed(change, spec, f"a {spec.valid_from} that is no time: {found!r}") from None
    made = made if made.tzinfo else made.replace(tzinfo=UTC)
    delta = made - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _object(change: Change, spec: TableSpec) -> dict[str, Any]:
    try:
        fields = orjson.loads(change.value or b"")
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise _malformed(change, spec, "no JSON object")
    return fields


def _malformed(change: Change, spec: TableSpec, what: str) -> JoinError:
    return JoinError(
        f"table {spec.topic}: the record at offset {change.offset} of partition "
        f"{change.partition} has {what}"
    )


def _size(change: Change) -> int:
    return _ROW_BYTES + len(change.key) + len(change.value or b"")
