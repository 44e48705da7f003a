"""The data folder: lock, format, clean stop, many partitions, deletion, Kafka's small files."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.log.partition.one_partition import NOW, OnePartition
from tests.support import effort
from tests.support.crashfs import CrashingFileSystem
from tests.support.faultyfs import CrashError, FaultyFileSystem
from tests.support.logs import TP, advance, open_log, open_store, read_records, write
from tidemill.clock import ManualClock
from tidemill.log.config.topic import LogConfig
from tidemill.log.errors import (
    DataDirLockedError,
    DataDirLostError,
    DiskFullError,
    FormatVersionError,
    InvalidConfigError,
    StorageError,
    SyncFailedError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.snapshots import snapshot_path
from tidemill.log.store import LogStore

TOPIC_ID = UUID("0f4c5a1e-3d07-4d7c-8a47-7b1a2b3c4d5e")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def one() -> OnePartition:
    """A store on a simulated disk, in which no partition exists yet."""
    return OnePartition()


def add(log: PartitionLog, *, sequence: int | None = None, sync: bool = True) -> int:
    """Append a record, perhaps of a producer; return its offset."""
    producer = (-1, -1, -1) if sequence is None else (1, 0, sequence)
    return write(log, [(b"k", b"v")], NOW, producer=producer, sync=sync)


# --- the folder ----------------------------------------------------------------------------------


def test_a_folder_is_used_by_one_store(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path / "new" / "data", clock)
    with pytest.raises(DataDirLockedError, match="in use"):
        open_store(tmp_path / "new" / "data", clock)
    store.close()
    open_store(tmp_path / "new" / "data", clock).close()


@pytest.mark.parametrize("lose", ["delete", "rename", "replace"])
def test_a_folder_that_disappears_is_noticed(tmp_path: Path, clock: ManualClock, lose: str) -> None:
    folder = tmp_path / "data"
    store = open_store(folder, clock)
    store.check_in_place()
    if lose == "delete":
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "elsewhere")
    if lose == "replace":
        open_store(folder, clock).close()  # nothing keeps another broker from doing that
    with pytest.raises(DataDirLostError, match=r"data was deleted or renamed"):
        store.check_in_place()
    store.close(clean=False)


def test_a_folder_that_cannot_be_looked_at_is_not_lost(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, clock)

    def refuse(path: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    with monkeypatch.context() as patched:
        patched.setattr("tidemill.log.disk.files.os.stat", refuse)
        with pytest.raises(StorageError, match=r"Stale file handle") as caught:
            store.check_in_place()
    assert not isinstance(caught.value, DataDirLostError)
    store.close()


def test_another_format_version_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    open_store(tmp_path, clock).close()
    (tmp_path / "tidemill.format").write_text("99\n")
    with pytest.raises(FormatVersionError, match="99") as caught:
        open_store(tmp_path, clock)
    assert "install that version" in caught.value.hint
    assert (tmp_path / "tidemill.format").read_text() == "99\n"
    (tmp_path / "tidemill.format").write_text("2\n")
    open_store(tmp_path, clock).close()  # the failed start left no lock


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_of_version_1_is_migrated_so_that_no_version_without_a_journal_opens_it(
    tmp_path: Path, clock: ManualClock, clean: bool
) -> None:
    store = open_store(tmp_path, clock)
    log = store.create(TopicPartition("t", 0), LogConfig(), UUID(int=1))
    write(log, [(b"k", b"v")], clock.now_ms(), sync=True)
    store.close(clean)
    (tmp_path / "tidemill.format").write_text("1\n")
    store = open_store(tmp_path, clock)
    assert (tmp_path / "tidemill.format").read_text() == "2\n"
    assert [each.value for each in read_records(store.get(log.tp))] == [b"v"]
    store.close()


@pytest.mark.parametrize("name", ["meta.properties", "topic-0/00000000000000000000.log"])
def test_a_folder_of_apache_kafka_is_refused(tmp_path: Path, clock: ManualClock, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(FormatVersionError, match=r"not a tidemill data folder"):
        open_store(tmp_path, clock)


def test_wrong_defaults_are_refused(tmp_path: Path, clock: ManualClock) -> None:
    open_store(tmp_path, clock).close()
    with pytest.raises(InvalidConfigError):
        LogStore.open(tmp_path, clock=clock, defaults={"no.such": "1"})


def test_a_foreign_folder_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    open_store(tmp_path, clock).close()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "t-007").mkdir()
    store = open_store(tmp_path, clock)
    assert not store.partitions
    store.close()
    assert (tmp_path / "t-007").is_dir()


# --- partitions ----------------------------------------------------------------------------------


def test_written_records_are_readable_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path, clock)
    config = {"internal.segment.bytes": "500"}
    for number in range(20):
        write(open_log(store, config), [(b"k", b"%d" % number)], clock.now_ms(), codec=number % 5)
    store.close()
    store = open_store(tmp_path, clock)
    assert store.clean_start
    assert store.reports == []
    log = store.get(TP)
    assert log.topic_id == UUID(int=1)
    assert [each.value for each in read_records(log)] == [b"%d" % number for number in range(20)]
    store.close()


@pytest.mark.timing
def test_thousands_of_partitions_open_fast_and_hold_no_files(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(tmp_path, clock)
    for number in range(1000):
        log = store.create(TopicPartition("many", number), LogConfig(), TOPIC_ID)
        if number % 20 == 0:
            add(log, sync=False)
    assert len(store.environment.pool) <= 512
    store.close()
    begin = time.perf_counter()
    store = open_store(tmp_path, clock)
    elapsed = time.perf_counter() - begin
    assert len(store.partitions) == 1000
    assert len(store.environment.pool) == 0
    assert elapsed < effort.bound(1, normal=30), "5,000 are to open in well under a second"
    assert read_records(store.get(TopicPartition("many", 20)))[0].value == b"v"
    store.close()


def test_a_partition_is_created_once(one: OnePartition) -> None:
    one.log()
    with pytest.raises(StorageError, match="exists already"):
        one.store.create(TP, LogConfig(), TOPIC_ID)


def test_a_partition_that_does_not_fit_on_the_disk_leaves_nothing(one: OnePartition) -> None:
    one.fs.capacity = one.fs.used() + 10
    with pytest.raises(DiskFullError):
        one.log()
    one.fs.clear_faults()
    assert one.fs.folders("/data") == []
    one.log()


def test_a_deleted_partition_is_removed_immediately_and_its_files_later(one: OnePartition) -> None:
    add(one.log())
    one.store.delete(TP)
    with pytest.raises(KeyError):
        one.store.get(TP)
    with pytest.raises(KeyError):
        one.store.delete(TP)
    (left,) = one.fs.folders("/data")
    assert left.startswith("t-0.")
    assert left.endswith("-delete")
    assert one.log().log_end_offset == 0
    assert one.store.purge_deleted() == 1
    assert one.fs.folders("/data") == ["t-0"]


def test_a_deletion_that_was_interrupted_is_finished_after_the_start(one: OnePartition) -> None:
    add(one.log())
    one.store.delete(TP)
    one.kill()
    assert not one.store.partitions
    one.store.purge_deleted()
    assert one.fs.folders("/data") == []


def test_a_missing_folder_is_reported_after_a_clean_stop(one: OnePartition) -> None:
    add(one.log())
    one.store.close()
    one.fs.remove_tree("/data/t-0")
    one.open()
    assert "missing" in str(one.store.offline[TP])
    one.store.delete(TP)
    assert not one.store.offline


def test_a_partition_that_is_deleted_during_its_sync_keeps_no_file_open(one: OnePartition) -> None:
    log = one.log()
    add(log, sync=False)
    pool = one.store.environment.pool
    pool.pin(log.chain.active.file)
    one.store.delete(TP)
    pool.unpin(log.chain.active.file)
    one.store.purge_deleted()
    assert one.fs.open_handles == 0
    one.store.close()


# --- checkpoints ---------------------------------------------------------------------------------


def test_checkpoints_are_written_where_something_changed(one: OnePartition) -> None:
    add(one.log())
    advance(one.store)
    name = "/data/recovery-point-offset-checkpoint"
    assert one.fs.read_bytes(name).startswith(b"1\n1\nt 0 1\n")
    one.fs.fail("create", times=-1)
    one.store.checkpoint()  # writes nothing
    one.fs.clear_faults()


def test_a_checkpoint_on_a_full_disk_keeps_the_old_one(one: OnePartition) -> None:
    log = one.log()
    add(log)
    advance(one.store)
    add(log)
    one.fs.capacity = one.fs.used()
    one.store.checkpoint()  # the partition is busy: its turn comes when it is idle
    with pytest.raises(DiskFullError):
        one.store.checkpoint()
    assert log.recovery_point == 1
    one.fs.clear_faults()
    advance(one.store)
    assert log.recovery_point == 2


def test_a_stop_on_a_full_disk_is_not_clean(one: OnePartition) -> None:
    add(one.log())
    one.fs.capacity = one.fs.used()
    with pytest.raises(DiskFullError):
        one.store.close()
    one.fs.clear_faults()
    assert not one.fs.exists("/data/clean-stop.json")
    one.open()
    assert len(read_records(one.log())) == 1


# --- snapshots of producers ----------------------------------------------------------------------


def test_old_producer_snapshots_are_removed(one: OnePartition) -> None:
    for sequence in range(8):
        add(one.log(), sequence=sequence)
        advance(one.store)
    one.store.checkpoint()  # they go once the one that replaces them is synced
    snapshots = [name for name in one.fs.files("/data/t-0") if name.endswith(".snapshot")]
    assert len(snapshots) == 2


class OnlyInSnapshots(OnePartition):
    """A log whose only record of a producer is in snapshots: its batches were deleted."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        super().__init__(fs)
        log = self.log()
        add(log, sequence=0)
        log.roll(NOW)
        add(log)
        for _ in range(3):
            self.store.checkpoint()
        log.delete_records_before(1)

    def check(self) -> None:
        """Start again, and check that a batch which the producer sends again is a duplicate."""
        self.open()
        assert add(self.log(), sequence=0) == 0


@pytest.mark.parametrize("ordered", [True, False], ids=["a journal", "as POSIX"])
def test_a_power_cut_keeps_a_snapshot_of_producers_with_deleted_records(ordered: bool) -> None:
    for seed in range(20):
        fs = FaultyFileSystem()
        fs.ordered = ordered
        one = OnlyInSnapshots(fs)
        for _ in range(seed % 4 + 1):
            add(one.log())
            advance(one.store)
        fs.power_cut(random.Random(seed))
        one.check()


@pytest.mark.parametrize("event", ["stop", "roll", "recovery"])
def test_a_power_cut_keeps_a_snapshot_of_an_idle_log(event: str) -> None:
    for seed in range(40):
        fs = CrashingFileSystem()
        one = OnlyInSnapshots(fs)
        add(one.log())
        for _ in range(3):
            one.store.checkpoint()
        if event == "stop":
            one.store.close()
        elif event == "roll":
            one.log().roll(NOW)
            one.store.checkpoint()
        else:
            fs.kill()
            fs.arm(seed)
            with contextlib.suppress(CrashError):
                one.open()
            fs.arm(None)
        fs.power_cut(random.Random(seed))
        one.check()


def test_a_snapshot_stays_until_a_newer_recovery_point_is_on_disk() -> None:
    one = OnlyInSnapshots(FaultyFileSystem())
    one.store.checkpoint()
    one.fs.fail("write", errno.ENOSPC, path="recovery-point", times=-1)
    failed = 0
    for _ in range(4):
        add(one.log())
        for _ in range(2):
            try:
                one.store.checkpoint()
            except DiskFullError:
                failed += 1
    assert failed > 2
    one.fs.clear_faults()
    one.fs.kill()
    one.check()


def test_snapshots_are_synced_where_checkpoints_are_written(one: OnePartition) -> None:
    log = one.log()
    add(log, sequence=0)
    syncs = one.fs.syncs
    for _ in range(3):
        log.advance_recovery_point()
    assert (log.recovery_point, one.fs.syncs) == (1, syncs)
    one.fs.fail("sync", path=".snapshot")
    with pytest.raises(SyncFailedError):
        one.store.checkpoint_writes()()


def writes_with_a_snapshot(one: OnePartition) -> Callable[[], None]:
    """Return the work of a checkpoint that syncs the snapshot at offset 1."""
    log = one.log()
    add(log, sequence=0)
    for _ in range(2):
        log.advance_recovery_point()
    return one.store.checkpoint_writes()


def test_a_topic_can_be_deleted_before_its_snapshot_is_synced(one: OnePartition) -> None:
    writes = writes_with_a_snapshot(one)
    one.store.delete(TP)
    writes()


def test_a_snapshot_can_be_removed_before_a_slow_thread_syncs_it(one: OnePartition) -> None:
    slow = writes_with_a_snapshot(one)
    for sequence in range(1, 4):
        add(one.log(), sequence=sequence)
        for _ in range(3):
            one.store.checkpoint()
    assert not one.fs.exists(snapshot_path(one.log().chain.folder, 1))
    slow()
