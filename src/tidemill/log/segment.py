"""One segment: a file of record batches from a base offset on, with its indexes.

Appends and finds places by offset and by timestamp. Decides nothing about when to roll, what may
be read, or what damage means; knows no producers and no configs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from tidemill.errors import CorruptLogError
from tidemill.log.aborted import AbortedIndex
from tidemill.log.batch import HEADER_SIZE, BatchHeader, Buffer
from tidemill.log.environment import Environment, Report
from tidemill.log.files import storage_error
from tidemill.log.handles import LogFile
from tidemill.log.index import (
    Entries,
    IndexTable,
    find_position,
    find_time,
    last_time_entry,
    plausible,
)
from tidemill.log.names import INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, TopicPartition, file_name
from tidemill.log.scan import BatchScanner

DEFAULT_INDEX_INTERVAL = 4096

# base offset, batch length, last offset delta: all that finding an offset needs
_WALK = struct.Struct(">qi11xi")
_WALK_CHUNK = 8192


class Segment:
    """A segment. The last one of a partition is active: only it is appended to.

    Attributes:
        base_offset: offsets are at or above it.
        size: bytes of whole batches.
        max_timestamp: latest timestamp of its records, or -1.
        first_timestamp: ``max_timestamp`` of the first batch, or None where it was not read yet.
        created_ms: when it was created, or opened by this process.
        synced_size: bytes that are known to be on disk.
        named: its name in the folder is known to be on disk.
        trusted_from: bytes from there on were written or proven by this process.
        verified: start and end of a stretch below it that readers have proven.
        aborted: index of its aborted transactions, or None where it has none.
    """

    __slots__ = (
        "_env",
        "_file",
        "_table",
        "aborted",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "folder",
        "max_timestamp",
        "named",
        "size",
        "synced_size",
        "trusted_from",
        "verified",
    )

    def __init__(
        self,
        env: Environment,
        folder: str,
        base_offset: int,
        size: int = 0,
        max_timestamp: int = -1,
        *,
        created_ms: int,
    ) -> None:
        self._env = env
        self.folder = folder
        self.base_offset = base_offset
        self.size = size
        self.max_timestamp = max_timestamp
        self.first_timestamp: int | None = None
        self.created_ms = created_ms
        self.synced_size = size
        self.named = True
        self.trusted_from = size
        self.verified = (0, 0)
        self.aborted: AbortedIndex | None = None
        self._file: LogFile | None = None
        self._table: IndexTable | None = None

    @classmethod
    def create(cls, env: Environment, folder: str, base_offset: int, now_ms: int) -> Segment:
        """A new, empty segment; its folder must be synced before it counts.

        Raises:
            DiskFullError, StorageError: the file can't be created.
        """
        segment = cls(env, folder, base_offset, created_ms=now_ms)
        segment.named = False
        segment._file = LogFile(env.pool, segment.path(), 0, create=True)
        segment._file.create()
        segment._table = IndexTable()
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.path()!r}, size={self.size})"

    def path(self, suffix: str = LOG) -> str:
        """Path of one of the segment's files."""
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    @property
    def file(self) -> LogFile:
        """The log file; opened when it is used."""
        if self._file is None:
            self._file = LogFile(self._env.pool, self.path(), self.size)
        return self._file

    # --- writing ---------------------------------------------------------------------------------

    def append(self, data: Buffer, batches: Iterable[tuple[int, int, int]], interval: int) -> None:
        """Write batches whose offsets are stamped.

        Args:
            data: the batches.
            batches: (size, last offset, max timestamp) of each.
            interval: bytes between two index entries.

        Raises:
            DiskFullError, StorageError: nothing was appended; see ``LogFile.append``.
        """
        table = self._table or self.open_table()
        self.file.append(data)
        position = self.size
        for size, last_offset, max_timestamp in batches:
            if self.first_timestamp is None and position == 0:
                self.first_timestamp = max_timestamp
            table.add(last_offset - self.base_offset, position, size, max_timestamp, interval)
            position += size
        self.max_timestamp = table.max_timestamp
        self.size = position

    def open_table(self) -> IndexTable:
        """The index in memory, read from its files where this process has not written it."""
        if self._table is None:
            offsets, times = self._entries()
            table = IndexTable(bytearray(offsets), bytearray(times))
            if table.max_timestamp < self.max_timestamp:
                self.rebuild_index()  # an older file: new entries on top of it would be wrong
                offsets, times = self._entries()
                table = IndexTable(bytearray(offsets), bytearray(times))
            self._table = table
            self._env.maps.drop(self.path(INDEX))
            self._env.maps.drop(self.path(TIME_INDEX))
        return self._table

    def use_table(self, table: IndexTable) -> None:
        """Take an index that was rebuilt."""
        self._table = table
        self.max_timestamp = table.max_timestamp

    def use_file(self, file: LogFile) -> None:
        """Take a file that is open under another name (compaction swaps it in)."""
        self._file = file

    @property
    def table(self) -> IndexTable | None:
        """The index in memory, if it is there."""
        return self._table

    def write_index(self, *, seal: bool) -> None:
        """Write the index entries that are not in the files yet; unsynced.

        Raises:
            DiskFullError, StorageError: they can't be written; to be repeated.
        """
        table = self._table
        if table is None:
            return
        if seal:
            table.seal()
        table.written_offsets = self._write_entries(INDEX, table.offsets, table.written_offsets)
        table.written_times = self._write_entries(TIME_INDEX, table.times, table.written_times)

    def _write_entries(self, suffix: str, entries: bytearray, written: int) -> int:
        path = self.path(suffix)
        if written and written == len(entries):
            return written
        try:
            if written == 0:
                self._env.fs.write_bytes(path, entries)
                return len(entries)
            raw = self._env.fs.open(path, create=True)
            try:
                rest = entries[written:]
                if raw.pwrite((rest,), written) != len(rest):
                    raw.truncate(written)
                    raise OSError(28, "No space left on device")
            finally:
                raw.close()
        except OSError as error:
            raise storage_error(error, "writing", path) from error
        return len(entries)

    def close_index(self) -> None:
        """Seal and write the index, and keep it in memory no longer."""
        self.write_index(seal=True)
        self._table = None

    def close(self) -> None:
        """Close the file's handle and forget mapped indexes."""
        if self._file is not None:
            self._file.close()
        for suffix in SEGMENT_SUFFIXES[1:]:
            self._env.maps.drop(self.path(suffix))

    def moved(self, folder: str) -> None:
        """The partition's folder was renamed, and the partition closed."""
        self.close()
        self.folder = folder
        if self._file is not None:
            self._file.moved(self.path())
            self._file.retire()

    def rename(self, suffix: str) -> list[str]:
        """Give all its files another suffix (``.deleted``) before they go; returns their new paths.

        Readers that have found their place already stay good.

        Raises:
            StorageError: the file system refuses.
        """
        file = self.file
        self.close()
        renamed = [self.path() + suffix]
        file.rename(renamed[0])
        file.retire()
        for each in SEGMENT_SUFFIXES[1:]:
            path = self.path(each)
            try:
                if self._env.fs.exists(path):
                    self._env.fs.rename(path, path + suffix)
                    renamed.append(path + suffix)
            except OSError as error:
                raise storage_error(error, "renaming", path) from error
        return renamed

    # --- finding places --------------------------------------------------------------------------

    def _entries(self) -> tuple[Entries, Entries]:
        """Both indexes, rebuilt where the files are lost."""
        table = self._table
        if table is not None:
            return table.offsets, table.times
        if not self.size:
            return b"", b""
        maps = self._env.maps
        try:
            entries = maps.get(self.path(INDEX)), maps.get(self.path(TIME_INDEX))
        except OSError:
            entries = None
        if entries is None or not plausible(*entries, self.size):
            self.rebuild_index()
            return maps.get(self.path(INDEX)), maps.get(self.path(TIME_INDEX))
        return entries

    def rebuild_index(self, interval: int = DEFAULT_INDEX_INTERVAL) -> None:
        """Make the index anew from the batches, write it and report it.

        Raises:
            CorruptLogError: a batch is damaged.
            StorageError: the disk refuses.
        """
        table = IndexTable()
        scanner = BatchScanner(self.file, 0, self.size, self.base_offset)
        for position, header in scanner:
            table.add(
                header.last_offset - self.base_offset,
                position,
                header.size,
                header.max_timestamp,
                interval,
            )
        if scanner.damage is not None:
            raise self.corrupt(scanner.damage, scanner.position, scanner.next_offset)
        self.trusted_from = 0
        self._table = table
        self.close_index()
        self._env.maps.drop(self.path(INDEX))
        self._env.maps.drop(self.path(TIME_INDEX))
        self._env.reports.append(
            Report(self.partition(), self.path(INDEX), "lost or damaged index rebuilt")
        )

    def partition(self) -> TopicPartition:
        """The partition, told from the folder's name."""
        topic, _, number = self.folder.rsplit("/", 1)[-1].rpartition("-")
        return TopicPartition(topic, int(number) if number.isdecimal() else -1)

    def corrupt(self, why: str, position: int, offset: int | None) -> CorruptLogError:
        """The error that names this place."""
        path = self.file.path
        where = "" if offset is None else f", offset {offset}"
        return CorruptLogError(
            f"{path} is damaged at byte {position}{where}: {why}",
            path=path,
            position=position,
            offset=offset,
        )

    def start_position(self, offset: int) -> int:
        """Start of a batch at or before the one that holds ``offset``; by the index only."""
        return find_position(self._entries()[0], offset - self.base_offset)

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Position and size of the first batch whose last offset is at or above ``offset``.

        Returns:
            None where all batches are below it.

        Raises:
            CorruptLogError: what stands there is not a batch.
            StorageError: the disk refuses.
        """
        relative = offset - self.base_offset
        if self._table is not None:
            recent = self._table.find_recent(relative, self.size)
            if recent is not None:
                return recent
        position = find_position(self._entries()[0], relative)
        end = self.size
        while position < end:
            chunk = self.file.pread(min(_WALK_CHUNK, end - position), position)
            at = 0
            last = len(chunk) - HEADER_SIZE
            while at <= last:
                base, length, delta = _WALK.unpack_from(chunk, at)
                size = length + 12
                if size < HEADER_SIZE or position + at + size > end or delta < 0:
                    raise self.corrupt("not a record batch", position + at, None)
                if base + delta >= offset:
                    return position + at, size
                at += size
            if at == 0:
                raise self.corrupt("the file is shorter than it was", position, None)
            position += at
        return None

    def find_record(self, position: int, end: int) -> tuple[int, int] | None:
        """Position and size of the first batch from there on that holds a record: compaction leaves
        some that are a header only.

        Returns:
            None where there is none below ``end``.

        Raises:
            StorageError: the disk refuses.
        """
        while position < end:
            chunk = self.file.pread(min(_WALK_CHUNK, end - position), position)
            at = 0
            while at <= len(chunk) - HEADER_SIZE:
                size = _WALK.unpack_from(chunk, at)[1] + 12
                if size > HEADER_SIZE:
                    return position + at, size
                at += HEADER_SIZE
            if at == 0:
                raise self.corrupt("the file is shorter than it was", position, None)
            position += at
        return None

    def position_before(self, offset: int) -> int:
        """Where the batches below ``offset`` end."""
        place = self.locate(offset)
        return self.size if place is None else place[0]

    def position_for_time(self, timestamp: int) -> int:
        """Start of a batch at or before the first record with ``timestamp`` or later."""
        offsets, times = self._entries()
        relative = find_time(times, timestamp)
        return find_position(offsets, relative) if relative >= 0 else 0

    def stored_max_timestamp(self) -> int:
        """Latest timestamp as the time index says, which for closed segments is exact."""
        latest = last_time_entry(self._entries()[1])
        return -1 if latest is None else latest[0]

    def read_first_timestamp(self) -> int:
        """``max_timestamp`` of the first batch: what ``segment.ms`` counts from; -1 if none."""
        if self.first_timestamp is None and self.size:
            head = self.file.pread(HEADER_SIZE, 0)
            if len(head) < HEADER_SIZE:
                raise self.corrupt("the file is shorter than it was", 0, self.base_offset)
            self.first_timestamp = int.from_bytes(head[35:43], "big", signed=True)
        return -1 if self.first_timestamp is None else self.first_timestamp

    def index_sizes(self) -> tuple[int, int]:
        """Bytes of both indexes."""
        offsets, times = self._entries()
        return len(offsets), len(times)

    def batches(
        self, position: int = 0, end: int | None = None
    ) -> Iterable[tuple[int, BatchHeader]]:
        """Position and header of each batch from ``position`` on, each proven.

        Raises:
            CorruptLogError: one is damaged.
            StorageError: the disk refuses.
        """
        scanner = BatchScanner(
            self.file, position, self.size if end is None else end, self.base_offset
        )
        yield from scanner
        if scanner.damage is not None:
            raise self.corrupt(scanner.damage, scanner.position, scanner.next_offset)


def total_size(segments: Sequence[Segment]) -> int:
    """Bytes of all segments together."""
    return sum(segment.size for segment in segments)
