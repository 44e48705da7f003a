"""The data folder: open, create, delete, checkpoint and close all its partitions.

After a clean stop, partitions are opened by the manifest and no log is read. Otherwise each
partition is recovered. Knows the names of topics, and no configs but the defaults: the engine sets
each partition's configs after it has read its catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from uuid import UUID, uuid4

from tidemill.clock import Clock
from tidemill.log.config.parse import parse_config
from tidemill.log.config.topic import LogConfig
from tidemill.log.deletions import delete_due, due, is_covered, rename_folder
from tidemill.log.disk.checkpoints import TopicNote, encode_metadata
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem, Lock, RealFileSystem, storage_errors
from tidemill.log.disk.index import MapCache, most_maps
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import (
    DataDirLostError,
    DiskFullError,
    JournalDamagedError,
    StorageError,
    SyncFailedError,
)
from tidemill.log.journal.checkpoint import is_in_use
from tidemill.log.journal.journal import Journal
from tidemill.log.journal.reading import JournalContent, read_journal
from tidemill.log.names import TopicPartition, folder_name, parse_folder_name
from tidemill.log.offset_checkpoints import OffsetCheckpoints
from tidemill.log.opening import open_partition
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.partition import OpenedPartition, PartitionLog
from tidemill.log.partition.sync import METADATA, run_tickets
from tidemill.log.recovery.clean_stop import (
    manifest_entry,
    sync_offline,
    take_manifest,
    write_manifest,
)
from tidemill.log.versions import FORMAT_VERSION, check_format, write_format

LOCK_FILE = ".lock"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"


class LogStore:
    """All partitions of one data folder. The folder is locked while the store is open.

    Attributes:
        defaults: broker-level configs that partitions are opened with.
        clean_start: whether the last stop was clean.
        journal: the journal. It can be used after ``Journal.prepare``.
        environment: the environment that all partitions share.
        partitions: the live partitions; a read-only view.
        offline: the partitions that can't be used, each with its error.
        reports: the repairs since the store was opened.
    """

    def __init__(
        self,
        env: Environment,
        path: str,
        lock: Lock,
        defaults: Mapping[str, str],
        journal_bytes: int,
    ) -> None:
        """Only ``open`` calls this."""
        self.path = path
        self.defaults = dict(defaults)
        self.clean_start = False
        self.journal = Journal(env, path, journal_bytes)
        self.environment = self._env = env
        self._lock = lock
        self._partitions: dict[TopicPartition, PartitionLog] = {}
        self.partitions: Mapping[TopicPartition, PartitionLog] = MappingProxyType(self._partitions)
        self.offline: Mapping[TopicPartition, StorageError] = env.offline
        self.reports = env.reports
        self._checkpoints = OffsetCheckpoints(env, path)
        env.is_stored_sparse = self._checkpoints.has_stored_sparse
        env.checkpoint_writes = self.checkpoint_writes
        self._deleted_folders: list[str] = []

    @classmethod
    def open(
        cls,
        data_dir: Path | str,
        *,
        clock: Clock,
        fs: FileSystem | None = None,
        defaults: Mapping[str, str] | None = None,
        max_open_files: int = 512,
        producer_expiry_ms: int = 86_400_000,
        journal_bytes: int = 64 << 20,
    ) -> LogStore:
        """Create the folder if necessary, lock it, and open all partitions in it.

        Args:
            defaults: broker-level topic configs (``log.config``), for partitions whose own configs
                are not known yet.
            max_open_files: most segment files that are open at the same time.
            producer_expiry_ms: milliseconds without an append after which an idempotent producer is
                removed.
            journal_bytes: most bytes of the journal's files.

        Raises:
            DataDirLockedError: another process uses the folder.
            FormatVersionError: the folder has another format version, or other data.
            InvalidConfigError: ``defaults`` are invalid.
            JournalDamagedError: acknowledged records can be missing in any partition.
            SyncFailedError, StorageError: a file operation failed. Damage to a single partition is
                not an error: see ``offline``.
        """
        fs = RealFileSystem() if fs is None else fs
        path = str(data_dir).rstrip("/") or "/"
        maps = MapCache(fs, most_maps(max_open_files))
        env = Environment(fs, HandlePool(fs, max_open_files), maps, clock, producer_expiry_ms)
        with storage_errors("opening", path):
            fs.makedirs(path)
            if isinstance(fs, RealFileSystem):
                env.preallocation.open(path)
            lock = fs.lock(f"{path}/{LOCK_FILE}")
            try:
                store = cls(env, path, lock, defaults or {}, journal_bytes)
                version = check_format(fs, path)
                store._open_partitions(is_older=version != FORMAT_VERSION)
                if version != FORMAT_VERSION:
                    write_format(fs, path)  # before the journal has anything
            except BaseException:
                env.pool.close_all()
                lock.close()
                raise
        return store

    def check_in_place(self) -> None:
        """Check that the data folder is where it was.

        Raises:
            DataDirLostError: it was deleted or renamed.
            StorageError: that can't be found out.
        """
        with storage_errors("looking for", self.path):
            if not self._lock.is_in_place():
                raise DataDirLostError(f"the data folder {self.path} was deleted or renamed")

    # --- partitions ------------------------------------------------------------------------------

    def has_folder(self, tp: TopicPartition) -> bool:
        """Return whether a partition has a folder, which is perhaps damaged."""
        return self._env.fs.exists(f"{self.path}/{folder_name(tp)}")

    def is_alone(self, tp: TopicPartition) -> bool:
        """Return whether there are no other partitions, neither online nor offline."""
        return {*self._partitions, *self._env.offline} <= {tp}

    def get(self, tp: TopicPartition) -> PartitionLog:
        """Return a live partition.

        Raises:
            KeyError: the partition does not exist.
            StorageError: the partition is offline.
        """
        failure = self._env.offline.get(tp)
        if failure is not None:
            raise failure.with_traceback(None)
        return self._partitions[tp]

    # --- opening ---------------------------------------------------------------------------------

    def _open_partitions(self, *, is_older: bool) -> None:
        manifest = take_manifest(self._env, self.path)
        if is_older and is_in_use(self._env.fs, self.path):
            manifest = None  # of a version that has ignored the journal, which can have more
        self.clean_start = manifest is not None
        config = parse_config({}, self.defaults)
        found = set()
        for name in self._env.fs.folders(self.path):
            if name.endswith(DELETE_SUFFIX):
                self._deleted_folders.append(f"{self.path}/{name}")
                continue
            tp = parse_folder_name(name)
            if tp is not None and folder_name(tp) == name:
                found.add(tp)
        self._checkpoints.load(found)
        proven = JournalContent()
        if found - set(manifest or ()):
            proven = read_journal(self._env, self.path, is_clean=self.clean_start)
            if proven.unproven:
                raise JournalDamagedError(
                    "the journal is damaged, and records that it has lost can be missing in any "
                    f"partition: {'; '.join(proven.unproven)}"
                )
        for tp in sorted(found):
            entry = None if manifest is None else manifest.get(tp)
            folder = f"{self.path}/{folder_name(tp)}"
            log = open_partition(self._env, tp, folder, config, entry, self._checkpoints, proven)
            if log is not None:
                self._partitions[tp] = log
        if manifest is None and found:
            self._env.fs.sync_dir(self.path)
        if manifest is None or not self._checkpoints.is_current:
            self.checkpoint_writes()()
        self.journal.discard()
        if manifest is None:
            delete_due(self._env, self._checkpoints.stored_starts, 1 << 30)
        for tp in set(manifest or ()) - found:
            self._env.offline[tp] = StorageError(
                f"{self.path}/{folder_name(tp)} is missing, but it was there at the last stop",
                hint="Restore the folder, or delete the topic.",
            )

    # --- creating and deleting partitions --------------------------------------------------------

    def create(
        self,
        tp: TopicPartition,
        config: LogConfig,
        topic_id: UUID,
        note: TopicNote | None = None,
    ) -> PartitionLog:
        """Create an empty partition.

        The first sync makes it durable. Until then only the engine's catalog has it.

        Args:
            note: what the folder keeps about its topic.

        Raises:
            DiskFullError, StorageError: the partition exists, or a file can't be created.
        """
        if tp in self._partitions or tp in self._env.offline:
            raise StorageError(f"partition {tp} exists already")
        self._checkpoints.forget(tp)
        if self._checkpoints.is_stale(tp):
            self.checkpoint_writes()()
        env, folder = self._env, f"{self.path}/{folder_name(tp)}"
        with storage_errors("creating", folder):
            env.fs.mkdir(folder)
            try:
                env.fs.write_bytes(
                    f"{folder}/{METADATA}", encode_metadata(topic_id, tp.partition, note)
                )
                segment = Segment.create(env, folder, 0, env.clock.now_ms())
            except BaseException:
                env.fs.remove_tree(folder)
                raise
        chain = SegmentChain(env, tp, folder, [segment], 0, 0)
        chain.head.changed = True
        log = PartitionLog(OpenedPartition(chain, config, 0, topic_id, new_folder=True))
        self._partitions[tp] = log
        return log

    def delete(self, tp: TopicPartition) -> None:
        """Delete a live or offline partition. Its folder is renamed now and removed later.

        Raises:
            KeyError: the partition does not exist.
            StorageError: the folder can't be renamed.
        """
        with self._leaving(tp, "deleting", DELETE_SUFFIX) as (log, folder, target):
            if self._env.fs.exists(folder):
                rename_folder(self._env, log, folder, target)
                self._deleted_folders.append(target)

    def set_aside(self, tp: TopicPartition) -> str:
        """Remove a partition from the store, but keep its folder; return the folder's new path.

        This is for a folder with records that belongs to no topic. It is never deleted.

        Raises:
            KeyError: the partition does not exist.
            StorageError: the folder can't be renamed.
        """
        with self._leaving(tp, "setting aside", STRAY_SUFFIX) as (log, folder, target):
            rename_folder(self._env, log, folder, target)
            self._env.fs.sync_dir(self.path)
        return target

    @contextmanager
    def _leaving(
        self, tp: TopicPartition, doing: str, suffix: str
    ) -> Iterator[tuple[PartitionLog | None, str, str]]:
        """Yield log, folder and new path of a partition; forget it once its folder was renamed."""
        log = self._partitions.get(tp)
        if log is None and tp not in self._env.offline:
            raise KeyError(tp)
        folder = f"{self.path}/{folder_name(tp)}"
        target = f"{self.path}/{folder_name(tp)[:200]}.{uuid4().hex}{suffix}"
        with storage_errors(doing, folder):
            yield log, folder, target
        if log is not None:
            log.moved(target)
        self._partitions.pop(tp, None)
        self._env.offline.pop(tp, None)
        self._checkpoints.forget(tp)

    def sync_folder(self) -> None:
        """Make the creation, renaming and deletion of partitions' folders durable; blocks.

        Raises:
            SyncFailedError: the broker must stop.
        """
        self._env.pool.sync_folder(self.path)

    def mark_offline(self, tp: TopicPartition, error: StorageError) -> None:
        """Record that a partition that should exist can't be used, with its error."""
        self._env.offline[tp] = error

    def forget_missing(self) -> None:
        """Drop the offsets of partitions that have no folder and belong to no topic.

        The engine has marked the partitions of its topics that have no folder as offline.
        """
        known = {*self._partitions, *self._env.offline}
        for tp in self._checkpoints.partitions() - known:
            self._checkpoints.forget(tp)

    def must_store_starts(self) -> bool:
        """Return whether files can be deleted only after ``checkpoint_writes``."""
        starts = self._checkpoints.stored_starts
        return not all(is_covered(each, starts) for each in due(self._env))

    def purge_deleted(self, max_items: int = 1 << 30) -> int:
        """Remove the files and folders of deleted segments and partitions that are due.

        Args:
            max_items: most files and folders to remove in this call, because it blocks.

        Returns:
            The number of removed files and folders.

        Raises:
            StorageError: a file or folder can't be removed. The next call tries it again.
        """
        env = self._env
        if self.must_store_starts():
            with suppress(DiskFullError):
                self.checkpoint_writes()()
        with storage_errors("removing deleted files in", self.path):
            removed = delete_due(env, self._checkpoints.stored_starts, max_items)
            while self._deleted_folders and removed < max_items:
                if env.fs.exists(self._deleted_folders[0]):
                    env.fs.remove_tree(self._deleted_folders[0])
                del self._deleted_folders[0]
                removed += 1
        return removed

    # --- checkpointing and closing ---------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write the recovery points and log starts that have changed, durably.

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError, StorageError: a file can't be written. The old one is kept.
        """
        failure: StorageError | None = None
        for log in self._partitions.values():
            try:
                log.advance_recovery_point()
            except StorageError as error:
                failure = failure or error
        self.checkpoint_writes()()
        if failure is not None:
            raise failure

    def checkpoint_writes(self) -> Callable[[], None]:
        """Return a function that writes the current recovery points and log starts.

        It can be called in any thread; see ``OffsetCheckpoints.writes``.
        """
        self._drop_notes()
        return self._checkpoints.writes(self._partitions)

    def _drop_notes(self) -> None:
        """Drop the notes in the journal that are covered by the recovery points on disk."""
        stored = self._checkpoints.stored_points
        for log, offset in self.journal.notes.noted():
            if isinstance(log, PartitionLog) and offset <= stored.get(log.tp, 0):
                self.journal.notes.forget(log)

    def close(self, clean: bool = True) -> None:
        """Close everything and release the lock.

        A clean stop syncs all logs, writes indexes and snapshots, writes checkpoints, and only then
        the manifest, which makes the stop clean.

        Args:
            clean: False only closes files, so that the next start recovers all partitions.

        Raises:
            SyncFailedError, StorageError: the stop is not clean. Everything is closed nevertheless.
        """
        try:
            if clean:
                self._stop()
        finally:
            self.journal.close()
            self._env.pool.close_all()
            self._lock.close()

    def _stop(self) -> None:
        failure: StorageError | None = self._env.pool.sync_failure
        if failure is not None:
            raise failure
        self._env.preallocation.close()
        entries = []
        live = [log for log in self._partitions.values() if log.failure is None]
        tickets = [(log, ticket) for log in live if (ticket := log.begin_sync()) is not None]
        run_tickets([ticket for _, ticket in tickets])
        for log, ticket in tickets:
            log.finish_sync(ticket)
        for log in live:
            try:
                log.stop()
                entries.append(manifest_entry(log))
            except SyncFailedError:
                raise
            except StorageError as error:
                failure = failure or error
        self.checkpoint_writes()()
        if sync_offline(self._partitions.values(), self.journal) and len(entries) == len(live):
            self.journal.discard()
        write_manifest(self._env, self.path, entries)
        if failure is not None:
            raise failure
