"""Read all segments of a partition that no broker uses, and find every damaged place.

Changes nothing. In contrast to recovery, it continues behind a damaged place. Knows the files of
one partition; ``repair`` decides what to do about the damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple, cast

from tidemill.errors import TidemillError
from tidemill.log.disk.files import FileSystem
from tidemill.log.disk.log_file import LogFile
from tidemill.log.disk.scan import MAX_BATCH, BatchScanner, find_batch
from tidemill.log.format.batch import HEADER_SIZE, BatchHeader, check_batch, peek
from tidemill.log.names import LOG, file_name, offsets_of


class Damage(NamedTuple):
    """One damaged place. Everything between ``offset`` and ``resume`` can't be read.

    Attributes:
        offset: the first offset that can't be read.
        resume: the first offset behind it that can be read, or the end of the log.
        base: the base offset of the segment that the place is in; -1 if the log has no segment
            before it.
        position: the first damaged byte of the segment.
        end: the byte behind the last damaged one.
        before_ms: the latest timestamp before the place, or -1.
        after_ms: the timestamp of the first batch behind it, or -1.
    """

    offset: int
    resume: int
    base: int
    position: int
    end: int
    why: str
    before_ms: int = -1
    after_ms: int = -1


@dataclass
class Survey:
    """All that was found in a partition's folder.

    Attributes:
        bases: the base offsets of the segments, ascending.
        damage: the damaged places, ascending.
        batches: the number of readable batches.
        start: the first offset of the log.
        end: the end offset of the log, with what is known to have been there.
        first_ms: the earliest timestamp of a readable batch, or -1.
        last_ms: the latest timestamp of a readable batch, or -1.
        open: first offset of each transaction that does not end in the readable batches, by
            producer id.
    """

    folder: str
    bases: list[int]
    damage: list[Damage] = field(default_factory=list)
    batches: int = 0
    start: int = 0
    end: int = 0
    first_ms: int = -1
    last_ms: int = -1
    open: dict[int, int] = field(default_factory=dict)

    def path(self, base: int) -> str:
        """Return the path of a segment."""
        return f"{self.folder}/{file_name(base, LOG)}"


def survey(
    fs: FileSystem, folder: str, *, log_start: int | None, recovery_point: int, dense: bool
) -> Survey:
    """Read a partition.

    Args:
        folder: the partition's folder. If it is missing, all records are.
        log_start: the first segment must hold this offset; None if it is not known.
        recovery_point: all offsets below it were synced.
        dense: no batch was removed by compaction.
    """
    names = fs.files(folder) if fs.exists(folder) else {}
    bases = offsets_of(names, LOG)
    if log_start is None:
        log_start = bases[0] if bases else 0
    found = Survey(folder, bases, start=log_start)
    _Surveyor(fs, found, recovery_point, dense).run(log_start)
    return found


@dataclass(slots=True, eq=False, repr=False)
class _Surveyor:
    _fs: FileSystem
    _found: Survey
    _recovery_point: int
    _dense: bool
    _next: int = 0
    """The offset behind the last batch."""
    _pending: Damage | None = None
    """The last damaged place, until the first batch behind it is read."""
    _last: tuple[int, int] = (-1, 0)
    """Position of the last batch of the segment, and ``_next`` before it."""

    def run(self, log_start: int) -> None:
        found = self._found
        if not found.bases:
            end = max(log_start, self._recovery_point)
            self._add(log_start, end, -1, 0, 0, "the folder has no segments, or is missing")
            self._next = end
        elif found.bases[0] > log_start:
            self._add(log_start, found.bases[0], -1, 0, 0, "the first segments are missing")
        self._next = max([self._next, *found.bases[:1]])
        before = -1
        for base, following in zip_longest(found.bases, found.bases[1:]):
            if self._next < base:
                size = 0 if before < 0 else self._size(before)
                self._add(self._next, base, before, size, size, "a segment is missing behind it")
                self._next = base
            self._segment(base, following)
            before = base
        if found.bases and self._next < self._recovery_point:
            size = self._size(before)
            why = f"the log ends here, but it was synced up to offset {self._recovery_point}"
            self._add(self._next, self._recovery_point, before, size, size, why)
            self._next = self._recovery_point
        self._close_damage(-1)
        found.end = self._next

    def _size(self, base: int) -> int:
        return self._fs.files(self._found.folder)[file_name(base, LOG)]

    def _segment(self, base: int, following: int | None) -> None:
        size = self._size(base)
        with closing(self._fs.open(self._found.path(base))) as raw:
            self._read(cast("LogFile", raw), base, size, following)

    def _read(self, file: LogFile, base: int, size: int, following: int | None) -> None:
        position = 0
        self._last = (-1, 0)
        while position < size:
            scanner = BatchScanner(file, position, size, self._next)
            why = None
            for at, header in scanner:
                why = self._misplaced(header, following)
                if why is not None:
                    position = at
                    break
                self._last = at, self._next
                self._batch(header)
                position = at + header.size
            why = why or scanner.damage
            if why is None:
                return
            if self._is_last_one_wrong(file, position):
                position, self._next = self._last
                why = "the base offset does not fit the next batch"
            behind = self._behind(file, position, size, following)
            if behind is None:
                self._damaged_end(file, base, position, size, following, why)
                return
            self._add(self._next, behind[1], base, position, behind[0], why)
            position, self._next = behind

    def _damaged_end(
        self,
        file: LogFile,
        base: int,
        position: int,
        size: int,
        following: int | None,
        why: str,
    ) -> None:
        """Add a damaged place behind which the segment has no batch that fits."""
        resume = following
        if resume is None:
            try:  # an intact batch that is in the wrong place had its records here
                resume = self._next + _header(file, position).last_offset_delta + 1
            except TidemillError:
                if self._next >= self._recovery_point:
                    return  # an unfinished write, which the broker removes
                resume = self._recovery_point
            resume = max(resume, self._recovery_point)
        self._add(self._next, resume, base, position, size, why)
        self._next = resume

    def _misplaced(self, header: BatchHeader, following: int | None) -> str | None:
        if following is not None and header.last_offset >= following:
            return f"offset {header.last_offset} belongs to the next segment"
        if self._dense and header.base_offset != self._next:
            return f"base offset {header.base_offset} does not follow {self._next - 1}"
        return None

    def _behind(
        self, file: LogFile, position: int, size: int, following: int | None
    ) -> tuple[int, int] | None:
        """Return position and base offset of the next batch that fits behind a damaged place."""
        # In a dense log, an intact batch that does not follow the one before it is a damaged place.
        start = position if self._dense else position + 1
        while True:
            found = find_batch(file, start, size, self._next)
            if found is None:
                return None
            at, header = found
            if self._fits(file, at + header.size, size, header.last_offset + 1, following):
                return at, header.base_offset
            start = at + 1

    def _fits(
        self, file: LogFile, position: int, size: int, next_offset: int, following: int | None
    ) -> bool:
        """Return whether what follows a batch agrees with its offsets, which no CRC covers."""
        if following is not None and next_offset > following:
            return False
        if size - position < HEADER_SIZE:
            if following is None:
                return next_offset <= self._recovery_point or not self._dense
            return not self._dense or next_offset == following
        try:
            base = _header(file, position).base_offset
        except TidemillError:
            return True  # another damaged place
        return base == next_offset if self._dense else base >= next_offset

    def _is_last_one_wrong(self, file: LogFile, position: int) -> bool:
        """Return whether the batch before this place has a wrong offset, and not the one here."""
        at, next_offset = self._last
        try:
            base = _header(file, position).base_offset
            return at >= 0 and next_offset < _header(file, at).base_offset > base >= next_offset
        except TidemillError:
            return False

    def _batch(self, header: BatchHeader) -> None:
        found = self._found
        self._next = header.last_offset + 1
        found.batches += 1
        if header.max_timestamp >= 0:
            self._close_damage(header.max_timestamp)
            first = found.first_ms
            found.first_ms = header.max_timestamp if first < 0 else min(first, header.max_timestamp)
            found.last_ms = max(found.last_ms, header.max_timestamp)
        if header.is_control:
            found.open.pop(header.producer_id, None)
        elif header.is_transactional:
            found.open.setdefault(header.producer_id, header.base_offset)

    def _add(self, offset: int, resume: int, base: int, position: int, end: int, why: str) -> None:
        self._close_damage(-1)
        self._pending = Damage(offset, resume, base, position, end, why, self._found.last_ms)

    def _close_damage(self, after_ms: int) -> None:
        if self._pending is not None:
            self._found.damage.append(self._pending._replace(after_ms=after_ms))
            self._pending = None


def _header(file: LogFile, position: int) -> BatchHeader:
    """Return the header of the batch at ``position``, which is checked.

    Raises:
        TidemillError: there is no valid batch.
    """
    head = file.pread(HEADER_SIZE, position)
    size = peek(head)[1] if len(head) == HEADER_SIZE else 0
    return check_batch(file.pread(size, position) if HEADER_SIZE <= size <= MAX_BATCH else head)


def open_transactions(found: Survey) -> Iterator[tuple[int, int]]:
    """Yield producer id and first offset of each transaction without an end, in log order."""
    yield from sorted(found.open.items(), key=lambda each: each[1])
