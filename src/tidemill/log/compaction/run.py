"""Decide what of a partition can be compacted and whether that is due, and compact it in slices.

Rewrites closed segments. ``cleaning`` decides what is kept of a batch, and ``swap`` replaces the
files. Knows no other partitions and no threads: blocking work is yielded
to the caller.

One pass reads the keys of the dirty segments (as many as the offset map holds), rewrites all
segments from the log's start to the end of what the map covers, group by group, and then advances
the first dirty offset. After a crash the pass starts again from the old first dirty offset, with
the same result.

Records of aborted transactions are removed. They are all before their marker, so when the segment
with the marker is rewritten, its index of aborted transactions has nothing left to name. So cleaned
segments have no such index.

Source: Apache Kafka's ``LogCleanerManager`` and ``Cleaner``; KIP-58 (min.compaction.lag.ms);
KIP-354 (max.compaction.lag.ms).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tidemill.errors import TidemillError
from tidemill.log.compaction.cleaning import (
    DEFAULT_MAP_KEYS,
    CleanedTransactions,
    Cleaning,
    LastOfProducer,
    OffsetMap,
    clean_batch,
)
from tidemill.log.compaction.swap import CleanedSegment
from tidemill.log.config.definition import MAX_LONG
from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.index import MAX_RELATIVE_OFFSET
from tidemill.log.disk.segment import Segment
from tidemill.log.disk.walk import misplaced, position_before
from tidemill.log.errors import StorageError
from tidemill.log.format.batch import HEADER_SIZE, BatchHeader, check_batch, parse_header, peek
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.producers import ProducerEntry
from tidemill.log.partition.transactions import find_aborted
from tidemill.log.steps import Steps as AnySteps
from tidemill.log.steps import elsewhere

READ_BYTES = 64 * 1024
"""A run yields at least once per this many bytes, or per batch if a batch is larger."""


Steps = AnySteps[None]


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a partition that can be compacted now.

    Attributes:
        first_dirty_offset: below it there is one record per key already.
        segments: the closed segments that can be rewritten, including clean ones.
        clean_bytes, dirty_bytes: the sizes of the clean and of the dirty segments.
        is_due: whether the topic's configs require a compaction now.
    """

    first_dirty_offset: int
    segments: tuple[Segment, ...] = ()
    clean_bytes: int = 0
    dirty_bytes: int = 0
    is_due: bool = False

    @property
    def end_offset(self) -> int:
        """The end offset of the segments; -1 if there are none."""
        return self.segments[-1].end_offset if self.segments else -1

    @property
    def dirty_ratio(self) -> float:
        """The share of dirty bytes, which is compared with ``min.cleanable.dirty.ratio``."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(log: PartitionLog, now_ms: int) -> Cleanable:
    """Return the part of a partition that can be compacted, and whether that is due.

    It ends before the active segment, before a segment that reaches the last stable offset, and
    before a segment whose latest record is younger than ``min.compaction.lag.ms``. A compaction is
    due if the dirty share is above ``min.cleanable.dirty.ratio``, or if a dirty record is older
    than ``max.compaction.lag.ms``.

    Raises:
        StorageError: a segment can't be read.
    """
    config = log.config
    first_dirty = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    if not config.compact or not log.chain.sparse:  # its config could not be applied completely
        return Cleanable(first_dirty)
    segments: list[Segment] = []
    clean = dirty = 0
    must = False
    for segment in log.chain.segments[:-1]:
        is_dirty = segment.end_offset > first_dirty
        if segment.end_offset > log.last_stable_offset or (
            is_dirty
            and config.min_compaction_lag_ms > 0
            and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        ):
            break
        segments.append(segment)
        if is_dirty:
            dirty += segment.size
            must = must or _is_overdue(segment, config.max_compaction_lag_ms, now_ms)
        else:
            clean += segment.size
    found = Cleanable(first_dirty, tuple(segments), clean, dirty)
    is_due = dirty > 0 and (must or found.dirty_ratio > config.min_cleanable_dirty_ratio)
    return replace(found, is_due=is_due)


def _is_overdue(segment: Segment, max_lag_ms: int, now_ms: int) -> bool:
    if max_lag_ms == MAX_LONG:
        return False
    begin = segment.read_first_timestamp()
    return 0 < begin < now_ms - max_lag_ms


def compact(log: PartitionLog, now_ms: int, *, max_keys: int = DEFAULT_MAP_KEYS) -> Steps:
    """Compact what can be compacted, whether it is due or not.

    This is a generator. Each ``next`` takes a few milliseconds at most, apart from waiting for the
    disk. Appends, reads, retention and deletion can happen in between. The generator can be closed
    at any yield, but not while work that it yielded is running.

    Args:
        log: the partition. Its cleanup policy has 'compact'.
        max_keys: size of the offset map; see ``cleaning.DEFAULT_MAP_KEYS``.

    Yields:
        None, or blocking work that can be run in another thread before the next step.

    Raises:
        InvalidRecordError: stored records are malformed. This partition can't be compacted.
        CorruptLogError: a stored batch is damaged.
        DiskFullError, StorageError: a file operation failed. The log is unchanged.
        SyncFailedError: the broker must stop.
    """
    while True:
        todo = cleanable(log, now_ms)
        if not todo.dirty_bytes:
            return
        if not log.chain.env.is_stored_sparse(log.tp):
            yield from elsewhere(log.chain.env.checkpoint_writes())
        offsets = OffsetMap(max_keys)
        aborted = find_aborted(log.chain, todo.segments[0].base_offset, todo.end_offset)
        yield from _read_keys(todo, offsets, CleanedTransactions(aborted))
        cleaning = Cleaning(
            offsets,
            now_ms,
            log.config.delete_retention_ms,
            {each.producer_id: _batch_to_keep(each, log.stored_offset) for each in log.producers},
            CleanedTransactions(aborted),
        )
        end = offsets.latest_offset + 1
        for group in _groups(log.config, todo, end):
            if not (yield from _clean_group(log, group, cleaning)):
                return
        log.first_dirty_offset = end
        log.chain.head.changed = True
        if end >= todo.end_offset:
            return


def _read_keys(todo: Cleanable, offsets: OffsetMap, transactions: CleanedTransactions) -> Steps:
    start = todo.first_dirty_offset
    for segment in todo.segments:
        if segment.end_offset <= start:
            continue
        position = position_before(segment, start) if segment.base_offset < start else 0
        for read in _batches(segment, position):
            if read is None:
                yield None
                continue
            batch, header = read
            if header.is_transactional and not header.is_control and transactions.see_data(header):
                offsets.latest_offset = max(offsets.latest_offset, header.last_offset)
            elif header.last_offset >= start:
                covered = yield from offsets.add_batch(batch, header, start)
                if not covered:
                    return
        offsets.latest_offset = max(offsets.latest_offset, segment.end_offset - 1)


def _batch_to_keep(entry: ProducerEntry, stored_offset: int) -> LastOfProducer:
    """Return the batch to keep for a producer: a power cut must not be able to remove it."""
    for batch in reversed(entry.batches):
        if batch.last_offset < stored_offset:
            return LastOfProducer(batch.last_offset, entry.epoch, -1)
    is_durable = not entry.batches and entry.control_offset < stored_offset
    return LastOfProducer(-1, entry.epoch, entry.control_offset if is_durable else -1)


def _groups(config: LogConfig, todo: Cleanable, end: int) -> list[list[Segment]]:
    """Return groups of neighbours that fit into one segment, so that small segments are merged."""
    groups: list[list[Segment]] = []
    size = offset_bytes = time_bytes = 0
    for segment in todo.segments:
        if segment.base_offset >= end:
            break
        index, times = segment.index_sizes()
        size += segment.size
        offset_bytes += index
        time_bytes += times
        if (
            not groups
            or size > config.segment_bytes
            or max(offset_bytes, time_bytes) > config.segment_index_bytes
            or segment.end_offset - 1 - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET
        ):
            groups.append([])
            size, offset_bytes, time_bytes = segment.size, index, times
        groups[-1].append(segment)
    return groups


def _is_complete(chain: SegmentChain, group: Sequence[Segment]) -> bool:
    """Return whether all segments of a group are still in the log.

    Retention, DeleteRecords or a topic's deletion can have removed some.
    """
    if chain.removed or chain.failure is not None:
        return False
    live = {id(segment) for segment in chain.segments}
    return all(id(segment) in live for segment in group)


def _clean_group(log: PartitionLog, group: list[Segment], cleaning: Cleaning) -> AnySteps[bool]:
    """Compact a group; return False if some of its segments were deleted."""
    if not _is_complete(log.chain, group):
        return False
    cleaned = CleanedSegment(
        log.chain.env, log.chain.folder, group[0].base_offset, log.config.index_interval_bytes
    )
    discard = True
    try:
        changed = yield from _copy_group(group, cleaned, cleaning)
        if changed and _is_complete(log.chain, group):
            cleaned.finish()
            yield from elsewhere(cleaned.commit)
        is_complete = _is_complete(log.chain, group)
        if changed and is_complete:
            discard = False  # from now on the files belong to the log, even after an error
            cleaned.replace(log, group)
            yield from elsewhere(cleaned.settle)
    except BaseException as error:
        if discard:
            # Raise the first error. Opening the partition removes files that are left.
            with suppress(StorageError):
                cleaned.discard()
        if not (log.chain.removed and isinstance(error, StorageError)):
            raise
        return False  # the topic was deleted, with its files
    if discard:
        cleaned.discard()
    return is_complete


def _copy_group(
    group: list[Segment], cleaned: CleanedSegment, cleaning: Cleaning
) -> AnySteps[bool]:
    """Write what is kept of a group; return whether anything has changed."""
    changed = len(group) > 1
    for segment in group:
        is_last = segment is group[-1]
        position = 0
        for read in _batches(segment, 0):
            if read is None:
                yield None
                continue
            batch, header = read
            position += header.size
            # The last batch shows where the segment ends, so that a missing segment is noticed.
            keep_empty = is_last and position >= segment.size
            kept = yield from clean_batch(batch, header, cleaning, keep_empty=keep_empty)
            changed = changed or kept is not batch
            if kept is not None:
                cleaned.append(kept, header if kept is batch else parse_header(kept))
    return changed


def _batches(segment: Segment, position: int) -> Iterator[tuple[memoryview, BatchHeader] | None]:
    """Yield each batch from ``position`` on, verified, and None after each read."""
    want = READ_BYTES
    expected = segment.base_offset
    while position < segment.size:
        want = min(want, segment.size - position)
        chunk = memoryview(segment.file.pread(want, position))
        if len(chunk) < max(want, HEADER_SIZE):
            raise segment.corrupt("the file is shorter than it was", position, None)
        at = 0
        while len(chunk) - at >= HEADER_SIZE:
            offset, size = peek(chunk, at)
            if len(chunk) - at < size <= segment.size - position - at:
                break  # the batch continues behind the chunk
            try:
                header = check_batch(chunk, at)
            except TidemillError as error:
                raise segment.corrupt(str(error), position + at, offset) from error
            if offset < expected or header.last_offset >= segment.end_offset:
                raise misplaced(segment, position + at, offset, header.last_offset, expected)
            expected = header.last_offset + 1
            yield chunk[at : at + size], header
            at += size
        want = READ_BYTES if at else size
        position += at
        yield None
    if expected != segment.end_offset:
        raise segment.corrupt(
            f"its last batch ends at offset {expected - 1}, and not at {segment.end_offset - 1}",
            position,
            expected,
        )
