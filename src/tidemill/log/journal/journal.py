"""Writes entries to the journal, and knows which of them are still needed.

Every write is begun and finished in one thread, and run in any: ``begin``, ``JournalWrite.run``,
``finish``, as the tickets of a partition. Only one write is on its way at a time, so at most the
last entry can be incomplete after a crash. An entry is needed until the segments of all its owners
are synced. What it proves is needed longer, and is written again (``notes``). An owner is a log;
the journal knows nothing of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import Buffer, RawFile, RealFile, storage_errors, write_fully
from tidemill.log.format.crc import crc32c, extend_crc32c
from tidemill.log.journal.checkpoint import (
    CHECKPOINT,
    JournalCheckpoint,
    encode_journal_checkpoint,
    read_checkpoint,
)
from tidemill.log.journal.entry import CRC_START, Piece, encode_entry, entry_bytes, padding
from tidemill.log.journal.extent import Extent, ExtentFile, read_extent
from tidemill.log.journal.notes import Notes, notes_bytes
from tidemill.log.journal.ring import Ring, RingFile
from tidemill.native import extension

FOLDER = "journal"
FILE_BYTES = 8 << 20
LOG_BYTES = extension.LOG_BYTES
"""The rule for what goes through the journal: at most this many unsynced bytes of a log. More are
synced in the log's own file, because the journal would write them twice."""
STREAM_BYTES = extension.STREAM_BYTES
"""The same for a log that had more than ``LOG_BYTES``, until it goes through the journal again. A
log that changed between both with each round would be slow: the sync of its file also writes all
that the journal had before."""
ROUND_BYTES = 4 << 20
"""Most bytes of records in one entry. It is also the memory that unsynced records take, times
four: above that, a log's own file is synced."""
_BUFFERS = 512
"""Most buffers of one system call; Linux allows 1024."""


@dataclass(slots=True, eq=False, repr=False)
class JournalWrite:
    """One entry on its way to the disk.

    Attributes:
        head: the oldest entry that was needed when it was begun.
        header, buffers, position: the entry, as ``write_through`` takes it.
        size: bytes of the entry, with the zeros behind it.
        done: the entry is on disk.
        refused: the entry can't be written. The segments must be synced.
    """

    _env: Environment
    _file: RingFile
    sequence: int
    head: int
    header: bytearray
    buffers: list[Buffer]
    size: int
    position: int = field(init=False)
    done: bool = False
    refused: OSError | None = None

    def __post_init__(self) -> None:
        self.position = self._file.used

    @property
    def descriptor(self) -> int | None:
        """The file of the operating system that the entry can be written to; None for ``run``."""
        raw = self._file.raw
        if type(raw) is not RealFile or self._env.pool.sync_failure is not None:
            return None
        return raw.fileno()

    def run(self) -> None:
        """Write and sync the entry; blocks. Can run in any thread.

        Raises:
            SyncFailedError: the broker must stop.
        """
        pool = self._env.pool
        if pool.sync_failure is not None:
            raise pool.sync_failure
        file = self._file
        try:
            write_through(file.raw, self.header, self.buffers, self.position)
        except EntrySyncError as error:
            raise pool.fail_sync(error, file.path) from error
        except OSError as error:
            self.refused = error
            return
        self.done = True

    def ran(self, unwritten: int, unsynced: int) -> None:
        """Take the result of a thread that has written to ``descriptor`` and synced it.

        Args:
            unwritten: the number of the error (errno) of the write, or 0.
            unsynced: the same of the sync.

        Raises:
            SyncFailedError: the broker must stop.
        """
        if unwritten:
            self.refused = OSError(unwritten, os.strerror(unwritten))
        elif unsynced:
            error = OSError(unsynced, os.strerror(unsynced))
            raise self._env.pool.fail_sync(error, self._file.path)
        else:
            self.done = True

    def accept(self) -> None:
        """Count the entry as written."""
        if self._file.first < 0:
            self._file.first = self.sequence
        self._file.last = self.sequence
        self._file.used += self.size


class Journal:
    """The journal of one data folder. It is used from one thread, but for what is said to block.

    Args:
        file_bytes: size of each file.
        limit_bytes: most bytes of all files.

    Attributes:
        is_open: whether entries can be written.
        notes: the notes that the next entry includes: up to where an owner's segments are synced.
    """

    def __init__(
        self, env: Environment, data_dir: str, limit_bytes: int, file_bytes: int = FILE_BYTES
    ) -> None:
        self._env = env
        self._data_dir = data_dir
        self.limit_bytes = limit_bytes
        file_bytes = min(file_bytes, limit_bytes // 2)
        self._ring = Ring(env.fs, f"{data_dir}/{FOLDER}", file_bytes, limit_bytes // file_bytes)
        self._extents = ExtentFile(env.fs, data_dir)
        self._id = b""
        self._epoch = 0
        self._writing = threading.Lock()
        self.is_open = False
        self.next_sequence = 1
        self._needed: dict[Hashable, int] = {}
        self._storing: dict[int, tuple[Hashable, int]] = {}
        self._stores = 0
        self._written_head = 1
        self.notes = Notes()

    # --- opening ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open the files, and write the id of this journal; blocks.

        The partitions were recovered, so nothing of the journal before is needed.

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError, StorageError: there is no journal. Segments are synced instead.
        """
        fs, folder = self._env.fs, f"{self._data_dir}/{FOLDER}"
        with storage_errors("creating the journal in", folder), self._writing:
            if not fs.exists(folder):
                fs.mkdir(folder)
                fs.sync_dir(self._data_dir)
            self._ring.open_files()
            self._extents.open()
            self._id = uuid4().bytes
            self._epoch = self._next_epoch()
            # First the extent: one of another journal would be taken for damage.
            self._extents.write(Extent(self._id, self._epoch, 0, 1))
            self._extents.sync()
            self._write_checkpoint(self._ring.files)
        self._env.copies.open(4 * ROUND_BYTES)
        self.is_open = True

    def _next_epoch(self) -> int:
        """Return a number above all before, also if the files with them were lost."""
        fs, data_dir = self._env.fs, self._data_dir
        stored = (read_checkpoint(fs, data_dir)[0], read_extent(fs, data_dir))
        known = [each.epoch for each in stored if each is not None]
        return max(*known, self._epoch, self._env.clock.now_ms() - 1) + 1

    def _write_checkpoint(self, files: Sequence[RingFile]) -> None:
        names = {file.path.rpartition("/")[2]: self._ring.file_bytes for file in files}
        self._store_checkpoint(JournalCheckpoint(self._id, epoch=self._epoch, files=names))

    def _store_checkpoint(self, checkpoint: JournalCheckpoint) -> None:
        data = encode_journal_checkpoint(checkpoint)
        self._env.fs.write_atomic(f"{self._data_dir}/{CHECKPOINT}", data)

    def discard(self) -> None:
        """Make the next start ignore the journal; blocks.

        This is right where all segments are synced, or nothing is proven by the journal. Nothing is
        written if no journal is in use: a broker starts on a full disk too.

        Raises:
            DiskFullError, StorageError: the checkpoint can't be written.
        """
        with storage_errors("writing", f"{self._data_dir}/{CHECKPOINT}"), self._writing:
            self.is_open = False
            stored, _ = read_checkpoint(self._env.fs, self._data_dir)
            if stored is not None and not stored.journal and not stored.is_accepted:
                return
            self._epoch = self._next_epoch()
            self._store_checkpoint(JournalCheckpoint(b"", epoch=self._epoch))

    def extent_write(self, promises: bytes) -> Callable[[], None]:
        """Return a function that stores how far the journal reaches now, in a second place.

        It blocks, and can be called in any thread.

        Args:
            promises: what was promised of ``unsynced_owners``, encoded (``rounds.promised_ends``).

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError, StorageError: it can't be written. The extent before is kept.
        """
        extent = Extent(self._id, self._epoch, self.next_sequence - 1, self.head, promises)

        def write() -> None:
            path = self._extents.path
            with storage_errors("writing", path):
                self._extents.write(extent)
            with self._env.pool.sync_errors(path):
                self._extents.sync()

        return write

    def unsynced_owners(self) -> list[Hashable]:
        """Return the owners whose segments lack what only the journal has."""
        return list({*self._needed, *(owner for owner, _ in self._storing.values())})

    def give_up(self) -> None:
        """Write no more entries, because it is not possible. Segments are synced from now on.

        The entries so far still count. ``discard`` must follow when none is needed any more: the
        journal does not have what is promised from now on.
        """
        self.is_open = False
        self._env.copies.open(0)

    def close(self) -> None:
        """Close the files."""
        self.is_open = False
        self._ring.close()
        self._extents.close()

    # --- writing ---------------------------------------------------------------------------------

    def begin(self, pieces: Sequence[Piece]) -> JournalWrite | None:
        """Return the write of an entry with these pieces and the notes; None if there is no space.

        ``finish`` must be called before the next one begins.
        """
        size = entry_bytes(pieces)
        notes = self._take_notes(size)
        if self._ring.needs_next(size + notes_bytes(notes)):
            self.notes.give_back()
            self.notes.renew()  # the next file perhaps has the only copies
            notes = self._take_notes(size)
        if not notes:
            return self._begin(pieces, size)
        both = [*pieces, *notes]
        write = self._begin(both, entry_bytes(both))
        if write is None:
            self.notes.give_back()
            if pieces:  # appends don't wait for space for notes
                write = self._begin(pieces, size)
        return write

    def _take_notes(self, size: int) -> list[Piece]:
        """Take the notes for an entry whose pieces take ``size`` bytes."""
        space = self._ring.file_bytes - size
        return self.notes.take(space) if self.notes.are_waiting else []

    def _begin(self, pieces: Sequence[Piece], size: int) -> JournalWrite | None:
        head = self.head
        file = self._ring.space_for(size, head, self._written_head)
        if file is None:
            return None
        header, buffers = encode_entry(self._id, self.next_sequence, head, pieces)
        buffers.append(padding(len(header) + sum(map(len, buffers))))
        return JournalWrite(self._env, file, self.next_sequence, head, header, buffers, size)

    def finish(self, write: JournalWrite, owners: Sequence[Hashable]) -> None:
        """Record that an entry is on disk, and who needs it.

        Raises:
            RuntimeError: the write was not run, or it failed.
        """
        if not write.done:
            raise RuntimeError("can't finish a write to the journal that was not run")
        write.accept()
        self._written_head = write.head
        self.next_sequence = write.sequence + 1
        self.notes.written(write.sequence)
        needed = self._needed
        for owner in owners:
            if owner not in needed:
                needed[owner] = write.sequence

    # --- what is needed --------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The oldest entry that is needed, or the next one."""
        oldest = next(iter(self._needed.values()), self.next_sequence)
        if self._storing:
            oldest = min(oldest, min(sequence for _, sequence in self._storing.values()))
        return oldest

    @property
    def is_needed(self) -> bool:
        """Whether segments are still to be synced, so that the journal is needed until then.

        Recovery must know that what was lost at the end of a closed one was not promised.
        """
        return bool(self._needed) or bool(self._storing) or self._env.copies.closed > 0

    def oldest(self) -> Iterator[Hashable]:
        """Yield the owners whose segments are to be synced. The oldest entries come first."""
        return iter(self._needed)

    def is_needed_by(self, owner: Hashable) -> bool:
        """Return whether an owner's segments are to be synced."""
        return owner in self._needed

    def begin_store(self, owner: Hashable) -> int:
        """Record that a sync of an owner's segments begins, which covers all entries so far.

        Returns:
            A number for ``finish_store``; -1 if the owner needs no entry.
        """
        sequence = self._needed.pop(owner, None)
        if sequence is None:
            return -1
        self._stores += 1
        self._storing[self._stores] = owner, sequence
        return self._stores

    def finish_store(self, number: int) -> None:
        """Record that this sync has succeeded."""
        self._storing.pop(number, None)

    def fail_store(self, owner: Hashable, number: int) -> None:
        """Record that this sync was not done, and can be retried: the entries are needed again."""
        _, sequence = self._storing.pop(number, (owner, -1))
        if sequence >= 0:
            needed = {**self._needed, owner: sequence}
            self._needed = dict(sorted(needed.items(), key=lambda each: each[1]))

    def forget(self, owner: Hashable) -> None:
        """Record that an owner was deleted: its entries are not needed."""
        self._needed.pop(owner, None)
        self.notes.forget(owner)

    # --- space -----------------------------------------------------------------------------------

    @property
    def file_bytes(self) -> int:
        """The size of each file."""
        return self._ring.file_bytes

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return self._ring.file_bytes * len(self._ring.files)

    @property
    def used_bytes(self) -> int:
        """Bytes of the files with entries that are needed."""
        return self._ring.used_bytes(self.head)

    @property
    def is_half_full(self) -> bool:
        """Whether more than half of the space is in use."""
        return self.used_bytes * 2 > self.limit_bytes

    @property
    def wants_file(self) -> bool:
        """Whether the next file should be created: the current one is half full, none is free."""
        ring, head = self._ring, self.head
        if len(ring.files) >= ring.limit or ring.current is None:
            return False
        if any(each is not ring.current and each.last < head for each in ring.files):
            return False
        return ring.current.used * 2 > ring.file_bytes

    def create_file(self) -> RingFile:
        """Create a file for ``add_file``, and name it in the checkpoint; blocks.

        Can run in any thread.

        Raises:
            DiskFullError, StorageError: it can't be created.
        """
        with storage_errors("creating a file in", f"{self._data_dir}/{FOLDER}"), self._writing:
            file = self._ring.create()
            try:
                if self.is_open:
                    self._write_checkpoint([*self._ring.files, file])
            except OSError:
                file.raw.close()
                self._env.fs.remove(file.path)
                raise
            return file

    def add_file(self, file: RingFile) -> None:
        """Use a file that was created."""
        self._ring.files.append(file)


class EntrySyncError(OSError):
    """The entry was written, but the sync failed."""


def write_through(raw: RawFile, header: bytearray, buffers: list[Buffer], position: int) -> None:
    """Set the CRC of an entry, write it at ``position`` and sync the file; blocks.

    It works on every file system. The native edition is a thread (``src/native/journal.c``,
    ``engine/threads/entries.py``).

    Args:
        header: the header of the entry. Its bytes 4 to 7 get the CRC of all that follows.
        buffers: what follows the header, and the zeros behind the entry.

    Raises:
        EntrySyncError: the sync failed.
        OSError: it can't be written.
    """
    *content, zeros = buffers
    crc = crc32c(memoryview(header)[CRC_START:])
    for buffer in content:
        crc = extend_crc32c(crc, buffer)
    header[4:8] = crc.to_bytes(4, "big")
    whole = [header, *content, zeros]
    for start in range(0, len(whole), _BUFFERS):
        position += write_fully(raw, whole[start : start + _BUFFERS], position)
    try:
        raw.datasync()
    except OSError as error:
        raise EntrySyncError(error.errno, error.strerror) from error
