"""Keep the rows of a changelog in memory: the last value of each key, or its versions in time.

The result depends on the records only, not on the order in which partitions are read. Within a
partition, the change with the greater offset is the later one, whatever the timestamps are. A key
may move to another partition when partitions are added, and offsets of two partitions can't be
compared. So the last change of the key in each partition counts, and among these the one with the
greatest timestamp (of equal timestamps, the one in the greatest partition). Must not know: Kafka
clients, Spark, queries.
"""

from __future__ import annotations

import bisect
import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tidemill.spark.tables.changes import (
    Change,
    TableSpec,
    following,
    foreign_key_of,
    is_older,
    is_repeated,
    replaces,
    size_of,
    valid_from_of,
)

KEPT_DELETIONS = 100_000
"""About how many deletions a captured table keeps, so that a repeated older change is not taken for
a new row. When there are more, all are dropped."""


class Latest:
    """The last value of each key, found by key and by foreign key.

    Attributes:
        size: about the bytes of memory.
        is_stale: always false; see ``Versions``.
    """

    is_stale = False

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._rows: dict[bytes, Change] = {}
        # For keys that have moved: the last changes in the other partitions.
        self._others: dict[bytes, dict[int, Change]] = {}
        self._deleted: set[bytes] = set()
        self._by_foreign: dict[bytes, set[bytes]] = {}
        self._foreign: dict[bytes, bytes] = {}
        self._truncated: Change | None = None
        self.size = 0

    def apply(self, change: Change) -> None:
        """Add a change; ignore it if a later one of its key and partition is known."""
        key = change.key
        truncated = self._truncated
        if (
            truncated is not None
            and truncated.partition != change.partition
            and is_older(change, truncated)
        ):
            return
        before = self._rows.get(key)
        if before is None or (before.partition == change.partition and key not in self._others):
            if before is None or before.offset < change.offset:
                self._put(before, following(before, change) or before)
            return
        by_partition = {before.partition: before, **self._others.get(key, {})}
        known = by_partition.get(change.partition)
        if known is not None and known.offset >= change.offset:
            return
        kept = following(known, change)
        if kept is not None:
            by_partition[change.partition] = kept
            self._set(key, by_partition)

    def truncate(self, change: Change) -> None:
        """Delete all rows, because the whole table was truncated.

        Args:
            change: the truncation. Rows of other partitions that are older, and are read later, are
                left out.
        """
        for row in list(self.all()):
            if row.partition == change.partition or is_older(row, change):
                gone = replace(change, key=row.key, partition=row.partition, offset=row.offset)
                self._set(row.key, {row.partition: gone})
        self._truncated = change

    def settle(self, first: Mapping[int, int]) -> None:
        """Drop deletions and the rows that retention has removed, after all partitions were read.

        A deletion is kept as long as another partition has an older row of its key.

        Args:
            first: the first offsets of partitions where it has increased.
        """
        gone = self._before(first) if first else set()
        forgets = not self._spec.captured or len(self._deleted) >= KEPT_DELETIONS
        for key in gone | self._deleted if forgets else gone:
            kept = {
                change.partition: change
                for change in self._changes(key)
                if change.offset >= first.get(change.partition, 0)
            }
            if all(change.value is None for change in kept.values()):
                kept = {}
            self._set(key, kept)
        if forgets:
            self._deleted.clear()

    def shrink(self, partitions: int) -> None:
        """Drop rows to save memory while the topic is being read.

        Args:
            partitions: how many partitions the topic has.
        """
        if partitions == 1:  # else an older row of an unread partition would become the last one
            self.settle({})

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no row."""
        change = self._rows.get(key)
        return None if change is None else change.value

    def before(self, key: bytes) -> bytes | None:
        """Return the value of a key, for a change that leaves out some of its columns."""
        return self.get(key)

    def all(self) -> Iterator[Change]:
        """Yield all rows."""
        return (change for change in self._rows.values() if change.value is not None)

    def foreign_key(self, key: bytes) -> bytes | None:
        """Return the foreign key of a row; None if there is none."""
        return self._foreign.get(key)

    def referring_to(self, foreign_key: bytes) -> frozenset[bytes] | set[bytes]:
        """Return the keys of the rows with a foreign key."""
        return self._by_foreign.get(foreign_key, frozenset())

    def _changes(self, key: bytes) -> list[Change]:
        found = self._rows.get(key)
        return [] if found is None else [found, *self._others.get(key, {}).values()]

    def _before(self, first: Mapping[int, int]) -> set[bytes]:
        changes = [c for key in self._rows for c in self._changes(key)]
        return {c.key for c in changes if c.offset < first.get(c.partition, 0)}

    def _set(self, key: bytes, by_partition: dict[int, Change]) -> None:
        """Replace the last changes of a key in all partitions."""
        others = self._others.pop(key, {})
        self.size -= sum(map(size_of, others.values()))
        newest = _last(by_partition.values()) if by_partition else None
        self._put(self._rows.get(key), newest)
        if newest is not None and newest.value is None:
            self._deleted.add(key)
        others = {p: change for p, change in by_partition.items() if change is not newest}
        if others:
            self._others[key] = others
            self.size += sum(map(size_of, others.values()))

    def _put(self, before: Change | None, now: Change | None) -> None:
        """Replace the newest change of a key."""
        if before is now:
            return
        if before is not None:
            self._remove(before)
        if now is None:
            return
        self._rows[now.key] = now
        self.size += size_of(now)
        if now.value is None:
            self._deleted.add(now.key)
        else:
            self._index(now)

    def _index(self, change: Change) -> None:
        if not self._spec.foreign_key:
            return
        foreign = foreign_key_of(change, self._spec)
        if foreign is not None:
            self._foreign[change.key] = foreign
            self._by_foreign.setdefault(foreign, set()).add(change.key)

    def _remove(self, change: Change) -> None:
        del self._rows[change.key]
        self._deleted.discard(change.key)
        self.size -= size_of(change)
        foreign = self._foreign.pop(change.key, None)
        if foreign is not None:
            keys = self._by_foreign[foreign]
            keys.discard(change.key)
            if not keys:
                del self._by_foreign[foreign]


_Version = tuple[int, int, Change]
"""The time from which a version is valid, its partition, and its change. A key has one version for
each time and partition: if it has moved, versions of several partitions may begin at one time."""

_FORGOTTEN_BITS = 1 << 20


class Versions:
    """The versions of each key, in the order of the times from which they are valid.

    Attributes:
        size: about the bytes of memory.
        is_stale: whether a late change was added whose key had a deletion that is dropped already:
            the table must be read again from the beginning. Rarely true without need; ``settle``
            resets it.
    """

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._rows: dict[bytes, list[_Version]] = {}
        self._touched: set[bytes] = set()
        # When the oldest version of a key may be dropped. An entry of the heap is valid if it
        # equals the time of its key here.
        self._due: dict[bytes, int] = {}
        self._queue: list[tuple[int, bytes]] = []
        self._newest = -(2**62)
        # The time up to which deletions may have been dropped, and their keys as bits of a hash.
        # The bits take constant memory; a collision only makes the table be read again.
        self._forgotten_to = -(2**62)
        self._forgotten = bytearray()
        self._truncated: list[Change] = []
        self.size = 0
        self.is_stale = False

    def apply(self, change: Change) -> None:
        """Add a version or a deletion. They may arrive in any order of validity."""
        since = valid_from_of(change, self._spec)
        if change.value is not None and since <= self._forgotten_to:
            self.is_stale = self.is_stale or self._was_forgotten(change.key)
        versions = self._rows.setdefault(change.key, [])
        if self._spec.captured:
            self._drop_early_deletions(versions, change, since)
        place = bisect.bisect_left(versions, (since, change.partition), key=_place)
        known = versions[place] if place < len(versions) else None
        if known is None or _place(known) != (since, change.partition):
            versions.insert(place, (since, change.partition, change))
        elif replaces(known[2], change):
            versions[place] = (since, change.partition, change)
            self.size -= size_of(known[2])
        else:
            return
        self._touched.add(change.key)
        if self._spec.valid_from is None or change.value is not None:
            # The time of a deletion is that of another clock than the column's.
            self._newest = max(self._newest, since)
        self.size += size_of(change)
        if change.value is not None:
            for truncated in self._truncated:
                if truncated.partition != change.partition and is_older(change, truncated):
                    self.apply(_end_of(change, truncated))

    def _drop_early_deletions(self, versions: list[_Version], change: Change, since: int) -> None:
        """Drop deletions that come before a change in the log and are valid after it.

        They are tombstones without their delete, whose time is that of the record; or deletions of
        rows whose versions have a time of their own, and that are there again.
        """
        by_column = self._spec.valid_from is not None and change.value is not None
        for version in versions[bisect.bisect_right(versions, since, key=_since) :]:
            _, partition, other = version
            is_early = other.value is None and (
                other.position is None or (by_column and not is_repeated(change, other))
            )
            if is_early and partition == change.partition and other.offset < change.offset:
                versions.remove(version)
                self.size -= size_of(other)

    def truncate(self, change: Change) -> None:
        """End the versions of all rows, because the whole table was truncated.

        Args:
            change: the truncation. It also ends older versions of other partitions that are read
                later.
        """
        for versions in list(self._rows.values()):
            newest = versions[-1][2]
            if newest.partition == change.partition or is_older(newest, change):
                self.apply(_end_of(newest, change))
        self._truncated.append(change)

    def settle(self, first: Mapping[int, int]) -> None:
        """Drop versions that are no longer kept, and versions that retention has removed."""
        self._forget(deletions=True)
        self.is_stale = False
        for key, versions in list(self._rows.items()) if first else ():
            kept = [v for v in versions if v[2].offset >= first.get(v[1], 0)]
            if len(kept) < len(versions):
                self._set(key, kept)

    def shrink(self, partitions: int) -> None:
        """Drop versions to save memory while the topic is being read."""
        # Without a deletion, an older version of an unread partition would remain valid.
        self._forget(deletions=partitions == 1)

    def before(self, key: bytes) -> bytes | None:
        """Return the newest value of a key, for a change that leaves out some of its columns."""
        versions = self._rows.get(key)
        return _last(_beginning_last(versions, len(versions))).value if versions else None

    def get(self, key: bytes, at: int) -> bytes | None:
        """Return the value that a key had at a time; None if it had none.

        Args:
            at: the time in microseconds since 1970.
        """
        versions = self._rows.get(key)
        if versions is None:
            return None
        passed = bisect.bisect_right(versions, at, key=_since)
        return _last(_beginning_last(versions, passed)).value if passed else None

    def all(self) -> Iterator[tuple[Change, int, int | None]]:
        """Yield each version with the times from which and until which (exclusive) it is valid."""
        for versions in self._rows.values():
            until: int | None = None
            passed = len(versions)
            found: list[tuple[Change, int, int | None]] = []
            while passed:
                together = _beginning_last(versions, passed)
                passed -= len(together)
                since, change = versions[passed][0], _last(together)
                if change.value is not None:
                    found.append((change, since, until))
                until = since
            yield from reversed(found)

    def _forget(self, deletions: bool) -> None:
        horizon = min(self._newest, time.time_ns() // 1000) - self._spec.keep
        touched, self._touched = self._touched, set()
        while self._queue and self._queue[0][0] <= horizon:
            due, key = heapq.heappop(self._queue)
            if self._due.get(key) == due:
                touched.add(key)
        for key in touched:
            if key not in self._rows:
                continue
            versions = self._rows[key]
            passed = bisect.bisect_right(versions, horizon, key=_since)
            together = _beginning_last(versions, passed) if passed else []
            if together and _last(together).value is None and not deletions:
                self._touched.add(key)
            if together and (_last(together).value is not None or not deletions):
                passed -= len(together)  # still valid at the horizon
            elif together:
                self._note_forgotten(key, horizon)
            self._set(key, versions[passed:])

    def _note_forgotten(self, key: bytes, horizon: int) -> None:
        self._forgotten_to = max(self._forgotten_to, horizon)
        self._forgotten = self._forgotten or bytearray(_FORGOTTEN_BITS // 8)
        byte, bit = divmod(hash(key) % _FORGOTTEN_BITS, 8)
        self._forgotten[byte] |= 1 << bit

    def _was_forgotten(self, key: bytes) -> bool:
        byte, bit = divmod(hash(key) % _FORGOTTEN_BITS, 8)
        return bool(self._forgotten) and bool(self._forgotten[byte] >> bit & 1)

    def _set(self, key: bytes, kept: list[_Version]) -> None:
        """Keep only these of a key's versions."""
        versions = self._rows[key]
        if len(kept) < len(versions):
            self.size -= sum(size_of(v[2]) for v in versions) - sum(size_of(v[2]) for v in kept)
            self._rows[key] = kept
        if not kept:
            del self._rows[key]
        due = _due(kept)
        if due is None:
            self._due.pop(key, None)
        elif self._due.get(key) != due:
            self._due[key] = due
            heapq.heappush(self._queue, (due, key))


def _due(versions: list[_Version]) -> int | None:
    """Return the time that the horizon must reach before a key's oldest version may be dropped."""
    if not versions:
        return None
    oldest = versions[0][0]
    if _last(v[2] for v in versions if v[0] == oldest).value is None:
        return oldest
    return next((since for since, _, _ in versions if since > oldest), None)


def _since(version: _Version) -> int:
    return version[0]


def _place(version: _Version) -> tuple[int, int]:
    return version[:2]


def _beginning_last(versions: list[_Version], end: int) -> list[Change]:
    """Return the changes before an index that begin at the same time as the last of them."""
    since = versions[end - 1][0]
    start = end - 1
    while start and versions[start - 1][0] == since:
        start -= 1
    return [change for _, _, change in versions[start:end]]


def _end_of(row: Change, truncated: Change) -> Change:
    """Return the deletion of a row by a truncation."""
    return replace(truncated, key=row.key, partition=row.partition, offset=row.offset + 1)


def _last(changes: Iterable[Change]) -> Change:
    """Return the latest of the last changes of a key in several partitions."""
    return max(changes, key=lambda change: (change.at, change.partition))
