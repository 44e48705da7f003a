"""Compaction: when it is due, and one run of it over a partition, in slices.

Works on closed segments below the last stable offset only. What stays of a batch is decided in
``cleaning``; how files change places, in ``swap``. Knows no other partitions and no threads: the
work that blocks is handed out to whoever drives the run.

A run: take in the keys of the dirty section (as many as the offset map holds), rewrite all segments
from the start to the end of what the map covers, group by group, and move the first dirty offset
on. A crash anywhere repeats the run from the old first dirty offset, which changes nothing.

Records of aborted transactions go. Their data stands in front of the marker, so that once the
segment with the marker is rewritten nothing is left that the index of aborted transactions would
have to name: a cleaned segment has none.

Source: Apache Kafka's ``LogCleanerManager`` and ``Cleaner``; KIP-58 (min.compaction.lag.ms),
KIP-354 (max.compaction.lag.ms).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from tidemill.errors import StorageError, TidemillError
from tidemill.log.batch import HEADER_SIZE, BatchHeader, check_batch, peek
from tidemill.log.cleaning import (
    DEFAULT_MAP_KEYS,
    CleanedTransactions,
    Cleaning,
    CleaningStats,
    LastOfProducer,
    OffsetMap,
    clean_batch,
)
from tidemill.log.config import MAX_LONG
from tidemill.log.index import MAX_RELATIVE_OFFSET
from tidemill.log.partition import PartitionLog
from tidemill.log.producers import ProducerEntry
from tidemill.log.segment import Segment
from tidemill.log.swap import CleanedSegment

READ_BYTES = 64 * 1024
"""A run yields at least once per this many bytes, or per batch where one is larger."""


_GONE = "segments were deleted meanwhile"


class Work:
    """Something that blocks (syncs), and that may run in another thread before the run goes on.

    A driver that has no other thread may ignore it: what was not run is run on the next step.
    """

    __slots__ = ("_run", "done")

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self.done = False

    def run(self) -> None:
        """Do it, once.

        Raises:
            StorageError: as the work does; the driver must pass it on with ``throw``.
        """
        if not self.done:
            self._run()
            self.done = True


Steps = Generator[Work | None, None, None]


@dataclass(frozen=True, slots=True)
class Cleanable:
    """What of a partition may be compacted now.

    Attributes:
        first_dirty_offset: below it each key has one record already.
        segments: the closed segments that may be rewritten, clean ones included.
        end_offset: where they end.
        clean_bytes, dirty_bytes: of these segments.
        is_due: whether the configs ask for a run.
    """

    first_dirty_offset: int
    segments: tuple[Segment, ...] = ()
    end_offset: int = -1
    clean_bytes: int = 0
    dirty_bytes: int = 0
    is_due: bool = False

    @property
    def dirty_ratio(self) -> float:
        """Share of dirty bytes: what ``min.cleanable.dirty.ratio`` is compared with."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(slots=True)
class CompactionRun:
    """What a run did so far.

    Attributes:
        stats: records and bytes.
        passes: passes that were finished.
        aborted: why it ended early (the log changed under it), or an empty string.
    """

    stats: CleaningStats = field(default_factory=CleaningStats)
    passes: int = 0
    aborted: str = ""


# --- when ----------------------------------------------------------------------------------------


def cleanable(log: PartitionLog, now_ms: int) -> Cleanable:
    """What may be compacted now, and whether that is due.

    Never: the active segment, segments that reach the last stable offset, and from the first
    segment on whose latest record is younger than ``min.compaction.lag.ms``. Due: the dirty share
    is above ``min.cleanable.dirty.ratio``, or a dirty record is older than
    ``max.compaction.lag.ms``.

    Raises:
        StorageError: a segment can't be read.
    """
    config = log.config
    first_dirty = log.first_dirty_offset
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    if not config.compact:
        return Cleanable(first_dirty)
    segments: list[Segment] = []
    end_offset = clean = dirty = 0
    must = False
    for segment, end in _closed(log):
        is_dirty = end > first_dirty
        if end > log.last_stable_offset or (
            is_dirty
            and config.min_compaction_lag_ms > 0
            and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        ):
            break
        segments.append(segment)
        end_offset = end
        if is_dirty:
            dirty += segment.size
            must = must or _waited_too_long(segment, config.max_compaction_lag_ms, now_ms)
        else:
            clean += segment.size
    found = Cleanable(first_dirty, tuple(segments), end_offset, clean, dirty)
    if not dirty or not (must or found.dirty_ratio > config.min_cleanable_dirty_ratio):
        return found
    return Cleanable(first_dirty, found.segments, end_offset, clean, dirty, is_due=True)


def _closed(log: PartitionLog) -> Iterator[tuple[Segment, int]]:
    """Closed segments, each with the offset where it ends."""
    for segment, following in pairwise(log.segments):
        yield segment, following.base_offset


def _waited_too_long(segment: Segment, max_lag_ms: int, now_ms: int) -> bool:
    if max_lag_ms == MAX_LONG:
        return False
    begin = segment.read_first_timestamp()
    return 0 < begin < now_ms - max_lag_ms


# --- one run -------------------------------------------------------------------------------------


def compact(
    log: PartitionLog,
    now_ms: int,
    *,
    max_keys: int = DEFAULT_MAP_KEYS,
    run: CompactionRun | None = None,
) -> Steps:
    """Compact what may be compacted, whether it is due or not.

    A generator: each ``next`` does a few milliseconds of work at most, but for the disk. Appends,
    reads, retention and deletion may go on in between. It can be dropped (``close``) at any yield,
    but not while work that it gave out is running.

    Args:
        log: the partition, whose policy has 'compact'.
        now_ms: the broker's time.
        max_keys: size of the offset map; see ``cleaning.DEFAULT_MAP_KEYS``.
        run: filled with what is done.

    Yields:
        None, or work that blocks and may be run in another thread before the next step.

    Raises:
        InvalidRecordError: stored records are not well-formed: this partition can't be compacted.
        CorruptLogError: a stored batch is damaged.
        DiskFullError, StorageError: the disk refuses; the log is as it was.
        SyncFailedError: the broker must stop.
    """
    run = run or CompactionRun()
    while True:
        todo = cleanable(log, now_ms)
        if not todo.dirty_bytes:
            return
        offsets = OffsetMap(max_keys)
        aborted = log.aborted_entries(todo.segments[0].base_offset, todo.end_offset)
        yield from _take_in_keys(log, todo, offsets, CleanedTransactions(aborted))
        cleaning = Cleaning(
            offsets,
            now_ms,
            log.config.delete_retention_ms,
            _last_of_producers(log),
            CleanedTransactions(aborted),
        )
        end = offsets.latest_offset + 1
        for group in _groups(log, todo, end):
            if not _all_there(log, group):
                run.aborted = _GONE
                return
            yield from _clean_group(log, group, cleaning, run)
            if run.aborted:
                return
        log.first_dirty_offset = end
        log.changed = True
        run.passes += 1
        if end >= todo.end_offset:
            return


def _take_in_keys(
    log: PartitionLog, todo: Cleanable, offsets: OffsetMap, transactions: CleanedTransactions
) -> Steps:
    start = todo.first_dirty_offset
    ends = [segment.base_offset for segment in todo.segments[1:]] + [todo.end_offset]
    for segment, end in zip(todo.segments, ends, strict=True):
        if end <= start:
            continue
        position = segment.start_position(start) if segment.base_offset < start else 0
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
        offsets.latest_offset = max(offsets.latest_offset, end - 1)


def _last_of_producers(log: PartitionLog) -> dict[int, LastOfProducer]:
    return {entry.producer_id: _last_of(entry, log.high_watermark) for entry in log.producers}


def _last_of(entry: ProducerEntry, high_watermark: int) -> LastOfProducer:
    """What a power cut may take away must not be all that tells of the producer."""
    for batch in reversed(entry.batches):
        if batch.last_offset < high_watermark:
            return LastOfProducer(batch.last_offset, entry.epoch, -1)
    is_durable = not entry.batches and entry.control_offset < high_watermark
    return LastOfProducer(-1, entry.epoch, entry.control_offset if is_durable else -1)


def _groups(log: PartitionLog, todo: Cleanable, end: int) -> list[list[Segment]]:
    """Neighbours that fit one segment together, so that segments do not shrink for ever."""
    config = log.config
    groups: list[list[Segment]] = []
    size = offset_bytes = time_bytes = 0
    limits = [segment.base_offset for segment in todo.segments[1:]] + [todo.end_offset]
    for segment, limit in zip(todo.segments, limits, strict=True):
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
            or limit - 1 - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET
        ):
            groups.append([])
            size, offset_bytes, time_bytes = segment.size, index, times
        groups[-1].append(segment)
    return groups


def _all_there(log: PartitionLog, group: Sequence[Segment]) -> bool:
    """Whether retention, DeleteRecords or the topic's deletion left the group alone."""
    if log.removed or log.failure is not None:
        return False
    live = {id(segment) for segment in log.segments}
    return all(id(segment) in live for segment in group)


def _clean_group(
    log: PartitionLog, group: list[Segment], cleaning: Cleaning, run: CompactionRun
) -> Steps:
    cleaned = CleanedSegment(
        log.environment, log.folder, group[0].base_offset, log.config.index_interval_bytes
    )
    discard = True
    try:
        changed = yield from _copy_group(group, cleaned, cleaning, run.stats)
        if changed and _all_there(log, group):
            cleaned.finish()
            yield from _off_loop(cleaned.commit)
        if not _all_there(log, group):
            run.aborted = _GONE
        elif changed:
            discard = False  # from here on its files are the log's, whatever happens
            cleaned.replace(log, group)
            yield from _off_loop(cleaned.settle)
    except BaseException as error:
        if discard:
            # The first error is the one that counts; what is left over is dropped on opening.
            with suppress(StorageError):
                cleaned.discard()
        if not (log.removed and isinstance(error, StorageError)):
            raise
        run.aborted = _GONE  # the topic was deleted, and its files with it
        return
    if discard:
        cleaned.discard()


def _copy_group(
    group: list[Segment], cleaned: CleanedSegment, cleaning: Cleaning, stats: CleaningStats
) -> Generator[Work | None, None, bool]:
    """Write what stays of a group; returns whether that differs from what there is."""
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
            # The last batch tells where the segment ends, so that none can be missing unseen.
            keep_empty = is_last and position >= segment.size
            kept = yield from clean_batch(batch, header, cleaning, stats, keep_empty=keep_empty)
            changed = changed or kept is not batch
            if kept is not None:
                cleaned.append(kept, header)
    return changed


def _off_loop(run: Callable[[], None]) -> Steps:
    work = Work(run)
    yield work
    work.run()


def _batches(segment: Segment, position: int) -> Iterator[tuple[memoryview, BatchHeader] | None]:
    """Each batch from ``position`` on, proven, and None after each read.

    Raises:
        CorruptLogError: a batch is damaged.
        StorageError: the disk refuses.
    """
    want = READ_BYTES
    while position < segment.size:
        want = min(want, segment.size - position)
        chunk = memoryview(segment.file.pread(want, position))
        if len(chunk) < max(want, HEADER_SIZE):
            raise segment.corrupt("the file is shorter than it was", position, None)
        at = 0
        while len(chunk) - at >= HEADER_SIZE:
            offset, size = peek(chunk, at)
            if len(chunk) - at < size <= segment.size - position - at:
                break  # cut by the chunk only
            try:
                header = check_batch(chunk, at)
            except TidemillError as error:
                raise segment.corrupt(str(error), position + at, offset) from error
            yield chunk[at : at + size], header
            at += size
        want = READ_BYTES if at else size
        position += at
        yield None


__all__ = ["Cleanable", "CompactionRun", "Steps", "Work", "cleanable", "compact"]
