"""Group commit: what one sync covers, as a piece of work for another thread.

Knows files and folders to sync; who waits for it is the broker's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.errors import StorageError, SyncFailedError
from tidemill.log.aborted import AbortedIndex
from tidemill.log.environment import Environment
from tidemill.log.names import INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX
from tidemill.log.segment import Segment

if TYPE_CHECKING:
    from tidemill.log.partition import PartitionLog

METADATA = "partition.metadata"

MANY_FOLDERS = 8
"""New folders from which on one sync of the whole file system is cheaper."""


class SyncTicket:
    """All that was appended to a partition when the ticket was drawn.

    Attributes:
        end_offset: the high watermark once it is done.
        sizes: (segment, size) of each segment with unsynced bytes, the active one last.
        aborted: (index of aborted transactions, size) of these segments, where it is unsynced.
        closed: segments that were rolled since the last sync: their indexes are synced too.
        new_folder: the folder and its entry in the data folder may never have been synced.
        new_names: the folder names segments that it may not name on disk.
        first_data: nothing of the partition was synced before.
        done: ``run`` succeeded.
    """

    __slots__ = (
        "_env",
        "_log",
        "aborted",
        "closed",
        "done",
        "end_offset",
        "first_data",
        "folder_done",
        "new_folder",
        "new_names",
        "sizes",
    )

    def __init__(
        self,
        log: PartitionLog,
        env: Environment,
        closed: list[Segment],
        active: Segment,
        new_folder: bool,
    ) -> None:
        self._log = log
        self._env = env
        self.end_offset = log.log_end_offset
        self.closed = closed
        self.sizes = [(segment, segment.size) for segment in (*closed, active)]
        self.aborted: list[tuple[AbortedIndex, int]] = []
        self.new_folder = new_folder
        self.new_names = not all(segment.named for segment, _ in self.sizes)
        for segment, _ in self.sizes:
            index = segment.aborted
            if index is not None and index.size > index.synced_size:
                self.aborted.append((index, index.size))
                self.new_names = self.new_names or not index.named
        self.first_data = log.high_watermark == 0 and self.end_offset > 0
        self.folder_done = not new_folder
        self.done = False

    @property
    def environment(self) -> Environment:
        """Of the partition."""
        return self._env

    @property
    def folder(self) -> str:
        """The partition's folder."""
        return self._log.folder

    def run(self) -> None:
        """Sync; blocks. System calls only: may run in any thread while appends go on.

        The order: older segments before newer ones, then the folders that name them.

        Raises:
            SyncFailedError: the broker must stop.
            StorageError: a file can't be opened; nothing is synced for certain.
        """
        failure = self._env.pool.sync_failure
        if failure is not None:
            raise failure
        for segment, size in self.sizes:
            if size > segment.synced_size:
                self._sync_data(segment)
        folder = self._log.folder
        try:
            if self.aborted:
                self._sync_aborted()
            for segment in self.closed:
                self._env.fs.sync_file(segment.path(INDEX))
                self._env.fs.sync_file(segment.path(TIME_INDEX))
            self._sync_snapshots()
            if self.first_data or not self.folder_done:
                self._env.fs.sync_file(f"{folder}/{METADATA}")
            if not self.folder_done or (not self.new_folder and (self.closed or self.new_names)):
                self._env.fs.sync_dir(folder)
            if not self.folder_done:
                self._env.fs.sync_dir(folder.rpartition("/")[0])
        except OSError as error:
            # Topics and segments may be deleted while this runs: their files need no sync.
            if not (isinstance(error, FileNotFoundError) and self._is_gone()):
                raise self._env.pool.fail_sync(error, folder) from error
        self.done = True

    def _sync_data(self, segment: Segment) -> None:
        try:
            segment.file.datasync()
        except SyncFailedError:
            raise
        except StorageError:  # it can't be opened
            if not self._is_gone():
                raise

    def _sync_aborted(self) -> None:
        indexes = {id(index) for index, _ in self.aborted}
        for segment, _ in self.sizes:
            if id(segment.aborted) in indexes:
                self._env.fs.sync_file(segment.path(TXN_INDEX))

    def _sync_snapshots(self) -> None:
        for segment, _ in self.sizes[1:]:
            try:  # the one that was written when this segment was started
                self._env.fs.sync_file(segment.path(SNAPSHOT))
            except FileNotFoundError:
                continue  # a newer one has replaced it

    def _is_gone(self) -> bool:
        live = {id(segment) for segment in self._log.segments}
        return self._log.removed or any(id(segment) not in live for segment, _ in self.sizes)


def run_tickets(tickets: Sequence[SyncTicket]) -> None:
    """Run many tickets; blocks, and may run in any thread.

    Each sync of a folder costs a flush of the disk, and topics of a thousand partitions are created
    at once: so where there are many new folders, they share one sync of the file system.

    Raises:
        SyncFailedError, StorageError: as ``SyncTicket.run``.
    """
    new = [ticket for ticket in tickets if ticket.new_folder]
    if len(new) >= MANY_FOLDERS:
        env, parent = new[0].environment, new[0].folder.rpartition("/")[0]
        try:
            env.fs.sync_all(parent)
        except OSError as error:
            raise env.pool.fail_sync(error, parent) from error
        for ticket in new:
            ticket.folder_done = True
    for ticket in tickets:
        ticket.run()
