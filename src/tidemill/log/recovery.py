"""Opening a partition after an unclean stop: prove what is there, cut what was torn, or refuse.

Everything below the recovery point was synced: damage there is an error. Above it, a bad end with
nothing valid behind it is a torn write and is cut off, reported; a bad place with a valid batch
behind it is damage. What was left half done by deletions and cleanings is finished or dropped.

Segments join without a gap: the last batch of a closed one ends where the next begins (cleaning
keeps that batch, if only its header). So a segment that is missing, or was shortened at the end of
a batch, is seen.

Sources: Apache Kafka's ``LogLoader`` (leftover files); design page, "Nothing is lost in silence".
"""

from __future__ import annotations

from uuid import UUID

from tidemill.errors import CorruptLogError
from tidemill.log.aborted import AbortedIndex, AbortedTransaction
from tidemill.log.aborted_recovery import complete_indexes
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment, Report
from tidemill.log.files import storage_error
from tidemill.log.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    IndexTable,
    ascending,
    find_time_end,
    last_offset_entry,
    last_time_entry,
    offset_entries_until,
    plausible,
)
from tidemill.log.leftovers import clear_leftovers
from tidemill.log.maintenance import replay_batch, snapshot_offsets
from tidemill.log.names import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    file_name,
)
from tidemill.log.partition import PartitionLog
from tidemill.log.producers import ProducerStates
from tidemill.log.scan import BatchScanner, find_batch
from tidemill.log.segment import Segment
from tidemill.log.syncing import METADATA


def recover_partition(
    env: Environment,
    tp: TopicPartition,
    folder: str,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    topic_id: UUID | None,
) -> PartitionLog:
    """Open a partition whose files are not known to be whole.

    Args:
        recovery_point: offset up to which the log was synced.
        log_start_offset: as last checkpointed.

    Raises:
        CorruptLogError: damage that can't be repaired; names file, position and offset.
        SyncFailedError: the broker must stop.
        StorageError: the disk refuses.
    """
    try:
        recovery = _Recovery(env, tp, folder, config, recovery_point, log_start_offset)
        return recovery.run(topic_id)
    except OSError as error:
        raise storage_error(error, "recovering", folder) from error


class _Recovery:
    def __init__(
        self,
        env: Environment,
        tp: TopicPartition,
        folder: str,
        config: LogConfig,
        recovery_point: int,
        log_start_offset: int,
    ) -> None:
        self.env = env
        self.tp = tp
        self.folder = folder
        self.interval = config.index_interval_bytes
        self.config = config
        self.recovery_point = recovery_point
        self.log_start = log_start_offset
        self.now_ms = env.clock.now_ms()
        self.producers = ProducerStates()
        self.producers_from = 0
        self.aborted: list[AbortedTransaction] = []
        self.segments: list[Segment] = []

    def run(self, topic_id: UUID | None) -> PartitionLog:
        names = clear_leftovers(self.env, self.tp, self.folder)
        self._find_segments(names)
        self._load_snapshot(names)
        end = self._prove_segments()
        if end < self.log_start:
            end = self._start_over()
        self._drop_snapshots_above(names, end)
        complete_indexes(self.env, self.segments, self.aborted, self.producers_from)
        self.producers.unstable.settle(end)
        self.producers.expire(self.now_ms, self.env.producer_expiry_ms)
        if end > self.recovery_point:
            self._make_durable(names, end)
        log = PartitionLog(
            self.env,
            self.tp,
            self.folder,
            self.config,
            self.segments,
            log_start_offset=max(self.log_start, self.segments[0].base_offset),
            log_end_offset=end,
            recovery_point=end,
            topic_id=topic_id,
            producers=self.producers,
            # A segment that was started just before may be known to the system only. To sync every
            # idle folder now would take long: it is done before the next write is acknowledged.
            new_folder=end <= self.recovery_point,
        )
        log.changed = True
        return log

    def _make_durable(self, names: dict[str, int], end: int) -> None:
        """What is there was seen by the system, perhaps not by the disk; and it is proven now, so
        the recovery point moves to the end, with a snapshot of the producers there."""
        snapshot = f"{self.folder}/{file_name(end, SNAPSHOT)}"
        self.env.fs.write_bytes(snapshot, self.producers.encode())
        try:
            self.env.fs.sync_file(snapshot)
            if METADATA in names:
                self.env.fs.sync_file(f"{self.folder}/{METADATA}")
            self.env.fs.sync_dir(self.folder)
        except OSError as error:
            raise self.env.pool.fail_sync(error, self.folder) from error

    def report(
        self, what: str, path: str, *, position: int = -1, removed: int = 0, offset: int = -1
    ) -> None:
        self.env.reports.append(Report(self.tp, path, what, position, removed, offset))

    # --- what is there ---------------------------------------------------------------------------

    def _find_segments(self, names: dict[str, int]) -> None:
        bases = sorted(int(name[: -len(LOG)]) for name in names if name.endswith(LOG))
        known = set(bases)
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in SEGMENT_SUFFIXES[1:] and int(stem) not in known:
                self.env.fs.remove(f"{self.folder}/{name}")
        # Deletions that had only begun: what lies wholly below the start goes.
        while len(bases) > 1 and bases[1] <= self.log_start:
            base = bases.pop(0)
            for suffix in SEGMENT_SUFFIXES:
                if file_name(base, suffix) in names:
                    self.env.fs.remove(f"{self.folder}/{file_name(base, suffix)}")
        for base in bases:
            size = names[file_name(base, LOG)]
            segment = Segment(self.env, self.folder, base, size, created_ms=self.now_ms)
            aborted = names.get(file_name(base, TXN_INDEX))
            if aborted is not None:
                segment.aborted = AbortedIndex(aborted)
            self.segments.append(segment)
        if not self.segments:
            if self.recovery_point > self.log_start:
                raise CorruptLogError(
                    f"{self.folder} holds no segments, but offsets {self.log_start} to "
                    f"{self.recovery_point - 1} were synced",
                    path=self.folder,
                    position=0,
                    offset=self.log_start,
                )
            self._start_over()

    def _start_over(self) -> int:
        """An empty log at its start offset: all that was there had been deleted by its users."""
        for segment in self.segments:
            self._remove(segment)
        self.segments = [Segment.create(self.env, self.folder, self.log_start, self.now_ms)]
        self.env.fs.sync_dir(self.folder)
        return self.log_start

    def _remove(self, segment: Segment) -> None:
        segment.close()
        for suffix in SEGMENT_SUFFIXES:
            if self.env.fs.exists(segment.path(suffix)):
                self.env.fs.remove(segment.path(suffix))

    def _load_snapshot(self, names: dict[str, int]) -> None:
        # What deleted segments told of producers is in the snapshot at the first that is left.
        newest = max(self.recovery_point, self.segments[0].base_offset)
        for offset in reversed(snapshot_offsets(names)):
            if offset > newest:
                continue
            path = f"{self.folder}/{file_name(offset, SNAPSHOT)}"
            try:
                self.producers = ProducerStates.decode(self.env.fs.read_bytes(path))
            except ValueError as error:
                self.report(f"producer snapshot dropped: {error}", path)
                self.env.fs.remove(path)
                del names[file_name(offset, SNAPSHOT)]
                continue
            self.producers_from = offset
            return
        self.producers_from = self.segments[0].base_offset

    def _drop_snapshots_above(self, names: dict[str, int], end: int) -> None:
        # Their offsets will be given to other batches.
        above = [each for each in snapshot_offsets(names) if each > end]
        for offset in above:
            self.env.fs.remove(f"{self.folder}/{file_name(offset, SNAPSHOT)}")
        if above:
            self.env.fs.sync_dir(self.folder)

    # --- proof -----------------------------------------------------------------------------------

    def _prove_segments(self) -> int:
        """Check or scan each segment; returns the log's end offset."""
        scan_from = min(self.recovery_point, self.producers_from)
        end = self.segments[0].base_offset
        index = 0
        while index < len(self.segments):
            segment = self.segments[index]
            following = self.segments[index + 1 :]
            next_base = following[0].base_offset if following else None
            if next_base is not None and next_base <= scan_from:
                end = self._check_closed(segment)
            else:
                end = self._scan(segment, scan_from, following)
            if following and end != next_base:
                self._end_early(segment, end, following)
            index += 1
        if end < self.recovery_point and end >= self.log_start:
            last = self.segments[-1]
            raise last.corrupt(
                f"the log ends here, but was synced up to offset {self.recovery_point}",
                last.size,
                end,
            )
        return end

    def _check_closed(self, segment: Segment) -> int:
        """A segment that was synced whole: only its end is looked at. Returns its end offset."""
        if segment.size == 0:
            return segment.base_offset
        offsets, times = self._index_files(segment)
        if offsets is None or times is None or not plausible(offsets, times, segment.size):
            segment.rebuild_index(self.interval)
        segment.max_timestamp = segment.stored_max_timestamp()
        position = segment.start_position(segment.base_offset + 0x7FFFFFFF)
        scanner = BatchScanner(segment.file, position, segment.size, segment.base_offset)
        for _ in scanner:
            pass
        segment.file.close()
        if scanner.damage is not None:
            raise segment.corrupt(scanner.damage, scanner.position, scanner.next_offset)
        return scanner.next_offset

    def _index_files(self, segment: Segment) -> tuple[bytes | None, bytes | None]:
        fs = self.env.fs
        paths = segment.path(INDEX), segment.path(TIME_INDEX)
        offsets, times = (fs.read_bytes(path) if fs.exists(path) else None for path in paths)
        return offsets, times

    def _scan(self, segment: Segment, scan_from: int, following: list[Segment]) -> int:
        """Prove all batches from ``scan_from`` on. Returns the segment's end offset."""
        table, start = self._trusted_index(segment, scan_from)
        scanner = BatchScanner(segment.file, start, segment.size, segment.base_offset)
        self._take_in(segment, table, scanner)
        segment.trusted_from = start
        end = scanner.next_offset
        if scanner.damage is not None:
            self._judge(segment, scanner, following)
            self._cut(segment, scanner)
        segment.use_table(table)
        if segment.size > 0 and end > self.recovery_point:
            segment.file.datasync()  # before readers see what may be in memory only
        if following and end == following[0].base_offset:
            segment.close_index()
            self._sync_index(segment)
        segment.synced_size = segment.size
        return end

    def _take_in(self, segment: Segment, table: IndexTable, scanner: BatchScanner) -> None:
        for position, header in scanner:
            table.add(
                header.last_offset - segment.base_offset,
                position,
                header.size,
                header.max_timestamp,
                self.interval,
            )
            if position == 0:
                segment.first_timestamp = header.max_timestamp
            if header.producer_id >= 0 and header.base_offset >= self.producers_from:
                aborted = replay_batch(self.producers, segment, position, header, self.now_ms)
                if aborted is not None:
                    self.aborted.append(aborted)

    def _trusted_index(self, segment: Segment, scan_from: int) -> tuple[IndexTable, int]:
        """The part of the index below ``scan_from`` that is good, and where to scan from."""
        relative = scan_from - segment.base_offset
        if relative <= 0:
            return IndexTable(), 0
        offsets, times = self._index_files(segment)
        if not offsets or times is None or len(times) % TIME_ENTRY or len(offsets) % OFFSET_ENTRY:
            return IndexTable(), 0
        # The two files are not written at one time: where the time index ends earlier, what lies
        # behind its end has to be read for its timestamps.
        latest = last_time_entry(times[: find_time_end(times, relative)])
        if latest is None:
            return IndexTable(), 0
        kept = offset_entries_until(offsets, min(relative, latest[1]))
        last = last_offset_entry(kept)
        if last is None or not ascending(kept, segment.size):
            return IndexTable(), 0
        # The entry must name a batch that is really there; else nothing of the file is trusted.
        probe = BatchScanner(segment.file, last[1], segment.size, segment.base_offset)
        header = next((header for _, header in probe), None)
        if header is None or header.last_offset != segment.base_offset + last[0]:
            return IndexTable(), 0
        table = IndexTable(bytearray(kept), bytearray(times[: find_time_end(times, last[0])]))
        table.written_offsets = table.written_times = 0  # the files are written anew
        return table, last[1]

    def _sync_index(self, segment: Segment) -> None:
        for suffix in (INDEX, TIME_INDEX):
            try:
                self.env.fs.sync_file(segment.path(suffix))
            except OSError as error:
                raise self.env.pool.fail_sync(error, segment.path(suffix)) from error

    # --- damage ----------------------------------------------------------------------------------

    def _judge(self, segment: Segment, scanner: BatchScanner, following: list[Segment]) -> None:
        """Raise unless the damage is a torn tail."""
        why, position, offset = scanner.damage or "", scanner.position, scanner.next_offset
        if offset < self.recovery_point:
            raise segment.corrupt(
                f"{why}; it was synced up to offset {self.recovery_point}", position, offset
            )
        found = find_batch(segment.file, position + 1, segment.size, offset)
        if found is not None:
            raise segment.corrupt(
                f"{why}; a valid batch of offset {found[1].base_offset} follows at byte {found[0]}",
                position,
                offset,
            )
        self._refuse_if_valid_follows(segment, position, offset, why, following)

    @staticmethod
    def _refuse_if_valid_follows(
        segment: Segment, position: int, offset: int, why: str, following: list[Segment]
    ) -> None:
        for later in following:
            if find_batch(later.file, 0, later.size, later.base_offset) is not None:
                raise segment.corrupt(
                    f"{why}; the segment {later.path()} holds valid batches", position, offset
                )

    def _cut(self, segment: Segment, scanner: BatchScanner) -> None:
        removed = segment.size - scanner.position
        self.report(
            f"torn tail of {removed} bytes cut off at byte {scanner.position}, "
            f"offset {scanner.next_offset}: {scanner.damage}",
            segment.path(),
            position=scanner.position,
            removed=removed,
            offset=scanner.next_offset,
        )
        segment.file.truncate(scanner.position)
        segment.file.datasync()
        segment.size = scanner.position

    def _end_early(self, segment: Segment, end: int, following: list[Segment]) -> None:
        """The segment does not reach the next one: fine only where nothing valid follows."""
        why = f"it ends at offset {end}, the next segment begins at {following[0].base_offset}"
        if end < self.recovery_point and following[0].base_offset <= self.recovery_point:
            raise segment.corrupt(why, segment.size, end)
        self._refuse_if_valid_follows(segment, segment.size, end, why, following)
        for later in following:
            self.report("segment without a valid batch removed", later.path(), removed=later.size)
            self._remove(later)
            self.segments.remove(later)
        self.env.fs.sync_dir(self.folder)
