"""What the journal proves is restored after a crash, and its own faults lose nothing in silence."""

from __future__ import annotations

import errno
import random
from uuid import UUID

import pytest

from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tests.support.journaled import commit, make_durable, open_journaled, store_segments, witness
from tests.support.logs import read_records, write
from tidemill.clock import ManualClock
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import CorruptLogError, JournalRestoreError, StorageError, SyncFailedError
from tidemill.log.format.batch import iter_headers
from tidemill.log.journal.checkpoint import CHECKPOINT, decode_journal_checkpoint
from tidemill.log.journal.entry import BLOCK
from tidemill.log.journal.extent import EXTENT
from tidemill.log.journal.reading import disown
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.recovery.inspect import Inspection
from tidemill.log.recovery.repair import PartitionRepair
from tidemill.log.rounds import take_pieces
from tidemill.log.store import LogStore
from tidemill.log.versions import FORMAT_FILE

NOW = 1_700_000_000_000
JOURNAL = "/data/journal/00000001.journal"
FIRST, A, B, C = b"first", b"a" * 50, b"b" * 50, b"c" * 50


class World:
    """A store with a journal and some partitions, each with one record in a synced segment."""

    def __init__(self, partitions: int = 1, **configs: str) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock(NOW)
        self.configs = {k.replace("_", "."): v for k, v in configs.items()}
        self.partitions = [TopicPartition("t", n) for n in range(partitions)]
        self.store: LogStore = open_journaled("/data", self.clock, self.fs)
        for tp in self.partitions:
            self.store.create(tp, parse_config(self.configs), UUID(int=1))
            self.append(tp.partition, FIRST, sync=True)

    @classmethod
    def promised(cls, *values: bytes, partitions: int = 1, **configs: str) -> World:
        """Return a world in which the journal has these records of partition 0."""
        world = cls(partitions, **configs)
        world.promise(*values)
        return world

    def log(self, partition: int = 0) -> PartitionLog:
        return self.store.get(self.partitions[partition])

    def append(self, partition: int, value: bytes, *, sync: bool = False) -> None:
        write(self.log(partition), [(b"k", value)], NOW, sync=sync)

    def promise(self, *values: bytes, partition: int = 0) -> None:
        """Append each value, and make it durable in the journal."""
        for value in values:
            self.append(partition, value)
            assert commit(self.store, [self.log(partition)]) == []

    def reopen(self) -> None:
        self.store = open_journaled("/data", self.clock, self.fs)

    def power_cut(self, rng: random.Random | None = None) -> None:
        """Cut the power and open the store again. By default nothing unsynced is left."""
        self.fs.power_cut(rng or Unlucky())
        self.reopen()

    def kill(self) -> None:
        """Kill the process and open the store again."""
        self.fs.kill()
        self.reopen()

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in read_records(self.log(partition))]

    def segment(self, partition: int = 0) -> str:
        return self.log(partition).chain.active.path()

    def starts(self, path: str) -> list[int]:
        """Return the position of each batch of a file."""
        return [position for position, _ in iter_headers(bytes(self.fs.content(path)))]

    def start(self, batch: int, partition: int = 0) -> int:
        """Return the position of a batch of the active segment."""
        return self.starts(self.segment(partition))[batch]

    def content(self, partition: int = 0) -> bytearray:
        """Return the bytes of the active segment, to be damaged."""
        return self.fs.content(self.segment(partition))

    def cut(self, batch: int, partition: int = 0) -> None:
        """Cut the active segment off before one of its batches."""
        del self.content(partition)[self.start(batch, partition) :]

    def kill_and_cut(self, batch: int) -> None:
        """Kill the process, and cut the active segment of partition 0."""
        self.fs.kill()
        self.cut(batch)

    def flip(self, batch: int, partition: int = 0, byte: int = 61) -> None:
        """Change a bit of one of the batches of the active segment."""
        self.content(partition)[self.start(batch, partition) + byte] ^= 1

    def is_discarded(self) -> bool:
        """Return whether the next start ignores the journal."""
        data = bytes(self.fs.content(f"/data/{CHECKPOINT}"))
        return decode_journal_checkpoint(data).journal == b""

    def hide_journal(self) -> None:
        """Let the folder be as a version without the journal knows it."""
        self.fs.write_atomic(f"/data/{FORMAT_FILE}", b"1\n")
        for name in (CHECKPOINT, EXTENT):
            self.fs.rename(f"/data/{name}", f"/data/{name}-hidden")

    def show_journal(self) -> None:
        """Undo ``hide_journal``."""
        for name in (CHECKPOINT, EXTENT):
            self.fs.rename(f"/data/{name}-hidden", f"/data/{name}")

    def reports(self) -> str:
        return "\n".join(map(str, self.store.reports))


def test_one_sync_makes_the_appends_of_many_partitions_durable() -> None:
    world = World(12)
    for n in range(12):
        world.append(n, b"second")
    before = world.fs.syncs
    assert commit(world.store, [world.log(n) for n in range(12)]) == []
    assert world.fs.syncs == before + 1
    assert all(world.log(n).high_watermark == 2 for n in range(12))
    assert all(world.log(n).stored_offset == 1 for n in range(12))
    world.power_cut()
    assert [world.values(n) for n in range(12)] == [[FIRST, b"second"]] * 12
    assert world.reports().count("restored from the journal") == 12


def test_a_killed_process_needs_nothing_restored() -> None:
    world = World.promised(b"a", b"b")
    world.kill()
    assert world.values() == [FIRST, b"a", b"b"]
    assert world.reports() == ""


@pytest.mark.parametrize("damage", ["torn", "cut", "flipped", "gone"])
def test_an_acknowledged_tail_is_restored(damage: str) -> None:
    world = World.promised(A, B, C)
    world.fs.kill()
    if damage == "torn":
        del world.content()[world.start(3) + 20 :]
    elif damage == "flipped":
        world.flip(2)
    else:
        world.cut(2 if damage == "cut" else 1)
    world.reopen()
    assert world.values() == [FIRST, A, B, C]
    assert "restored from the journal" in world.reports()
    # What was restored is on disk, and the partition continues.
    world.promise(b"next")
    world.power_cut()
    assert world.values()[-1] == b"next"


def test_lost_pages_of_what_nobody_was_promised_are_cut() -> None:
    """Written with acks=1: the first page was lost in a power cut, and the second was not."""
    world = World.promised(b"promised")
    world.append(0, b"x" * 50)
    world.append(0, b"y" * 50)
    world.fs.kill()
    third = world.start(2)
    world.content()[third : third + 40] = bytes(40)
    world.reopen()
    assert not world.store.offline
    assert world.values() == [FIRST, b"promised"]
    assert "cut off" in world.reports()


def test_without_a_journal_lost_pages_with_a_valid_batch_behind_are_damage() -> None:
    world = World()
    world.append(0, b"x" * 50)
    world.append(0, b"y" * 50)
    world.fs.kill()
    world.hide_journal()  # a folder of an earlier version has none
    second = world.start(1)
    world.content()[second : second + 40] = bytes(40)
    world.reopen()
    assert isinstance(world.store.offline[world.partitions[0]], CorruptLogError)


def test_an_unfinished_entry_is_not_believed_and_reported() -> None:
    world = World.promised(b"a")
    world.append(0, b"b")
    (taken,) = take_pieces([world.log()], 1)
    assert taken is not None
    entry = world.store.journal.begin([taken[0]])
    assert entry is not None
    entry.run()  # the entry is on disk, but the broker ends before it knows that
    content = world.fs.content(JOURNAL)
    content[BLOCK + 110 : BLOCK + 130] = b"\xff" * 20
    world.kill_and_cut(2)
    world.reopen()
    assert world.values() == [FIRST, b"a"]
    assert "entry 2 of the journal, the last one, is incomplete" in world.reports()


def test_a_damaged_entry_is_reported_and_the_others_are_used() -> None:
    world = World.promised(b"a0", partitions=2)
    world.promise(b"a1", b"b1", partition=1)
    witness(world.store)
    world.fs.kill()
    world.fs.content(JOURNAL)[100:120] = bytes(20)  # the entry with a0
    world.cut(1, 0)
    world.cut(1, 1)
    world.reopen()
    assert world.values(1) == [FIRST, b"a1", b"b1"]
    error = world.store.offline[world.partitions[0]]
    assert "the journal proves records up to offset 1" in str(error)
    assert "entry 1 of the journal is damaged or missing" in world.reports()


def test_a_journal_that_lacks_an_entry_does_not_prove_that_nothing_else_was_promised() -> None:
    """Its other entries name the partition, but not the last record that was promised."""
    world = World.promised(A, B, partitions=2)  # B is in entry 2, which is lost
    world.promise(b"other", partition=1)
    world.append(0, b"not promised")
    witness(world.store)
    world.fs.kill()
    world.fs.content(JOURNAL)[BLOCK + 100 : BLOCK + 120] = bytes(20)
    world.flip(2)
    path = world.segment()
    before = bytes(world.content())
    (found,) = (each for each in Inspection(world.fs, "/data").run() if "entry" not in each.text)
    assert not found.is_repaired
    world.reopen()
    assert isinstance(world.store.offline[world.partitions[0]], CorruptLogError)
    assert bytes(world.fs.content(path)) == before


def test_a_log_that_ends_below_what_the_journal_proves_is_damage() -> None:
    """The piece between is lost in both places, so the log can't be continued in silence."""
    world = World.promised(A, B)
    witness(world.store)
    world.kill_and_cut(1)
    world.fs.content(JOURNAL)[100:120] = bytes(20)  # the entry with a
    world.reopen()
    error = world.store.offline[world.partitions[0]]
    assert isinstance(error, CorruptLogError)
    assert "the journal proves records up to offset 2" in str(error)
    world.fs.kill()
    world.reopen()  # without the journal, which the start before has discarded
    error = world.store.offline[world.partitions[0]]
    assert "it was synced up to offset 3" in str(error)
    world.fs.kill()
    repair = PartitionRepair(world.fs, "/data", world.partitions[0])
    survey = repair.survey()
    repair.apply(survey, survey.damage[0])
    world.reopen()
    assert world.values() == [FIRST]
    assert world.log().log_end_offset == 3


def test_a_recreated_topic_gets_nothing_of_the_one_before() -> None:
    world = World.promised(b"old", b"older")
    world.store.delete(world.partitions[0])
    world.store.create(world.partitions[0], parse_config({}), UUID(int=2))
    world.append(0, b"new", sync=True)
    world.store.sync_folder()
    world.power_cut()
    assert world.values() == [b"new"]


def test_a_sync_of_the_segments_frees_the_entries_before() -> None:
    world = World()
    journal = world.store.journal
    for _ in range(200):  # 200 blocks do not fit into two files of 16
        world.promise(b"x")
        store_segments(world.store, world.log())
    assert journal.next_sequence == 201
    world.power_cut()
    assert len(world.values()) == 201


def test_a_full_journal_refuses_and_the_segments_are_synced() -> None:
    world = World()
    for count in range(100):
        world.append(0, b"%d" % count)
        if commit(world.store, [world.log()]):
            break
    else:
        raise AssertionError("the journal was never full")
    assert world.log().high_watermark == count + 1
    make_durable(world.store, world.log())
    assert world.log().high_watermark == world.log().stored_offset == count + 2
    world.promise(b"space again")
    world.power_cut()
    assert world.values()[-1] == b"space again"


def test_a_journal_that_does_not_fit_on_the_disk_is_not_used() -> None:
    fs = FaultyFileSystem()
    store = LogStore.open("/data", clock=ManualClock(NOW), fs=fs, journal_bytes=128 << 10)
    fs.capacity = fs.used() + 1000
    with pytest.raises(StorageError):
        store.journal.prepare()
    assert not store.journal.is_open
    assert fs.files("/data/journal") == {}
    store.close()


def test_a_failed_sync_of_the_journal_stops_all_syncs() -> None:
    world = World()
    world.append(0, b"a")
    world.fs.fail("sync", path="journal")
    with pytest.raises(SyncFailedError):
        commit(world.store, [world.log()])
    assert world.log().high_watermark == 1
    with pytest.raises(SyncFailedError):
        world.log().flush()


def test_what_only_the_page_cache_has_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the kernel can take pages for clean that the disk does not have."""
    world = World()
    world.append(0, A)
    path, size = world.segment(), len(world.content())
    world.fs.kill()
    written: list[tuple[int, int]] = []
    real = world.fs.write_into

    def watch(node: object, data: bytes, position: int, where: str) -> int:
        if where == path:
            written.append((position, position + len(data)))
        return real(node, data, position, where)  # type: ignore[arg-type]

    monkeypatch.setattr(world.fs, "write_into", watch)
    world.reopen()
    assert written == [(0, size)]


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_only_segments_that_no_compaction_replaces_are_restored(policy: str) -> None:
    """The bytes of a compacted segment have other positions than the journal's pieces."""
    world = World(cleanup_policy=policy)
    world.store.checkpoint()
    world.promise(A, B)
    path = world.segment()
    world.log().roll(NOW)
    world.fs.kill()
    changed = world.fs.content(path)
    changed[-1] ^= 1
    before = bytes(changed)
    world.reopen()
    if policy == "compact":
        assert bytes(world.fs.content(path)) == before
        assert world.partitions[0] in world.store.offline
    else:
        assert world.values() == [FIRST, A, B]


@pytest.mark.parametrize("seed", range(24))
def test_power_cuts_lose_nothing_promised_and_take_no_partition_offline(seed: int) -> None:
    dice = random.Random(seed)
    world = World(3, internal_segment_bytes="2000")
    world.fs.page = 64  # pages of a file reach the disk in any order
    promised: dict[int, list[bytes]] = {n: [FIRST] for n in range(3)}
    written: dict[int, list[bytes]] = {n: [FIRST] for n in range(3)}
    for step in range(60):
        n = dice.randrange(3)
        value = b"%d." % step + bytes(dice.randrange(200))
        world.append(n, value)
        written[n].append(value)
        chance = dice.random()
        if chance < 0.5:
            for log in [world.log(m) for m in range(3) if dice.random() < 0.7]:
                make_durable(world.store, log)
        elif chance < 0.6:
            store_segments(world.store, world.log(n))
        elif chance < 0.65:
            world.store.checkpoint()
        for m in range(3):
            promised[m] = written[m][: world.log(m).high_watermark]
    world.power_cut(dice)
    assert not world.store.offline
    for n in range(3):
        found = world.values(n)
        assert found[: len(promised[n])] == promised[n]
        assert found == written[n][: len(found)]


@pytest.mark.parametrize("has_promise", [True, False])
def test_a_segment_behind_one_that_was_closed_without_a_sync_and_lost_its_end(
    has_promise: bool,
) -> None:
    """The kernel can write the new segment before the old one."""
    world = World()
    if has_promise:
        world.promise(A)
    world.append(0, B)
    log = world.log()
    log.roll(NOW)
    old, new = log.segments
    assert old.synced_size < old.size
    world.append(0, C)
    world.fs.sync_file(new.path())
    world.fs.sync_dir(new.folder)
    world.fs.power_cut(Unlucky())
    if not has_promise:
        (found,) = Inspection(world.fs, "/data").run()
        assert found.is_repaired
        assert "nothing from there on was acknowledged" in found.hint
    world.reopen()
    assert not world.store.offline
    assert world.values() == ([FIRST, A] if has_promise else [FIRST])
    assert "none of its records was acknowledged" in world.reports()
    world.promise(b"d")
    assert world.values()[-1] == b"d"


def test_segments_behind_a_changed_bit_are_kept_although_no_entry_proves_them() -> None:
    world = World()
    world.append(0, B)
    world.append(0, C)
    log = world.log()
    log.roll(NOW)
    world.append(0, b"d" * 50)
    store_segments(world.store, log)  # the note about it is in no entry yet
    old, new = (segment.path() for segment in log.segments)
    world.fs.kill()
    world.fs.content(old)[world.starts(old)[1] + 70] ^= 1
    before = [bytes(world.fs.content(path)) for path in (old, new)]
    (found,) = Inspection(world.fs, "/data").run()
    assert not found.is_repaired
    world.reopen()
    assert world.partitions[0] in world.store.offline
    assert [bytes(world.fs.content(path)) for path in (old, new)] == before


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_segment_is_synced_before_the_next_one_without_a_journal_or_if_it_is_compacted(
    policy: str, has_journal: bool
) -> None:
    world = World(cleanup_policy=policy)
    if not has_journal:
        world.store.journal.give_up()
    world.append(0, B)
    log = world.log()
    log.roll(NOW)
    old = log.segments[0]
    assert (old.synced_size < old.size) == (has_journal and policy == "delete")
    log.flush()
    assert (old.synced_size, log.high_watermark) == (old.size, 2)


def test_all_is_synced_when_a_topic_becomes_compacted() -> None:
    world = World.promised(A)
    log = world.log()
    log.roll(NOW)
    log.config = parse_config({"cleanup.policy": "compact"})
    assert [each.synced_size for each in log.segments] == [each.size for each in log.segments]
    world.store.checkpoint()
    world.power_cut()
    assert world.values() == [FIRST, A]


def test_the_doctor_names_what_the_broker_will_restore_and_repairs_nothing_before() -> None:
    world = World.promised(A, B)
    world.kill_and_cut(2)
    (found,) = Inspection(world.fs, "/data").run()
    assert found.is_repaired
    assert "the journal has offsets 2 to 2" in found.text
    with pytest.raises(StorageError, match="the journal has records of t-0"):
        PartitionRepair(world.fs, "/data", world.partitions[0]).survey()
    world.reopen()
    assert world.values() == [FIRST, A, B]


def test_a_repair_is_not_undone_by_the_journal() -> None:
    world = World.promised(A, B)
    world.kill_and_cut(1)
    disown(world.fs, "/data", world.partitions[0])
    world.reopen()
    assert world.values() == [FIRST]


def test_a_broker_that_can_not_restore_does_not_start() -> None:
    world = World.promised(A)
    world.fs.power_cut(Unlucky())
    world.fs.fail("write", errno.ENOSPC, path=world.segment())
    with pytest.raises(JournalRestoreError, match="can't be restored"):
        world.reopen()
    world.kill()
    assert world.values() == [FIRST, A]


def test_a_disk_that_refuses_an_entry_keeps_what_follows_out_of_the_journal_until_a_sync() -> None:
    world = World()
    world.append(0, b"a")
    world.fs.fail("write", errno.ENOSPC, path="journal")
    assert commit(world.store, [world.log()]) == [world.log()]
    world.append(0, b"b")
    assert not world.log().fits_journal
    assert commit(world.store, [world.log()]) == [world.log()]
    assert world.log().high_watermark == 1
    make_durable(world.store, world.log())
    assert world.log().high_watermark == 3
    world.promise(b"c")


def test_copies_of_synced_records_take_no_memory() -> None:
    world = World()
    copies = world.store.environment.copies
    world.append(0, bytes(1000))
    assert copies.used > 1000
    store_segments(world.store, world.log())
    assert copies.used == 0
    world.append(0, bytes(1000))
    world.store.delete(world.partitions[0])
    assert copies.used == 0


@pytest.mark.parametrize("can_be_synced", [True, False])
def test_the_promised_end_of_an_offline_partition_survives_a_clean_stop(
    can_be_synced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(2)
    for n in range(2):
        world.promise(b"second", partition=n)
    world.log(0).go_offline(StorageError("its end is uncertain"))
    if not can_be_synced:
        flush = PartitionLog.flush

        def fail(log: PartitionLog) -> None:
            if log.failure is not None:
                raise StorageError("the file can't be opened")
            flush(log)

        monkeypatch.setattr(PartitionLog, "flush", fail)
    world.store.close()
    assert world.is_discarded() is can_be_synced
    world.power_cut()
    assert not world.store.offline
    assert [world.values(n) for n in range(2)] == [[FIRST, b"second"]] * 2
    world.store.close()
    assert world.is_discarded()


# --- another writer ------------------------------------------------------------------------------


def write_without_journal(
    world: World, *values: bytes, roll: bool = False, clean: bool = False, checkpoint: bool = False
) -> None:
    """Open the folder as a version without the journal does, append, and kill that process."""
    world.hide_journal()
    older = LogStore.open("/data", clock=world.clock, fs=world.fs)
    log = older.get(world.partitions[0])
    if roll:
        log.roll(NOW)
    for value in values:
        write(log, [(b"k", value)], NOW, sync=True)
    if checkpoint:
        older.checkpoint()
        older.checkpoint()
    if clean:
        older.close()
    world.fs.kill()
    world.show_journal()
    world.fs.write_atomic(f"/data/{FORMAT_FILE}", b"1\n")


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("roll", [False, True])
@pytest.mark.parametrize("values", [(b"x",), (b"x" * 300,), (b"x" * 50, b"y" * 50)])
def test_a_restore_notices_that_another_writer_came_after_the_journal(
    kept: int, roll: bool, values: tuple[bytes, ...]
) -> None:
    world = World.promised(A, B, C)
    lost = bytes(world.content()[world.start(kept) :])
    world.kill_and_cut(kept)
    write_without_journal(world, *values, roll=roll)
    found = [each.text for each in Inspection(world.fs, "/data").run()]
    assert sum("without the journal wrote other records" in text for text in found) == 1
    world.reopen()
    assert world.values() == [FIRST, *[A, B, C][: kept - 1], *values]
    (aside,) = (name for name in world.fs.folders("/data") if name.endswith("-cut"))
    file = f"/data/{aside}/{kept:020}.log"
    assert bytes(world.fs.content(file)) == lost
    assert f"offsets {kept} to 3 of the journal not restored" in world.reports()
    assert file in world.reports()
    world.promise(b"next")
    world.power_cut()
    assert world.values()[-1] == b"next"


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("roll", [False, True])
@pytest.mark.parametrize("values", [[b"x"], [b"x" * 50], [b"x" * 300], [b"x", b"y" * 60] * 3])
def test_another_writer_is_noticed_that_has_checkpointed_its_records(
    policy: str, roll: bool, values: list[bytes]
) -> None:
    """Its recovery point is above the place where both logs differ."""
    world = World(cleanup_policy=policy)
    world.store.checkpoint()
    world.promise(A, B, C)
    path = world.segment()
    world.kill_and_cut(1)
    write_without_journal(world, *values, roll=roll, checkpoint=True)
    before = bytes(world.fs.content(path))
    world.reopen()
    assert world.values() == [FIRST, *values]
    assert bytes(world.fs.content(path)) == before
    assert "of the journal not restored" in world.reports()


def test_records_that_another_writer_only_cut_are_restored() -> None:
    world = World.promised(A, B)
    world.kill_and_cut(2)
    write_without_journal(world)
    world.reopen()
    assert world.values() == [FIRST, A, B]


def test_what_another_writer_that_was_stopped_cleanly_has_replaced_is_kept() -> None:
    world = World.promised(A)
    world.kill_and_cut(1)
    write_without_journal(world, b"x", clean=True)
    world.reopen()
    assert world.values() == [FIRST, b"x"]
    assert "offsets 1 to 1 of the journal not restored" in world.reports()
    (aside,) = (name for name in world.fs.folders("/data") if name.endswith("-cut"))
    assert A in world.fs.content(f"/data/{aside}/{1:020}.log")


@pytest.mark.parametrize("position", range(24))
def test_a_changed_bit_in_a_header_is_no_other_writer(position: int) -> None:
    world = World.promised(A, B)
    world.fs.kill()
    world.flip(1, byte=position)
    world.reopen()
    assert world.values() == [FIRST, A, B]
    assert "restored from the journal" in world.reports()


def test_a_broker_that_can_not_put_the_records_of_the_journal_aside_does_not_start() -> None:
    world = World.promised(A)
    world.kill_and_cut(1)
    write_without_journal(world, b"x")
    world.fs.fail("create", errno.ENOSPC, path="-cut")
    with pytest.raises(JournalRestoreError, match="can't be kept"):
        world.reopen()
    world.kill()
    assert world.values() == [FIRST, b"x"]
    assert "not restored" in world.reports()
