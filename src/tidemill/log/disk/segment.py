"""One segment: a file with record batches from a base offset on, and its indexes.

Appends batches, and reads them in order; ``walk`` finds them by offset and by timestamp. Does not
decide when to roll, what can be read, or how to treat damage. Knows no producers and no configs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from tidemill import system
from tidemill.log.disk.aborted_index import AbortedIndex
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import storage_error, storage_errors
from tidemill.log.disk.index import (
    MAX_RELATIVE_OFFSET,
    Entries,
    IndexTable,
    find_entry,
    find_position,
    last_time_entry,
    plausible,
    write_entries,
)
from tidemill.log.disk.log_file import LogFile
from tidemill.log.disk.scan import BatchScanner
from tidemill.log.errors import CorruptLogError, StorageError
from tidemill.log.format.batch import HEADER_SIZE, BatchHeader
from tidemill.log.names import INDEX, LOG, SEGMENT_SUFFIXES, TIME_INDEX, TopicPartition, file_name
from tidemill.native import extension

DEFAULT_INDEX_INTERVAL = 4096


class Segment(extension.SegmentFields):
    """A segment. The last segment of a partition is active: only it is appended to.

    Attributes:
        base_offset: the smallest offset that it can hold.
        size: bytes of complete batches.
        end_offset: the offset after its last batch. While recovery has not read the segment: an
            offset that it can't reach.
        dense: whether each batch begins where the one before it ends. False if compaction has
            perhaps removed batches.
        max_timestamp: latest timestamp of its records, or -1.
        first_timestamp: ``max_timestamp`` of the first batch, or None if it was not read yet.
        created_ms: the time when it was created, or opened by this process.
        synced_size: bytes that are synced.
        named: whether the folder's entry for it is synced.
        trusted_from: position from which this process has written or verified all bytes.
        verified: start and end of a range below ``trusted_from`` that readers have verified.
        aborted: index of its aborted transactions, or None if there are none.
        table: the index in memory, or None if it was not loaded.
    """

    __slots__ = (
        "_env",
        "_written_size",
        "aborted",
        "dense",
        "folder",
        "synced_size",
        "trusted_from",
        "verified",
    )

    log_file: LogFile | None

    def __init__(
        self,
        env: Environment,
        folder: str,
        base_offset: int,
        size: int = 0,
        max_timestamp: int = -1,
        *,
        created_ms: int,
        end_offset: int = -1,
        dense: bool = False,
    ) -> None:
        self._env = env
        self.folder = folder
        self.base_offset = base_offset
        self.size = self.synced_size = self.trusted_from = self._written_size = size
        self.max_timestamp = max_timestamp
        self.created_ms = created_ms
        self.end_offset = end_offset if end_offset >= 0 else base_offset + MAX_RELATIVE_OFFSET + 1
        self.dense = dense
        self.named = True
        self.verified = (0, 0)
        self.aborted: AbortedIndex | None = None

    @classmethod
    def create(cls, env: Environment, folder: str, base_offset: int, now_ms: int) -> Segment:
        """Create an empty segment. It is durable after the next sync of its folder."""
        segment = cls(env, folder, base_offset, created_ms=now_ms, end_offset=base_offset)
        segment.named = False
        segment.log_file = file = LogFile(env.pool, segment.path(), 0, creating=True)
        try:
            file.create()
        except StorageError:
            # The segment before it can still grow behind this offset. Recovery would take the
            # file's name for its end.
            file.close()
            with suppress(OSError):
                env.fs.remove(file.path)
            raise
        segment.table = IndexTable()
        return segment

    def __repr__(self) -> str:
        return f"Segment({self.path()!r}, size={self.size})"

    def path(self, suffix: str = LOG) -> str:
        """Return the path of one of the segment's files."""
        return f"{self.folder}/{file_name(self.base_offset, suffix)}"

    @property
    def file(self) -> LogFile:
        """The log file. It is opened when it is used."""
        if self.log_file is None:
            self.log_file = LogFile(self._env.pool, self.path(), self.size)
        return self.log_file

    @property
    def unwritten_bytes(self) -> int:
        """Bytes at the end of the file that the system was not asked to write to the disk."""
        return self.size - max(self.synced_size, self._written_size)

    def write_back(self) -> None:
        """Ask the system to begin to write these bytes; can block. Can run in any thread.

        The sync that makes them durable takes less time then.

        Raises:
            StorageError: the file can't be opened, or the disk refused.
        """
        end = self.size
        start = max(self.synced_size, self._written_size)
        self._written_size = end
        self.file.write_back(start, end - start)

    # --- writing ---------------------------------------------------------------------------------

    def open_table(self) -> IndexTable:
        """Return the index in memory; read it from its files if this process has not written it."""
        if self.table is None:
            if self.stored_max_timestamp() < self.max_timestamp:
                self.rebuild_index()  # the file is outdated, so appending to it would be wrong
            offsets, times = self._entries()
            self.table = IndexTable(bytearray(offsets), bytearray(times))
            self._env.maps.drop(self.path(INDEX))
            self._env.maps.drop(self.path(TIME_INDEX))
        return self.table

    def write_index(self, *, seal: bool) -> None:
        """Write the index entries that are not in the files yet, without a sync."""
        table = self.table
        if table is None:
            return
        if seal:
            table.seal()
        fs = self._env.fs
        path, times_path = self.path(INDEX), self.path(TIME_INDEX)
        table.written_offsets = write_entries(fs, path, table.offsets, table.written_offsets)
        table.written_times = write_entries(fs, times_path, table.times, table.written_times)

    def close_index(self) -> None:
        """Seal and write the index, and drop it from memory."""
        self.write_index(seal=True)
        self.table = None

    def release_allocated(self) -> None:
        """Free the blocks behind the end, if there are any. Nothing can be appended meanwhile."""
        if self._env.preallocation.forget(self):
            self.file.truncate(self.size)

    def begin_release(self) -> Callable[[], None] | None:
        """Return work for any thread that frees the blocks; see ``LogFile.begin_release``.

        None if there are none, for example because the segment was deleted.
        """
        return self.file.begin_release() if self._env.preallocation.forget(self) else None

    def close(self) -> None:
        """Close the file's handle and drop mapped indexes."""
        self._env.preallocation.forget(self)
        if self.log_file is not None:
            self.log_file.close()
        for suffix in SEGMENT_SUFFIXES[1:]:
            self._env.maps.drop(self.path(suffix))

    def moved(self, folder: str) -> None:
        """Use the new path of the partition's folder, which was renamed. Closes the files."""
        self.close()
        self.folder = folder
        if self.log_file is not None:
            self.log_file.moved(self.path())
            self.log_file.retire()

    def rename(self, suffix: str) -> list[str]:
        """Add a suffix (``.deleted``) to the names of all its files; return their new paths.

        Slices that readers have already found stay valid.
        """
        file = self.file
        self.close()
        renamed = [self.path() + suffix]
        file.rename(renamed[0])
        file.retire()
        for each in SEGMENT_SUFFIXES[1:]:
            path = self.path(each)
            with storage_errors("renaming", path):
                if self._env.fs.exists(path):
                    self._env.fs.rename(path, path + suffix)
                    renamed.append(path + suffix)
        return renamed

    # --- finding batches -------------------------------------------------------------------------

    def _entries(self) -> tuple[Entries, Entries]:
        """Return both indexes; rebuild them if the files are lost."""
        table = self.table
        if table is not None:
            return table.offsets, table.times
        if not self.size:
            return b"", b""
        maps = self._env.maps
        try:
            entries = maps.get(self.path(INDEX)), maps.get(self.path(TIME_INDEX))
        except OSError as error:
            if system.is_too_many_open(error):
                raise storage_error(error, "reading", self.path(INDEX)) from error
            entries = None
        if entries is None or not plausible(*entries, self.size):
            self.rebuild_index()
            with storage_errors("reading", self.path(INDEX)):
                return maps.get(self.path(INDEX)), maps.get(self.path(TIME_INDEX))
        return entries

    def rebuild_index(self, interval: int = DEFAULT_INDEX_INTERVAL) -> None:
        """Rebuild the index from the batches, write it and report it."""
        table = IndexTable()
        for position, header in self.batches():
            table.add(
                header.last_offset - self.base_offset,
                position,
                header.size,
                header.max_timestamp,
                interval,
            )
        self.trusted_from = 0
        self.table = table
        self.close_index()
        self._env.maps.drop(self.path(INDEX))
        self._env.maps.drop(self.path(TIME_INDEX))
        self._env.report(self.partition(), self.path(INDEX), "lost or damaged index rebuilt")

    def partition(self) -> TopicPartition:
        """Return the partition, which the folder is named after."""
        topic, _, number = self.folder.rsplit("/", 1)[-1].rpartition("-")
        return TopicPartition(topic, int(number) if number.isdecimal() else -1)

    def corrupt(self, why: str, position: int, offset: int | None) -> CorruptLogError:
        """Return the error for damage at a position, with the path of the file."""
        path = self.file.path
        where = "" if offset is None else f", offset {offset}"
        return CorruptLogError(
            f"{path} is damaged at byte {position}{where}: {why}",
            path=path,
            position=position,
            offset=offset,
            hint=f"{CorruptLogError.default_hint} Here: --repair {self.partition()}",
        )

    def index_entry(self, offset: int) -> tuple[int, int] | None:
        """Return (position, last offset) of the last indexed batch that ends until ``offset``.

        It comes from the index, which can be wrong.
        """
        entry = find_entry(self._entries()[0], offset - self.base_offset)
        return None if entry is None else (entry[1], self.base_offset + entry[0])

    def batch_start(self, position: int) -> int:
        """Return a position at or before ``position`` where a batch starts.

        It comes from the index, which can be wrong, or be too sparse: then it can be far before.
        """
        table = self.table
        if table is not None:
            return table.batch_start(position)
        try:
            return find_position(self._env.maps.get(self.path(INDEX)), position)
        except OSError:
            return 0

    def time_entries(self) -> Entries:
        """Return the time index, which can be wrong."""
        return self._entries()[1]

    def stored_max_timestamp(self) -> int:
        """Return the latest timestamp in the time index. It is exact for closed segments."""
        latest = last_time_entry(self._entries()[1])
        return -1 if latest is None else latest[0]

    def read_first_timestamp(self) -> int:
        """Return ``max_timestamp`` of the first batch, from which ``segment.ms`` counts, or -1."""
        if self.first_timestamp is None and self.size:
            head = self.file.pread(HEADER_SIZE, 0)
            if len(head) < HEADER_SIZE:
                raise self.corrupt("the file is shorter than before", 0, self.base_offset)
            self.first_timestamp = int.from_bytes(head[35:43], "big", signed=True)
        return -1 if self.first_timestamp is None else self.first_timestamp

    def index_sizes(self) -> tuple[int, int]:
        """Return the sizes of both indexes in bytes."""
        offsets, times = self._entries()
        return len(offsets), len(times)

    def scanner(self, position: int) -> BatchScanner:
        """Return a scanner for the batches from ``position`` on."""
        return BatchScanner(
            self.file,
            position,
            self.size,
            self.base_offset,
            limit=self.end_offset,
            dense=self.dense,
        )

    def batches(self, position: int = 0) -> Iterable[tuple[int, BatchHeader]]:
        """Yield position and header of each batch from ``position`` on, verified."""
        scanner = self.scanner(position)
        yield from scanner
        if scanner.damage is not None:
            raise self.corrupt(scanner.damage, scanner.position, scanner.next_offset)
