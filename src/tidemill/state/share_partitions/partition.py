"""One share partition: the records of a partition, as one share group sees them.

Each record is available, acquired by a member until a deadline, acknowledged, or archived: it was
rejected, delivered too often, or is not a record for readers. Commands change it immediately;
``take_record`` returns what is to be stored.

Pure: no log, no contents of records and no clock. Members are numbers that the caller chooses.

Source: KIP-932, sections "In-flight records" and "Share-group state persistence"; KIP-1222.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from tidemill.log.errors import InvalidRecordError
from tidemill.state.outcome import StateRecord
from tidemill.state.queues.blocks import AVAILABLE, DONE
from tidemill.state.queues.window import AckWindow, Acquired
from tidemill.state.share_partitions.format import (
    Kind,
    PartitionKey,
    State,
    StateBatch,
    Stored,
    encode_key,
    encode_snapshot,
    encode_update,
)
from tidemill.state.share_partitions.ranges import Ranges

UPDATES_PER_SNAPSHOT = 500
"""As Apache Kafka's ``share.coordinator.snapshot.update.records.per.snapshot``."""
RANGES_PER_UPDATE = 64
"""A change with more ranges becomes a snapshot."""

MAX_WAITING = 1 << 20
"""Most records between two stored ranges. A group can't have acquired more."""


R = TypeVar("R", StateBatch, Acquired)


class Acknowledge(enum.IntEnum):
    """The answer of a member for a record that it has acquired."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    """It is to be delivered again."""
    REJECT = 3
    """It can't be processed, and is not delivered again."""
    RENEW = 4
    """The member needs more time (KIP-1222)."""


class AckBatch(NamedTuple):
    """The answer of a member for a range of records, both ends inclusive.

    Attributes:
        types: one for each record, or one for all.
    """

    first: int
    last: int
    types: Sequence[int]


class Span(NamedTuple):
    """A range of a log, both ends inclusive, and whether readers see the records in it."""

    first: int
    last: int
    readable: bool


class ShareLimits(NamedTuple):
    """The limits of a share partition.

    Attributes:
        lock_ms: how long a record is acquired.
        deliveries: how often a record is delivered.
        in_flight: most offsets from the start to the last one that was acquired.
    """

    lock_ms: int = 30_000
    deliveries: int = 5
    in_flight: int = 2000


class SharePartition:
    """The records of a partition, as one share group sees them.

    Attributes:
        window: the states of the records.
        state_epoch: grows when an admin moves the start.
    """

    def __init__(self, key: PartitionKey, start: int, *, state_epoch: int = 0) -> None:
        self.key = key
        self.window = AckWindow(start)
        self.state_epoch = state_epoch
        self._snapshot_epoch = -1
        self._updates = 0
        self._created_ms: int | None = None
        self._archived = Ranges()
        self._changed = Ranges()

    @classmethod
    def of_stored(
        cls, key: PartitionKey, snapshot: Stored, created_ms: int, update: Stored | None
    ) -> SharePartition:
        """Return the share partition of its records. What was acquired is available.

        Raises:
            InvalidRecordError: a range is too large.
        """
        if update is not None and update.snapshot_epoch != snapshot.snapshot_epoch:
            update = None
        start = snapshot.start if update is None else max(update.start, snapshot.start)
        found = cls(key, start, state_epoch=snapshot.state_epoch)
        found._snapshot_epoch = snapshot.snapshot_epoch
        found._created_ms = created_ms
        batches = snapshot.batches
        if update is not None:
            for batch in update.batches:
                found._changed.add(batch.first, batch.last)
            batches = _overlaid(batches, update.batches, found._changed)
        for batch in batches:
            found._restore(batch)
        found.window.release_owner(0, counts=False)
        found.window.forget_changes()
        return found

    def _restore(self, batch: StateBatch) -> None:
        """Give a range its stored state. The caller returns what owner 0 has acquired."""
        window = self.window
        first = max(batch.first, window.start)
        if first > batch.last:
            return
        if first - window.next > MAX_WAITING or (
            batch.state is State.AVAILABLE and batch.last - first > MAX_WAITING
        ):
            raise InvalidRecordError(f"the range {batch} of a share partition is too large")
        if first > window.next:
            window.acquire_range(0, window.next, first - 1, first, first, 0)
        if batch.state is State.AVAILABLE:
            window.acquire_range(0, first, batch.last, batch.last + 1, batch.last + 1, 0)
            window.set_count(first, batch.last, batch.delivery_count)
        else:
            window.skip(first, batch.last)
            if batch.state is State.ARCHIVED:
                self._archived.add(first, batch.last)

    def moved(self, start: int) -> SharePartition:
        """Return the share partition with another start, and nothing delivered."""
        found = SharePartition(self.key, start, state_epoch=self.state_epoch + 1)
        found._snapshot_epoch = self._snapshot_epoch
        found._created_ms = self._created_ms
        found.must_snapshot()
        return found

    # --- acquire ---------------------------------------------------------------------------------

    def first_available(self, end: int, limits: ShareLimits) -> int | None:
        """Return the first offset that ``acquire`` could return; None if there is none."""
        window = self.window
        return window.first_available(min(end, max(window.start + limits.in_flight, window.next)))

    def acquire(
        self,
        owner: int,
        spans: Iterable[Span],
        most: int,
        limits: ShareLimits,
        now_ms: int,
        *,
        exact: bool,
    ) -> list[Acquired]:
        """Acquire records for a member.

        Args:
            spans: a part of the log that begins at or below the first available offset, and has no
                holes. What is not readable in it is archived.
            most: stop after so many records.
            exact: acquire no more than ``most``; otherwise the last span is acquired completely.
        """
        window = self.window
        runs: list[Acquired] = []
        end = max(window.start + limits.in_flight, window.next)
        deadline = now_ms + limits.lock_ms
        for span in spans:
            if most <= 0:
                break
            first = max(span.first, window.start)
            if first > window.next:
                break
            if first > span.last:
                continue
            if not span.readable:
                self._archive_free(first, span.last)
                continue
            count = most if exact else span.last - first + 1
            acquired = window.acquire_range(owner, first, span.last, count, end, deadline)
            most -= sum(run.last - run.first + 1 for run in acquired)
            runs += acquired
        joined: list[Acquired] = []
        for run in runs:
            _append(joined, run)
        return joined

    def _archive_free(self, first: int, last: int) -> None:
        """Archive what is available in a range, and what was never acquired."""
        window = self.window
        known = min(last, window.next - 1)
        free = [run for run in window.runs(first, known) if run[2] == AVAILABLE]
        for start, stop, _, _ in free:
            window.skip(start, stop)
            self._note_archived(start, stop)
        if last >= window.next:
            start = window.next
            window.skip(start, last)
            self._note_archived(start, last)

    def _note_archived(self, first: int, last: int) -> None:
        self._archived.remove_below(self.window.start)
        self._changed.remove_below(self.window.start)
        if last >= self.window.start:
            self._archived.add(first, last)
            self._changed.add(first, last)

    # --- settle ----------------------------------------------------------------------------------

    def acknowledge(
        self, owner: int, batches: Sequence[AckBatch], limits: ShareLimits, now_ms: int
    ) -> None:
        """Settle records that a member has acquired: all of the batches, or none.

        What is below the start is ignored: it is finished.

        Args:
            batches: lowest first, and without overlaps.

        Raises:
            NotAcquiredError: the member does not hold one of the records.
        """
        window = self.window
        kept = [batch for batch in batches if batch.last >= window.start]
        for batch in kept:
            window.check(owner, max(batch.first, window.start), batch.last)
        for batch in kept:
            for first, last, kind in _by_type(batch, window.start):
                self._settle(owner, first, last, kind, limits, now_ms)

    def _settle(
        self, owner: int, first: int, last: int, kind: int, limits: ShareLimits, now_ms: int
    ) -> None:
        if kind == Acknowledge.RENEW:
            self.window.renew(owner, first, last, now_ms + limits.lock_ms)
        elif kind == Acknowledge.RELEASE:
            self._release(owner, first, last, limits)
        else:
            self.window.acknowledge(owner, first, last)
            if kind == Acknowledge.ACCEPT:
                self._changed.add(first, last)
            else:
                self._note_archived(first, last)

    def _release(self, owner: int, first: int, last: int, limits: ShareLimits) -> None:
        """Return records that a member has acquired, or archive those with too many deliveries."""
        for start, stop, _, count in list(self.window.runs(first, last)):
            if count + 1 >= limits.deliveries:
                self.window.acknowledge(owner, start, stop)
                self._note_archived(start, stop)
            else:
                self.window.release(owner, start, stop)
                self._changed.add(start, stop)

    def release_member(self, owner: int) -> bool:
        """Return all records of a member that is gone; return whether there were any.

        The delivery is not counted: the member did not fail to process the records.
        """
        return bool(self.window.acquired and self.window.release_owner(owner, counts=False))

    def expire(self, now_ms: int, limits: ShareLimits) -> bool:
        """Return the records whose deadline is reached; return whether there were any.

        Those that were delivered too often are archived.
        """
        expired = self.window.expire(now_ms)
        for offset, _ in expired:
            if self.window.delivery_count(offset) >= limits.deliveries:
                self.window.skip(offset, offset)
                self._note_archived(offset, offset)
            else:
                self._changed.add(offset, offset)
        return bool(expired)

    def truncate(self, log_start: int) -> bool:
        """Finish everything below the start of the log; return whether that changes the start."""
        if log_start <= self.window.start:
            return False
        self.window.truncate(log_start)
        return True

    # --- records ---------------------------------------------------------------------------------

    @property
    def complete(self) -> int:
        """The number of records at or above the start that are finished."""
        window = self.window
        return window.next - window.start - window.acquired - window.returned

    def take_record(self, now_ms: int) -> StateRecord:
        """Return the record with what changed, and note it as stored."""
        start = self.window.start
        self._changed.remove_below(start)
        self._archived.remove_below(start)
        self.window.forget_changes()
        is_update = (
            self._snapshot_epoch >= 0
            and self._updates < UPDATES_PER_SNAPSHOT
            and len(self._changed) <= RANGES_PER_UPDATE
        )
        if is_update:
            batches = self._batches(self._changed)
            if len(batches) <= 2 * RANGES_PER_UPDATE:
                self._updates += 1
                stored = Stored(self._snapshot_epoch, start, batches, self.complete)
                value = encode_update(stored, leader_epoch=0)
                return StateRecord(encode_key(Kind.UPDATE, self.key), value)
        return self._snapshot(now_ms)

    def must_snapshot(self) -> None:
        """Note that it is not known what is stored."""
        self._updates = UPDATES_PER_SNAPSHOT

    def _snapshot(self, now_ms: int) -> StateRecord:
        window = self.window
        if self._created_ms is None:
            self._created_ms = now_ms
        self._snapshot_epoch = (self._snapshot_epoch + 1) & 0x7FFFFFFF
        self._updates = 0
        self._changed.clear()
        batches = self._batches([(window.start, window.next - 1)])
        stored = Stored(
            self._snapshot_epoch, window.start, batches, self.complete, self.state_epoch
        )
        value = encode_snapshot(stored, leader_epoch=0, created_ms=self._created_ms, now_ms=now_ms)
        return StateRecord(encode_key(Kind.SNAPSHOT, self.key), value)

    def _batches(self, ranges: Iterable[tuple[int, int]]) -> list[StateBatch]:
        """Return the stored states of ranges."""
        batches: list[StateBatch] = []
        end = self.window.next - 1
        for first, last in ranges:
            for start, stop, state, count in self.window.runs(first, min(last, end)):
                if state != DONE:
                    if count:
                        _append(batches, StateBatch(start, stop, State.AVAILABLE, count))
                    continue
                for low, high, archived in self._archived.split(start, stop):
                    done = State.ARCHIVED if archived else State.ACKNOWLEDGED
                    _append(batches, StateBatch(low, high, done, 1))
        return batches


def _overlaid(
    batches: Iterable[StateBatch], over: Sequence[StateBatch], covered: Ranges
) -> list[StateBatch]:
    """Return ranges with others put over them, lowest first.

    Args:
        covered: the offsets of the others.
    """
    left = [
        batch._replace(first=first, last=last)
        for batch in batches
        for first, last, hidden in covered.split(batch.first, batch.last)
        if not hidden
    ]
    return sorted([*left, *over])


def _by_type(batch: AckBatch, start: int) -> Iterable[tuple[int, int, int]]:
    """Yield (first, last, type) of successive records at or above ``start`` with equal types."""
    types = batch.types
    first = max(batch.first, start)
    if len(types) == 1:
        yield first, batch.last, types[0]
        return
    for offset in range(first, batch.last + 1):
        kind = types[offset - batch.first]
        if offset == batch.last or types[offset + 1 - batch.first] != kind:
            yield first, offset, kind
            first = offset + 1


def _append(ranges: list[R], new: R) -> None:
    """Append a range, or make the last one longer if it continues there."""
    if ranges and ranges[-1].last + 1 == new.first and ranges[-1][2:] == new[2:]:
        ranges[-1] = ranges[-1]._replace(last=new.last)
    else:
        ranges.append(new)
