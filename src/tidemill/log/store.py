"""The data folder: all partitions, opened, created, deleted, checkpointed and closed.

After a clean stop the manifest says what each partition holds, and opening reads no log; otherwise
each partition is recovered. Knows no topics beyond their names, and no configs but defaults: the
broker sets each partition's own after it has read its catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from uuid import UUID, uuid4

from tidemill.clock import Clock
from tidemill.errors import StorageError, SyncFailedError
from tidemill.log.checkpoints import ManifestEntry, decode_metadata, encode_metadata
from tidemill.log.clean_stop import open_stopped, take_manifest, write_manifest
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment, Report
from tidemill.log.files import FileSystem, Lock, RealFileSystem, storage_error
from tidemill.log.format import check_format
from tidemill.log.handles import HandlePool
from tidemill.log.index import MapCache
from tidemill.log.names import TopicPartition, folder_name, parse_folder_name
from tidemill.log.offset_checkpoints import OffsetCheckpoints
from tidemill.log.partition import PartitionLog
from tidemill.log.recovery import recover_partition
from tidemill.log.segment import Segment
from tidemill.log.syncing import METADATA, run_tickets

LOCK_FILE = ".lock"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"


class LogStore:
    """All partitions of one data folder, which is locked while the store is open.

    Attributes:
        path: the folder.
        defaults: broker-level configs, under which partitions are opened.
        clean_start: the last stop was clean.
    """

    def __init__(self, env: Environment, path: str, lock: Lock, defaults: Mapping[str, str]):
        """For ``open`` only."""
        self.path = path
        self.defaults = dict(defaults)
        self.clean_start = False
        self._env = env
        self._lock = lock
        self._partitions: dict[TopicPartition, PartitionLog] = {}
        self._view = MappingProxyType(self._partitions)
        self._checkpoints = OffsetCheckpoints(env, path)
        self._doomed_folders: list[str] = []

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
    ) -> LogStore:
        """Lock the folder, creating it if need be, and open all partitions in it.

        Args:
            defaults: broker-level topic configs (``log.config``), for partitions whose own are not
                known yet.
            max_open_files: bound on segment files held open.
            producer_expiry_ms: idempotent producers are forgotten after so much silence.

        Raises:
            DataDirLockedError: another process uses it.
            FormatVersionError: it is of another version, or not tidemill's.
            InvalidConfigError: ``defaults`` are wrong.
            SyncFailedError, StorageError: the disk refuses. Damage to a single partition is no
                error: see ``offline``.
        """
        fs = RealFileSystem() if fs is None else fs
        path = str(data_dir).rstrip("/") or "/"
        env = Environment(
            fs, HandlePool(fs, max_open_files), MapCache(fs), clock, producer_expiry_ms
        )
        try:
            fs.makedirs(path)
            lock = fs.lock(f"{path}/{LOCK_FILE}")
            try:
                store = cls(env, path, lock, defaults or {})
                check_format(fs, path)
                store._open_partitions()
            except BaseException:
                env.pool.close_all()
                lock.close()
                raise
        except OSError as error:
            raise storage_error(error, "opening", path) from error
        return store

    # --- looking at it ---------------------------------------------------------------------------

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionLog]:
        """Live partitions; a read-only view."""
        return self._view

    @property
    def offline(self) -> Mapping[TopicPartition, StorageError]:
        """Partitions that can't be used, and why."""
        return self._env.offline

    @property
    def reports(self) -> list[Report]:
        """What was repaired since the store was opened."""
        return self._env.reports

    @property
    def environment(self) -> Environment:
        """What the partitions share."""
        return self._env

    def get(self, tp: TopicPartition) -> PartitionLog:
        """A live partition.

        Raises:
            KeyError: there is no such partition.
            StorageError: it is offline.
        """
        failure = self._env.offline.get(tp)
        if failure is not None:
            raise failure
        return self._partitions[tp]

    # --- opening ---------------------------------------------------------------------------------

    def _open_partitions(self) -> None:
        manifest = take_manifest(self._env, self.path)
        self.clean_start = manifest is not None
        self._checkpoints.load()
        config = LogConfig.parse({}, self.defaults)
        found = set()
        for name in self._env.fs.folders(self.path):
            if name.endswith(DELETE_SUFFIX):
                self._doomed_folders.append(f"{self.path}/{name}")
                continue
            tp = parse_folder_name(name)
            if tp is not None and folder_name(tp) == name:
                found.add(tp)
                entry = None if manifest is None else manifest.get(tp)
                self._open_partition(tp, f"{self.path}/{name}", config, entry)
        for tp in self._checkpoints.partitions() - found - set(manifest or ()):
            self._checkpoints.forget(tp)
        if manifest is None and found:
            self._env.fs.sync_dir(self.path)
            self.checkpoint_writes()()
        for tp in set(manifest or ()) - found:
            self._env.offline[tp] = StorageError(
                f"{self.path}/{folder_name(tp)} is missing, but was there at the last stop",
                hint="Restore the folder, or delete the topic.",
            )

    def _open_partition(
        self, tp: TopicPartition, folder: str, config: LogConfig, entry: ManifestEntry | None
    ) -> None:
        try:
            log = None if entry is None else open_stopped(self._env, folder, config, entry)
            if log is None:
                log = recover_partition(
                    self._env,
                    tp,
                    folder,
                    config,
                    recovery_point=self._checkpoints.recovery_points.get(tp, 0),
                    log_start_offset=self._checkpoints.log_starts.get(tp, 0),
                    topic_id=self._read_topic_id(tp, folder),
                )
        except SyncFailedError:
            raise
        except StorageError as error:
            self._env.offline[tp] = error
            return
        log.first_dirty_offset = self._checkpoints.first_dirty.get(tp, 0)
        self._partitions[tp] = log

    def _read_topic_id(self, tp: TopicPartition, folder: str) -> UUID | None:
        path = f"{folder}/{METADATA}"
        if not self._env.fs.exists(path):
            return None
        try:
            return decode_metadata(self._env.fs.read_bytes(path))
        except ValueError as error:
            # It is synced with the first write; torn, there was none.
            self._env.reports.append(Report(tp, path, f"topic id unreadable: {error}"))
            return None

    # --- partitions come and go ------------------------------------------------------------------

    def create(self, tp: TopicPartition, config: LogConfig, topic_id: UUID) -> PartitionLog:
        """Create an empty partition.

        It is certain to survive a power cut after its first sync; until then the broker's catalog
        is what knows of it.

        Raises:
            StorageError: it exists already, the disk is full or refuses.
        """
        if tp in self._partitions or tp in self._env.offline:
            raise StorageError(f"partition {tp} exists already")
        if self._checkpoints.is_stale(tp):
            self.checkpoint_writes()()
        env, folder = self._env, f"{self.path}/{folder_name(tp)}"
        try:
            env.fs.mkdir(folder)
            try:
                env.fs.write_bytes(f"{folder}/{METADATA}", encode_metadata(topic_id))
                segment = Segment.create(env, folder, 0, env.clock.now_ms())
            except BaseException:
                env.fs.remove_tree(folder)
                raise
        except OSError as error:
            raise storage_error(error, "creating", folder) from error
        log = PartitionLog(
            env,
            tp,
            folder,
            config,
            [segment],
            log_start_offset=0,
            log_end_offset=0,
            recovery_point=0,
            topic_id=topic_id,
            new_folder=True,
        )
        log.changed = True
        self._partitions[tp] = log
        return log

    def delete(self, tp: TopicPartition) -> None:
        """Delete a partition, live or offline: its folder is renamed now and removed later.

        Raises:
            KeyError: there is no such partition.
            StorageError: the file system refuses.
        """
        log = self._partitions.get(tp)
        if log is None and tp not in self._env.offline:
            raise KeyError(tp)
        folder = f"{self.path}/{folder_name(tp)}"
        target = f"{self.path}/{folder_name(tp)[:200]}.{uuid4().hex}{DELETE_SUFFIX}"
        try:
            if self._env.fs.exists(folder):
                if log is not None:
                    log.close()
                self._env.fs.rename(folder, target)
                self._doomed_folders.append(target)
        except OSError as error:
            raise storage_error(error, "deleting", folder) from error
        if log is not None:
            log.moved(target)
        self._partitions.pop(tp, None)
        self._env.offline.pop(tp, None)
        self._checkpoints.forget(tp)

    def set_aside(self, tp: TopicPartition) -> str:
        """Take a partition out of the store and keep its folder, renamed; its new path.

        For folders that hold records and that nothing owns: they are never deleted by themselves.

        Raises:
            KeyError: there is no such live partition.
            StorageError: the file system refuses.
        """
        log = self._partitions[tp]
        folder = f"{self.path}/{folder_name(tp)}"
        target = f"{self.path}/{folder_name(tp)[:200]}.{uuid4().hex}{STRAY_SUFFIX}"
        try:
            log.close()
            self._env.fs.rename(folder, target)
            self._env.fs.sync_dir(self.path)
        except OSError as error:
            raise storage_error(error, "setting aside", folder) from error
        log.moved(target)
        del self._partitions[tp]
        self._checkpoints.forget(tp)
        return target

    def mark_offline(self, tp: TopicPartition, error: StorageError) -> None:
        """Remember that a partition that should be there can't be used, and why."""
        self._env.offline[tp] = error

    def purge_deleted(self, max_items: int = 1 << 30) -> int:
        """Remove files and folders of deleted segments and partitions whose time has come.

        Args:
            max_items: most to remove in this call, because it blocks.

        Returns:
            How many were removed.

        Raises:
            StorageError: one can't be removed; it is tried again next time.
        """
        env = self._env
        now = env.clock.monotonic_ms()
        removed = 0
        due = [each for each in env.doomed if each[0] <= now][:max_items]
        try:
            for each in due:
                if env.fs.exists(each[1]):
                    env.fs.remove(each[1])
                env.doomed.remove(each)
                removed += 1
            while self._doomed_folders and removed < max_items:
                if env.fs.exists(self._doomed_folders[0]):
                    env.fs.remove_tree(self._doomed_folders[0])
                del self._doomed_folders[0]
                removed += 1
        except OSError as error:
            raise storage_error(error, "removing deleted files in", self.path) from error
        return removed

    # --- checkpoints and the end -----------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write recovery points and log starts, durably, where they have changed.

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError, StorageError: some could not be written; the old ones stay good.
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
        """Recovery points and log starts as they are now, to be written by calling the result, in
        any thread: see ``OffsetCheckpoints.writes``.
        """
        return self._checkpoints.writes(self._partitions)

    def close(self, clean: bool = True) -> None:
        """Close everything and release the lock.

        The order of a clean stop: sync all logs, write indexes and snapshots, write checkpoints,
        and only then the manifest, which is the mark of a clean stop.

        Args:
            clean: False only closes files: the next start recovers.

        Raises:
            SyncFailedError, StorageError: the stop is not clean; all is closed nevertheless.
        """
        try:
            if clean:
                self._stop()
        finally:
            self._env.pool.close_all()
            self._lock.close()

    def _stop(self) -> None:
        failure: StorageError | None = self._env.pool.sync_failure
        if failure is not None:
            raise failure
        entries = []
        live = [log for log in self._partitions.values() if log.failure is None]
        tickets = [(log, ticket) for log in live if (ticket := log.begin_sync()) is not None]
        run_tickets([ticket for _, ticket in tickets])
        for log, ticket in tickets:
            log.finish_sync(ticket)
        for log in live:
            try:
                log.stop()
                entries.append(log.manifest_entry())
            except SyncFailedError:
                raise
            except StorageError as error:
                failure = failure or error
        self.checkpoint_writes()()
        write_manifest(self._env, self.path, entries)
        if failure is not None:
            raise failure
