"""Group commit: track what of a partition is synced, and sync the rest in one step.

``SyncState.begin`` collects the unsynced files in a ticket, ``SyncTicket.run`` syncs them in any
thread, and ``SyncState.finish`` raises the high watermark. Or the unsynced batches go to the
journal (``log.rounds``), and a later ticket syncs the files. Knows files and folders. The requests
that wait for a sync are the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tidemill.log.disk.aborted_index import AbortedIndex
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import unimportant
from tidemill.log.disk.preallocation import NOTHING
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import StorageError, SyncFailedError
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.journal import LOG_BYTES
from tidemill.log.names import INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX
from tidemill.log.partition.chain import SegmentChain

METADATA = "partition.metadata"

MANY_FOLDERS = 8
"""Number of new folders from which one sync of the whole file system is cheaper."""


class SyncState:
    """The synced part of one partition. The head of the chain has its high watermark.

    At first, all records of the chain are synced. Without a topic id, which names the topic in the
    journal, nothing goes there.

    Args:
        new_folder: whether the folder, or its entry in the data folder, is perhaps not synced.

    Attributes:
        stored_offset: all records below it are in synced segments.
    """

    __slots__ = ("_chain", "_head", "stored_offset")

    def __init__(self, chain: SegmentChain, topic_id: bytes, new_folder: bool) -> None:
        self._chain = chain
        head = self._head = chain.head
        head.topic_id = topic_id
        head.new_folder = new_folder
        head.closed = []
        head.copied_limit = LOG_BYTES
        head.copied_from = head.high_watermark = self.stored_offset = head.end_offset
        head.end_segment = chain.active
        head.end_position = chain.active.size
        head.drop_copies(head.end_offset)

    def add_closed(self, segment: Segment) -> None:
        """Include a segment that was just closed in the next sync, with its indexes."""
        self._head.closed.append(segment)
        self._chain.env.copies.closed += 1
        self._head.drop_copies()  # the journal's pieces are of one segment

    def forget(self, segments: Iterable[Segment]) -> None:
        """Exclude segments that were removed from the chain."""
        gone = {id(segment) for segment in segments}
        head = self._head
        left = [each for each in head.closed if id(each) not in gone]
        self._chain.env.copies.closed -= len(head.closed) - len(left)
        head.closed = left

    def drop(self) -> None:
        """Drop what is to be synced: the folder was renamed, and will be removed."""
        self.forget(self._head.closed)
        self._head.drop_copies()

    # --- the files -------------------------------------------------------------------------------

    def begin(self, *, in_background: bool = False, is_awaited: bool = True) -> SyncTicket | None:
        """Return a ticket for all unsynced files, or None if everything is synced.

        Args:
            in_background: the journal has what is to be synced. What was appended since can still
                go there.
            is_awaited: a request waits for the sync. Space behind the segment would make it longer.
        """
        head = self._head
        if not in_background:
            head.drop_copies(head.end_offset)
        active = self._chain.segments[-1]
        if active.size == active.synced_size and not head.closed and not head.new_folder:
            return None
        first_data = head.high_watermark == 0 and head.end_offset > 0
        ticket = SyncTicket(self._chain, list(head.closed), head.new_folder, first_data)
        if not is_awaited:  # in_background neither: only one ticket at a time allocates
            ticket.allocated = self._chain.plan_allocation()
        return ticket

    def finish(self, ticket: SyncTicket) -> bool:
        """Record that a ticket was run; return whether the high watermark rose.

        Raises:
            RuntimeError: the ticket was not run, or it failed.
        """
        if not ticket.done:
            raise RuntimeError(f"{self._chain.tp}: can't finish a sync that was not run")
        for segment, size in ticket.sizes:
            segment.synced_size = max(segment.synced_size, size)
            segment.named = True
        for index, size, crc in ticket.aborted:
            index.synced(size, crc)
        if ticket.closed:
            self.forget(ticket.closed)
        head = self._head
        if ticket.new_folder:
            head.new_folder = False
        self.stored_offset = max(self.stored_offset, ticket.end_offset)
        if self.stored_offset == head.end_offset:
            head.drop_copies(self.stored_offset)
        if ticket.end_offset <= head.high_watermark:
            return False
        segment, size = ticket.sizes[-1]
        if segment is head.end_segment:
            ticket.promised_from = head.end_position, head.high_watermark
        else:
            ticket.promised_from = 0, segment.base_offset
        head.high_watermark = ticket.end_offset
        head.end_segment, head.end_position = segment, size
        return True


@dataclass(slots=True, eq=False, repr=False)
class SyncTicket:
    """One sync of a partition: everything that was appended when the ticket was created.

    Attributes:
        end_offset: the high watermark after the sync.
        sizes: (segment, size) of each segment with unsynced bytes, the active one last.
        aborted: (index of aborted transactions, size, CRC) of these segments, if it is unsynced.
        closed: segments that were closed since the last sync. Their indexes are synced too.
        new_folder: the folder and its entry in the data folder are perhaps not synced.
        new_names: the folder's entries for some segments are perhaps not synced.
        first_data: no record of the partition was synced before.
        folder_done: the folder and its entry are synced.
        done: ``run`` has succeeded.
        allocated: position and length of what to allocate behind the active segment before.
        promised_from: position in the active segment, and offset, from which on the sync has
            promised records. Set by ``SyncState.finish``; the position is at the end if there are
            none.
    """

    chain: SegmentChain
    closed: list[Segment]
    new_folder: bool
    first_data: bool
    done: bool = False
    allocated: tuple[int, int] = NOTHING
    aborted: list[tuple[AbortedIndex, int, int]] = field(default_factory=list)
    end_offset: int = field(init=False)
    sizes: list[tuple[Segment, int]] = field(init=False)
    new_names: bool = field(init=False)
    folder_done: bool = field(init=False)
    promised_from: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.end_offset = self.chain.head.end_offset
        segments = (*self.closed, self.chain.segments[-1])
        self.sizes = [(segment, segment.size) for segment in segments]
        self.new_names = not all(segment.named for segment in segments)
        for segment in segments:
            index = segment.aborted
            if index is not None and index.size > index.synced_size:
                self.aborted.append((index, index.size, index.crc))
                self.new_names = self.new_names or not index.named
        self.folder_done = not self.new_folder
        self.promised_from = self.sizes[-1][1], self.end_offset

    @property
    def has_names(self) -> bool:
        """Whether more than the bytes of one file are synced, which the journal can't stand for."""
        return self.first_data or self.new_folder or self.new_names or bool(self.closed)

    def run(self) -> None:
        """Sync the files; blocks. Can run in any thread while appends continue.

        Older segments are synced before newer ones, and the folders that name them last.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: a file can't be opened. Nothing is synced for certain.
        """
        env = self.chain.env
        if env.pool.sync_failure is not None:
            raise env.pool.sync_failure
        if self.allocated != NOTHING:
            self._allocate(self.sizes[-1][0])
        for segment, size in self.sizes:
            if size > segment.synced_size:
                self._sync_data(segment)
        folder = self.chain.folder
        try:
            if self.aborted:
                self._sync_aborted()
            for segment in self.closed:
                self._release_allocated(segment)
                self._sync_file(segment, INDEX)
                self._sync_file(segment, TIME_INDEX)
            self._sync_snapshots()
            # A lost file is reported when the partition is opened.
            is_new = self.first_data or not self.folder_done
            if is_new and env.fs.exists(f"{folder}/{METADATA}"):
                env.fs.sync_file(f"{folder}/{METADATA}")
            if not self.folder_done or (not self.new_folder and (self.closed or self.new_names)):
                env.fs.sync_dir(folder)
            if not self.folder_done:
                env.fs.sync_dir(folder.rpartition("/")[0])
        except OSError as error:
            # The partition can be deleted meanwhile. Then it needs no sync.
            if not (isinstance(error, FileNotFoundError) and self.chain.removed):
                raise env.pool.fail_sync(error, folder) from error
        self.done = True

    def begin(self) -> int | None:
        """Return the descriptor of the only file to sync; None if ``run`` must do the work.

        ``allocated`` is to be allocated before. After a descriptor, ``end`` must be called.
        """
        if self.has_names or self.aborted:
            return None
        return self.sizes[-1][0].file.begin_datasync()

    def end(self, failed: int | None) -> None:
        """Take the result of a thread that has synced the descriptor; see ``LogFile.end_datasync``.

        Raises:
            SyncFailedError: the broker must stop.
        """
        self.sizes[-1][0].file.end_datasync(failed)
        self.done = failed == 0

    def note(self, topic_id: bytes) -> Piece:
        """Return what the journal notes when ``SyncState.finish`` has taken this ticket.

        Batches that could not go to the journal, because a file or its name had to be synced, go
        there afterwards if they are few: to restore them if the segment is damaged.
        """
        partition = self.chain.tp.partition
        position, first_offset = self.promised_from
        segment, size = self.sizes[-1]
        length = size - position
        if self.has_names and 0 < length <= LOG_BYTES:
            with suppress(StorageError):  # the segment was removed meanwhile
                data = segment.file.pread_nowait(length, position)
                if data is not None and len(data) == length:
                    return Piece(
                        topic_id,
                        partition,
                        segment.base_offset,
                        position,
                        first_offset,
                        self.end_offset,
                        length,
                        (data,),
                    )
        return Piece(topic_id, partition, 0, 0, 0, self.end_offset, 0)

    def _sync_data(self, segment: Segment) -> None:
        try:
            segment.file.datasync()
        except SyncFailedError:
            raise
        except StorageError:  # the file can't be opened
            if not self._is_removed(segment):
                raise

    def _allocate(self, segment: Segment) -> None:
        """Allocate blocks behind the active segment. The sync works without them too."""
        with unimportant():  # a file that can't be opened: its sync says so, unless it was removed
            segment.file.allocate(*self.allocated)

    def _release_allocated(self, segment: Segment) -> None:
        """Free the blocks behind a closed segment, also those that a process before allocated."""
        self.chain.env.preallocation.forget(segment)
        with unimportant():  # only space on the disk is lost, until the segment is deleted
            segment.file.truncate(segment.size)

    def _sync_aborted(self) -> None:
        indexes = {id(index) for index, _, _ in self.aborted}
        for segment, _ in self.sizes:
            if id(segment.aborted) in indexes:
                self._sync_file(segment, TXN_INDEX)

    def _sync_file(self, segment: Segment, suffix: str) -> None:
        """Sync a file of a segment. A removed segment needs no sync, but the folder does."""
        try:
            self.chain.env.fs.sync_file(segment.path(suffix))
        except FileNotFoundError:
            if not self._is_removed(segment):
                raise

    def _sync_snapshots(self) -> None:
        for segment, _ in self.sizes[1:]:
            # The snapshot that was written when this segment was started. A newer one replaces it.
            with suppress(FileNotFoundError):
                self.chain.env.fs.sync_file(segment.path(SNAPSHOT))

    def _is_removed(self, segment: Segment) -> bool:
        """Return whether the partition or a segment was removed meanwhile."""
        return self.chain.removed or all(each is not segment for each in self.chain.segments)


def sync_name(env: Environment, segment: Segment) -> None:
    """Make the folder's entry for a segment durable; blocks."""
    if not segment.named:
        env.pool.sync_folder(segment.folder)
        segment.named = True


def run_tickets(tickets: Sequence[SyncTicket]) -> None:
    """Run many tickets; blocks. Can run in any thread.

    Each sync of a folder flushes the disk, and creating a topic can create a thousand partitions.
    So many new folders share one sync of the whole file system.

    Raises:
        SyncFailedError, StorageError: see ``SyncTicket.run``.
    """
    new = [ticket for ticket in tickets if ticket.new_folder]
    if len(new) >= MANY_FOLDERS:
        env, parent = new[0].chain.env, new[0].chain.folder.rpartition("/")[0]
        with env.pool.sync_errors(parent):
            all_synced = env.fs.sync_all(parent)
        for ticket in new:
            ticket.folder_done = all_synced
    for ticket in tickets:
        ticket.run()
