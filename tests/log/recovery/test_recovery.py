"""Recovery after an unclean stop: repairs that are reported, and damage that is refused."""

from __future__ import annotations

import errno
import random
from uuid import UUID

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, advance, open_log, open_store, read_records, write
from tidemill.clock import ManualClock
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import CorruptLogError, SyncFailedError, TooManyOpenFilesError
from tidemill.log.format.batch import iter_headers
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.recovery.inspect import Inspection
from tidemill.log.steps import run_steps
from tidemill.log.store import LogStore

CONFIGS = {"internal.segment.bytes": "1000", "index.interval.bytes": "100", "retention.ms": "-1"}
OTHER = TopicPartition("other", 0)
FOLDER = "/data/t-0"


class World:
    """A store that can crash and be opened again."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.open()

    def open(self) -> None:
        self.store: LogStore = open_store("/data", self.clock, self.fs)

    @property
    def log(self) -> PartitionLog:
        return open_log(self.store, CONFIGS)

    def fill(self, batches: int, *, sync: bool = True, size: int = 100) -> None:
        log = self.log
        for _ in range(batches):
            self.clock.advance(10)
            value = b"%d" % log.log_end_offset
            write(log, [(b"k", value.ljust(size))], self.clock.now_ms(), sync=sync)

    def crash(self) -> None:
        self.fs.kill()
        self.open()

    def flip(self, path: str, position: int, mask: int = 1) -> None:
        self.fs.content(path)[position] ^= mask

    def cut(self, path: str, size: int) -> None:
        """Leave so many bytes of a file; all but the last ones if it is negative."""
        del self.fs.content(path)[size:]

    def add_other(self) -> None:
        """Create a second partition with one record."""
        other = self.store.create(OTHER, parse_config(CONFIGS), UUID(int=1))
        write(other, [(b"k", b"v")], 0)

    def reports(self) -> list[str]:
        """Return what was reported at the start."""
        return [report.what for report in self.store.reports]

    def values(self) -> list[int]:
        return [int(each.value or b"-1") for each in read_records(self.log)]

    def path(self, index: int = -1, suffix: str = ".log") -> str:
        logs = sorted(name for name in self.fs.files(FOLDER) if name.endswith(".log"))
        return f"{FOLDER}/{logs[index].removesuffix('.log')}{suffix}"

    def batches(self, path: str) -> list[tuple[int, int]]:
        """Return (position, size) of each batch."""
        return [(at, each.size) for at, each in iter_headers(bytes(self.fs.content(path)))]

    def damage(self) -> CorruptLogError:
        error = self.store.offline[TP]
        assert isinstance(error, CorruptLogError), error
        return error


@pytest.fixture
def world() -> World:
    return World()


# --- repaired ------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_and_reported(world: World) -> None:
    world.fill(3)
    path = world.path()
    position, size = world.batches(path)[-1]
    world.cut(path, -5)
    world.crash()
    assert world.values() == [0, 1]
    (report,) = world.store.reports
    cut = f"torn tail of {size - 5} bytes cut off at byte {position}, offset 2: "
    assert report.path == path
    assert report.what.startswith(cut)
    assert len(world.fs.content(path)) == position


def test_a_tail_of_zeros_is_cut(world: World) -> None:
    world.fill(3)
    world.fs.content(world.path()).extend(bytes(5000))
    world.crash()
    assert world.values() == [0, 1, 2]
    assert "torn tail of 5000 bytes" in world.reports()[0]


def test_a_rolled_segment_whose_successor_is_torn_becomes_active_again(world: World) -> None:
    world.fill(5)
    world.log.roll(0)
    world.fill(1)
    world.cut(world.path(), 10)
    world.crash()
    assert world.values() == list(range(5))
    world.fill(1)
    assert world.values() == list(range(6))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_lost_index_is_rebuilt_and_reported(world: World, suffix: str, clean: bool) -> None:
    world.fill(30)
    world.store.close() if clean else advance(world.store)
    path = world.path(0, suffix)
    last_entry = bytes(world.fs.content(path))[-8:]
    world.fs.remove(path)
    world.crash()
    assert world.values() == list(range(30))
    assert bytes(world.fs.content(path)).endswith(last_entry)
    assert world.reports() == ["lost or damaged index rebuilt"]


def test_an_index_that_can_not_be_opened_is_not_a_lost_index(world: World) -> None:
    world.fill(30)
    world.log.roll(0)
    world.store.close()
    world.open()
    world.fs.fail("read", errno.EMFILE, path="index")
    with pytest.raises(TooManyOpenFilesError):
        world.log.read(20, 100, limit_offset=30)
    assert world.values() == list(range(30))
    assert world.store.reports == []


def test_a_snapshot_of_producers_that_can_not_be_opened_is_not_a_damaged_one(world: World) -> None:
    write(world.log, [(b"k", b"0")], 0, producer=(7, 0, 0))
    world.store.close()
    world.open()
    world.fs.fail("read", errno.EMFILE, path=".snapshot")
    with pytest.raises(TooManyOpenFilesError):
        write(world.log, [(b"k", b"1")], 0, producer=(7, 0, 1))
    write(world.log, [(b"k", b"1")], 0, producer=(7, 0, 1))
    assert world.store.reports == []
    assert world.values() == [0, 1]


def test_a_torn_index_of_the_active_segment_is_ignored(world: World) -> None:
    world.fill(5)
    advance(world.store)
    entries = world.fs.content(world.path(-1, ".index"))
    assert len(entries) >= 16
    entries[-8:] = bytes(8)
    world.crash()
    assert world.values() == list(range(5))


def test_scanning_starts_at_the_recovery_point(world: World) -> None:
    world.fill(30)
    advance(world.store)
    # Damage far below the point is not even looked at now; a reader meets it later.
    position, size = world.batches(world.path(0))[2]
    world.flip(world.path(0), position + size - 1)
    world.crash()
    assert not world.store.offline
    with pytest.raises(CorruptLogError) as caught:
        world.values()
    assert (caught.value.path, caught.value.position) == (world.path(0), position)


def test_a_snapshot_of_offsets_that_were_cut_is_dropped(world: World) -> None:
    log = world.log
    write(log, [(b"k", b"v")], 0, producer=(1, 0, 0))
    log.roll(0)
    write(log, [(b"k", b"v")], 0, producer=(1, 0, 1))
    log.roll(0)
    for index in (1, 0):
        world.cut(world.path(index), 0)
    world.crash()
    assert world.log.log_end_offset == 0
    assert write(world.log, [(b"k", b"v")], 0, producer=(1, 0, 0)) == 0


def test_a_file_whose_name_only_ends_like_that_of_a_snapshot_is_left_alone(world: World) -> None:
    """Its number would name a file that does not exist."""
    stray = f"{world.log.chain.folder}/5.snapshot"
    world.fs.write_bytes(stray, b"")
    for sequence in range(2):
        write(world.log, [(b"k", b"v")], 0, producer=(1, 0, sequence))
        world.log.roll(0)
    world.log.delete_records_before(2)
    world.crash()
    assert world.log.log_start_offset == 2
    assert world.fs.exists(stray)


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "byte", "mask"),
    [
        # The base offset, also of the last batch.
        *(
            (batch, 7 - bit // 8, 1 << bit % 8)
            for batch in (0, 1, 3)
            for bit in (0, 3, 30, 31, 50, 62, 63)
        ),
        # The length, and the last byte of a record.
        *((1, 8, 0x41), (1, 9, 0x41), (1, 11, 0x41), (1, -1, 1)),
    ],
)
def test_a_changed_byte_above_the_recovery_point_takes_one_partition_offline(
    world: World, batch: int, byte: int, mask: int
) -> None:
    world.fill(4)
    world.add_other()
    path = world.path()
    position, size = world.batches(path)[batch]
    world.flip(path, position + byte % size, mask)
    world.crash()
    error = world.damage()
    assert (error.path, error.position, error.offset) == (path, position, batch)
    with pytest.raises(CorruptLogError):
        world.store.get(TP)
    assert OTHER in world.store.partitions


def test_other_partitions_stay_online(world: World) -> None:
    world.fill(4)
    world.add_other()
    world.flip(world.path(), 70)
    world.crash()
    assert set(world.store.offline) == {TP}
    assert [each.value for each in read_records(world.store.get(OTHER))] == [b"v"]


def test_a_bad_batch_in_a_closed_segment_that_was_not_checkpointed(world: World) -> None:
    world.fill(30)
    path = world.path(1)
    position, size = world.batches(path)[-1]
    world.flip(path, position + size - 1)
    world.crash()
    assert (world.damage().path, world.damage().position) == (path, position)
    assert "has valid batches" in str(world.damage())


@pytest.mark.parametrize("whole_batch", [True, False])
def test_a_missing_synced_tail_is_not_a_torn_tail(world: World, whole_batch: bool) -> None:
    world.fill(4)
    advance(world.store)
    path = world.path()
    position, _ = world.batches(path)[-1]
    world.cut(path, position if whole_batch else -5)
    world.crash()
    assert (world.damage().offset, world.damage().position) == (3, position)


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("whole_batches", [True, False])
def test_a_closed_segment_that_was_shortened_is_refused(
    world: World, whole_batches: bool, checkpointed: bool
) -> None:
    world.fill(30)
    if checkpointed:
        advance(world.store)
    path = world.path(1)
    position, _ = world.batches(path)[-1]
    world.cut(path, position if whole_batches else position + 7)
    world.crash()
    assert (world.damage().path, world.damage().position) == (path, position)


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_closed_segment_that_is_missing_is_refused(world: World, checkpointed: bool) -> None:
    world.fill(30)
    if checkpointed:
        advance(world.store)
    world.fs.remove(world.path(1))
    world.crash()
    assert "next segment begins at" in str(world.damage())


@pytest.mark.parametrize("stop", ["kill", "checkpoint", "clean"])
def test_a_missing_first_segment_is_refused(world: World, stop: str) -> None:
    world.fill(30)
    if stop == "checkpoint":
        advance(world.store)
    elif stop == "clean":
        world.store.close()
    first = world.path(0)
    world.fs.remove(first)
    world.crash()
    assert (world.damage().path, world.damage().offset) == (first, 0)
    assert "no segment with the offsets 0 to" in str(world.damage())


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("suffix", ["", ".log"], ids=["no file", "no segment"])
def test_a_partition_without_segments_is_refused_at_every_start(
    world: World, suffix: str, checkpointed: bool
) -> None:
    world.fill(4)
    if checkpointed:
        advance(world.store)
    for name in world.fs.files(FOLDER):
        if name.endswith(suffix):
            world.fs.remove(f"{FOLDER}/{name}")
    for _ in range(2):
        world.crash()
        assert "has no segments" in str(world.damage())


@pytest.mark.parametrize("stored", [True, False])
def test_segments_that_retention_has_removed_are_not_missed(world: World, stored: bool) -> None:
    world.fill(30)
    world.log.delete_records_before(20)
    if stored:
        world.store.checkpoint()
    first = world.log.segments[0].base_offset
    for _ in range(2):
        world.crash()
        assert not world.store.offline
        assert world.log.log_start_offset == (20 if stored else first)
        assert not any(name.endswith(".deleted") for name in world.fs.files(FOLDER))
        assert world.values()[-1] == 29


def test_a_power_cut_at_any_moment_of_retention_is_not_damage() -> None:
    """Old files disappear only when the new start is on disk."""
    for seed in range(40):
        world = World()
        world.fill(30)
        world.log.delete_records_before(12)
        world.clock.advance(100_000)
        if seed % 2:
            world.store.purge_deleted()
        world.fs.power_cut(random.Random(seed))
        world.open()
        assert not world.store.offline, seed
        assert world.values()[-1] == 29


def test_on_a_full_disk_the_files_of_old_segments_are_emptied(world: World) -> None:
    world.fill(30)
    world.log.delete_records_before(20)
    world.clock.advance(100_000)
    world.fs.capacity = 0
    assert world.store.purge_deleted() > 0
    left = [name for name in world.fs.files(FOLDER) if name.endswith(".deleted")]
    assert left
    assert all(not world.fs.content(f"{FOLDER}/{name}") for name in left)
    world.crash()
    assert not world.store.offline
    assert world.values()[-1] == 29


def test_a_folder_of_an_earlier_version_gives_no_false_alarm(world: World) -> None:
    """Its log starts were written after the segments were deleted, perhaps."""
    world.fill(30)
    world.log.delete_records_before(20)
    world.store.checkpoint()
    world.clock.advance(100_000)
    world.store.purge_deleted()
    for name in ("recovery-point", "log-start", "cleaner"):
        world.fs.write_bytes(f"/data/{name}-offset-checkpoint", b"0\n0\n")
    first = world.log.segments[0].base_offset
    world.crash()
    assert world.log.log_start_offset == first
    world.fs.remove(world.path(0))
    world.crash()
    assert f"no segment with the offsets {first} to" in str(world.damage())


@pytest.mark.parametrize("name", ["x.log", "12.log", "-0000000000000000001.log", "x.index"])
def test_a_file_with_another_name_is_ignored(world: World, name: str) -> None:
    world.fill(4)
    world.fs.write_bytes(f"{FOLDER}/{name}", b"x")
    world.crash()
    assert world.values() == [0, 1, 2, 3]


def test_a_checkpoint_with_a_changed_digit_deletes_nothing(world: World) -> None:
    world.fill(30)
    world.log.delete_records_before(10)
    world.store.checkpoint()
    path = "/data/log-start-offset-checkpoint"
    content = world.fs.content(path)
    content[content.index(b" 10") + 1] ^= 8  # 10 becomes 90
    world.crash()
    assert world.values()[-1] == 29
    assert any("damaged checkpoint ignored" in str(report) for report in world.store.reports)


def test_an_offline_partition_keeps_its_recovery_point(world: World) -> None:
    world.fill(4)
    advance(world.store)
    good = bytes(world.fs.content(world.path()))
    world.cut(world.path(), -5)
    world.crash()
    world.store.close()
    world.open()
    assert world.damage().offset == 3
    world.store.close()
    world.fs.content(world.path())[:] = good
    world.open()
    assert world.values() == [0, 1, 2, 3]


def test_a_sync_that_fails_in_recovery_stops_the_start(world: World) -> None:
    world.fill(3, sync=False)
    world.fs.kill()
    world.fs.fail("sync", path=".log")
    with pytest.raises(SyncFailedError):
        world.open()
    world.fs.kill()
    world.open()
    assert world.values() == [0, 1, 2]


# --- after a clean stop --------------------------------------------------------------------------


def test_a_clean_stop_needs_no_scan(world: World) -> None:
    world.fill(30)
    world.store.close()
    world.fs.fail("read", times=-1, path=".log")
    world.open()
    assert world.store.clean_start
    assert world.store.partitions[TP].log_end_offset == 30
    world.fs.clear_faults()
    assert world.values() == list(range(30))


def test_a_file_that_changed_after_a_clean_stop_is_recovered(world: World) -> None:
    world.fill(4)
    world.store.close()
    world.fs.content(world.path()).extend(b"garbage")
    world.open()
    assert world.values() == [0, 1, 2, 3]
    assert any("files have changed" in what for what in world.reports())
    assert any("torn tail of 7 bytes" in what for what in world.reports())


def test_a_file_shortened_after_a_clean_stop_is_refused(world: World) -> None:
    world.fill(4)
    world.store.close()
    world.cut(world.path(), -1)
    world.open()
    assert world.damage().offset == 3


def test_a_damaged_manifest_means_recovery(world: World) -> None:
    world.fill(4)
    world.store.close()
    world.fs.content("/data/clean-stop.json")[-3] ^= 1
    world.open()
    assert not world.store.clean_start
    assert world.values() == [0, 1, 2, 3]


def test_a_lost_snapshot_is_read_from_the_log_again(world: World) -> None:
    write(world.log, [(b"k", b"v")], 0, producer=(1, 0, 0))
    world.store.close()
    for name in world.fs.files(FOLDER):
        if name.endswith(".snapshot"):
            world.fs.remove(f"{FOLDER}/{name}")
    world.open()
    assert write(world.log, [(b"k", b"v")], 0, producer=(1, 0, 0)) == 0
    assert world.log.log_end_offset == 1
    assert any("producers read from the log" in what for what in world.reports())


# --- interrupted file operations -----------------------------------------------------------------


def test_an_interrupted_deletion_is_finished(world: World) -> None:
    world.fill(30)
    bases = [segment.base_offset for segment in world.log.segments]
    kept = {name: bytes(world.fs.content(f"{FOLDER}/{name}")) for name in world.fs.files(FOLDER)}
    world.log.delete_records_before(bases[2])
    world.store.checkpoint()
    for name, data in kept.items():
        world.fs.write_bytes(f"{FOLDER}/{name}", data)
    world.crash()
    assert world.log.log_start_offset == bases[2]
    assert world.log.segments[0].base_offset == bases[2]


def test_an_index_without_its_segment_is_removed(world: World) -> None:
    world.fill(3)
    world.fs.write_bytes(f"{FOLDER}/00000000000000009999.index", b"12345678")
    world.crash()
    assert "00000000000000009999.index" not in world.fs.files(FOLDER)


def test_a_segment_that_was_started_just_before_a_kill_is_synced_with_its_first_write(
    world: World,
) -> None:
    world.fill(3)
    world.log.roll(0)
    world.store.checkpoint()
    assert world.log.recovery_point == 3
    world.crash()
    world.fill(1)
    assert world.log.high_watermark == 4
    for seed in range(5):
        world.fs.power_cut(random.Random(seed))
    world.open()
    assert world.values() == [0, 1, 2, 3]


@pytest.mark.parametrize("clean", [True, False])
def test_a_time_index_older_than_its_offset_index_is_not_used(world: World, clean: bool) -> None:
    log = world.log
    write(log, [(b"k", b"0" * 100)], 500)
    advance(world.store)
    write(log, [(b"k", b"1" * 100)], 900)
    write(log, [(b"k", b"2" * 100)], 100)
    world.store.close() if clean else advance(world.store)
    world.cut(world.path(-1, ".timeindex"), 12)
    world.crash()
    for at in (600, 100):
        write(world.log, [(b"k", b"3" * 100)], at)
    assert run_steps(world.log.find_timestamp(700)) == (1, 900)
    assert run_steps(world.log.find_max_timestamp()) == (1, 900)
    assert world.log.chain.active.max_timestamp == 900


@pytest.mark.parametrize("clean", [True, False])
def test_folders_that_were_exchanged_take_their_partitions_offline(clean: bool) -> None:
    fs = FaultyFileSystem()
    store = open_store("/data", ManualClock(), fs)
    for number in range(3):
        log = store.create(TopicPartition("t", number), parse_config({}), UUID(int=1))
        write(log, [(b"k", b"%d" % number * (number + 1))], 1)
    if clean:
        store.close()
    fs.kill()
    fs.rename("/data/t-0", "/data/exchanged")
    fs.rename("/data/t-1", "/data/t-0")
    fs.rename("/data/exchanged", "/data/t-1")
    found = [each.text for each in Inspection(fs, "/data").run() if not each.is_repaired]
    assert [text.partition(" of ")[0] for text in found] == [
        "/data/t-0 has the records",
        "/data/t-1 has the records",
    ]
    store = open_store("/data", ManualClock(), fs)
    assert set(store.offline) == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert "has the records of partition 1" in str(store.offline[TopicPartition("t", 0)])
    assert [each.value for each in read_records(store.get(TopicPartition("t", 2)))] == [b"222"]
