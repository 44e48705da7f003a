"""Verify the segments of a partition after an unclean stop.

Scans batches, rebuilds indexes, replays producers, and distinguishes a torn tail from damage. Knows
segments; ``recovery`` decides which of them to scan, and from where.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.index import (
    MAX_RELATIVE_OFFSET,
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
from tidemill.log.disk.scan import BatchScanner, find_batch
from tidemill.log.disk.segment import Segment
from tidemill.log.disk.walk import position_of_time_entry
from tidemill.log.errors import DiskFullError
from tidemill.log.names import INDEX, TIME_INDEX
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.snapshots import replay_batch


@dataclass(slots=True, eq=False, repr=False)
class SegmentVerifier:
    """Verifies the segments of one partition, oldest first.

    Attributes:
        interval: bytes of log between two index entries.
        recovery_point: offset up to which the log was synced.
        producers: the producers, which are updated with the batches from ``producers_from`` on.
        proven_end: the journal proves that everything below this offset was promised; -1 without a
            journal.
        is_complete: it also proves that nothing else was promised.
        aborted: the transactions that these batches aborted.
    """

    env: Environment
    interval: int
    recovery_point: int
    producers: ProducerStates
    producers_from: int
    proven_end: int = -1
    is_complete: bool = True
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def check_closed(self, segment: Segment) -> int:
        """Check the end of a segment that was synced completely; return its end offset."""
        if segment.size == 0:
            return segment.base_offset
        offsets, times = self._index_files(segment)
        if offsets is None or times is None or not plausible(offsets, times, segment.size):
            segment.rebuild_index(self.interval)
        end = self._check_end(segment)
        if end is None:
            segment.rebuild_index(self.interval)
            end = self._check_end(segment)
        segment.file.close()
        if end is None:
            raise segment.corrupt("its index can't be built", 0, segment.base_offset)
        return end

    def _check_end(self, segment: Segment) -> int | None:
        """Verify the batches behind the last entry of the index; return the end offset.

        None if the index does not match them. A wrong latest time would let retention remove the
        segment too early.
        """
        entry = segment.index_entry(segment.base_offset + MAX_RELATIVE_OFFSET)
        position, last_offset = (0, None) if entry is None else entry
        segment.max_timestamp = segment.stored_max_timestamp()
        scanner = segment.scanner(position)
        for at, header in scanner:
            if at == position and last_offset not in (None, header.last_offset):
                return None
            if header.max_timestamp > segment.max_timestamp:
                return None
        if scanner.damage is not None:
            if position and scanner.position == position:
                return None
            raise segment.corrupt(scanner.damage, scanner.position, scanner.next_offset)
        latest = last_time_entry(segment.time_entries())
        if latest is None:
            return None
        # Where no record has a timestamp, the entry names no batch.
        if latest[0] >= 0 and position_of_time_entry(segment, *latest) is None:
            return None
        return scanner.next_offset

    def _index_files(self, segment: Segment) -> tuple[bytes | None, bytes | None]:
        fs = self.env.fs
        paths = segment.path(INDEX), segment.path(TIME_INDEX)
        offsets, times = (fs.read_bytes(path) if fs.exists(path) else None for path in paths)
        return offsets, times

    def scan(self, segment: Segment, scan_from: int, following: list[Segment]) -> int:
        """Verify all batches from ``scan_from`` on; return the segment's end offset."""
        table, start = self._trusted_index(segment, scan_from)
        scanner = segment.scanner(start)
        self._read_batches(segment, table, scanner)
        segment.trusted_from = start
        end = scanner.next_offset
        if scanner.damage is not None:
            self._refuse_damage(segment, scanner, following)
            self._cut_tail(segment, scanner)
        segment.table = table
        segment.max_timestamp = table.max_timestamp
        if segment.size > 0 and end > self.recovery_point:
            self._store_again(segment, scan_from)
        if following and end == following[0].base_offset:
            segment.close_index()
            self._sync_index(segment)
        segment.synced_size = segment.size
        segment.end_offset = end
        return end

    def _store_again(self, segment: Segment, scan_from: int) -> None:
        """Write what is kept above the recovery point once more, and sync it.

        The kernel forgets pages that it could not write, but still reads them from its cache. Then
        the next sync succeeds although the disk has nothing of them.
        """
        position = 0
        if self.recovery_point > segment.base_offset:
            entry = segment.index_entry(min(self.recovery_point, scan_from) - 1)
            position = 0 if entry is None else entry[0]
        try:
            segment.file.write_again(position)
        except DiskFullError as error:  # of a file system that never overwrites
            what = f"what is kept could not be written again, and is only synced: {error}"
            self.env.report(segment.partition(), segment.path(), what)
        segment.file.datasync()

    def _read_batches(self, segment: Segment, table: IndexTable, scanner: BatchScanner) -> None:
        now_ms = self.env.clock.now_ms()
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
                aborted = replay_batch(self.producers, segment, position, header, now_ms)
                if aborted is not None:
                    self.aborted.append(aborted)

    def _trusted_index(self, segment: Segment, scan_from: int) -> tuple[IndexTable, int]:
        """Return the valid index entries below ``scan_from``, and the position to scan from."""
        relative = scan_from - segment.base_offset
        if relative <= 0:
            return IndexTable(), 0
        offsets, times = self._index_files(segment)
        if not offsets or times is None or len(times) % TIME_ENTRY or len(offsets) % OFFSET_ENTRY:
            return IndexTable(), 0
        # The two files are not written at the same time. If the time index ends earlier, the
        # batches behind its end must be read for their timestamps.
        latest = last_time_entry(times[: find_time_end(times, relative)])
        if latest is None:
            return IndexTable(), 0
        kept = offset_entries_until(offsets, min(relative, latest[1]))
        last = last_offset_entry(kept)
        if last is None or not ascending(kept, segment.size):
            return IndexTable(), 0
        # Trust the entries only if the last one points to a batch that is really there.
        probe = segment.scanner(last[1])
        header = next((header for _, header in probe), None)
        if header is None or header.last_offset != segment.base_offset + last[0]:
            return IndexTable(), 0
        table = IndexTable(bytearray(kept), bytearray(times[: find_time_end(times, last[0])]))
        table.written_offsets = table.written_times = 0  # write the files from the beginning
        return table, last[1]

    def _sync_index(self, segment: Segment) -> None:
        for suffix in (INDEX, TIME_INDEX):
            with self.env.pool.sync_errors(segment.path(suffix)):
                self.env.fs.sync_file(segment.path(suffix))

    # --- damage ----------------------------------------------------------------------------------

    def _refuse_damage(
        self, segment: Segment, scanner: BatchScanner, following: list[Segment]
    ) -> None:
        """Raise CorruptLogError unless the damage is a torn tail."""
        why, position, offset = scanner.damage or "", scanner.position, scanner.next_offset
        if offset < self.recovery_point:
            but = f"the log was synced up to offset {self.recovery_point}"
        elif offset < self.proven_end:
            but = (
                f"the journal proves records up to offset {self.proven_end - 1}, and does not have "
                "these any more"
            )
        elif scanner.misplaced:
            but = "the batch is complete, so this is not an unfinished write"
        else:
            found = find_batch(segment.file, position + 1, segment.size, offset)
            nothing_promised = self.nothing_promised_from(offset)
            if found is None and nothing_promised:
                return  # the segment has lost its end
            if found is None or nothing_promised:
                refuse_if_valid_follows(segment, position, offset, why, following)
                return
            but = f"a valid batch (offset {found[1].base_offset}) follows at byte {found[0]}"
        raise segment.corrupt(f"{why}; {but}", position, offset)

    def nothing_promised_from(self, offset: int) -> bool:
        """Return whether the journal proves that no record from an offset on was promised.

        Then a power cut has lost what was not synced, and what follows was not synced either.
        """
        return self.is_complete and 0 <= self.proven_end <= offset

    def _cut_tail(self, segment: Segment, scanner: BatchScanner) -> None:
        at = scanner.next_offset
        what = (
            f"torn tail of {segment.size - scanner.position} bytes cut off at byte "
            f"{scanner.position}, offset {at}: {scanner.damage}"
        )
        self.env.report(segment.partition(), segment.path(), what, offset=at)
        segment.file.truncate(scanner.position)
        segment.file.datasync()
        segment.size = scanner.position


def refuse_if_valid_follows(
    segment: Segment, position: int, offset: int, why: str, following: list[Segment]
) -> None:
    """Raise CorruptLogError for a damaged place if a later segment has a valid batch."""
    for later in following:
        if find_batch(later.file, 0, later.size, later.base_offset) is not None:
            raise segment.corrupt(
                f"{why}; the segment {later.path()} has valid batches", position, offset
            )
