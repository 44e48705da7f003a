"""A damaged partition is repaired: only what can't be read is lost, and offsets stay."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.effort import rounds
from tests.support.ending_fs import EndingFileSystem
from tests.support.faultyfs import CrashError
from tests.support.logs import TP, advance, open_log, open_store, read_records, write
from tidemill.clock import ManualClock
from tidemill.log.disk.checkpoints import FIRST_DIRTY, encode_checkpoint
from tidemill.log.disk.files import RealFileSystem
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.records import Record
from tidemill.log.recovery.repair import PartitionRepair
from tidemill.log.recovery.survey import Survey

CONFIGS = {"retention.ms": "-1"}
BATCHES = 30
Span = range


class Folder:
    """A data folder with one partition of several segments, three records in each batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.work = PartitionRepair(RealFileSystem(), str(path), TP)
        store = open_store(path, self.clock)
        log = open_log(store, CONFIGS)
        for number in range(BATCHES):
            if number % 5 == 2:
                log.roll(self.clock.now_ms())
            self.clock.advance(1000)
            records = [(b"k", b"%d:%d" % (number, each)) for each in range(3)]
            producer = (7, 0, 3 * number)
            write(log, records, self.clock.now_ms(), producer=producer)
        self.records = read_records(log)
        self.end = log.log_end_offset
        advance(store)
        store.close()
        assert len(self.segments()) > 4

    def segments(self) -> list[Path]:
        return sorted((self.path / str(TP)).glob("*.log"))

    def batches(self, segment: Path) -> list[tuple[int, int, int]]:
        """(position, size, base offset) of each batch."""
        return [(at, h.size, h.base_offset) for at, h in iter_headers(segment.read_bytes())]

    def open(self) -> list[Record] | None:
        """Open the partition; return its records, or None if it is offline. Append to it."""
        store = open_store(self.path, self.clock)
        try:
            if TP in store.offline:
                return None
            log = open_log(store, CONFIGS)
            records = read_records(log)
            assert log.log_end_offset == self.end
            assert write(log, [(b"k", b"new")], self.clock.now_ms()) == self.end
            assert read_records(log) == [*records, *read_records(log)[-1:]]
            return records
        finally:
            store.close()

    def repair(self) -> tuple[Survey, list[Span]]:
        """Repair every damaged place; return the first survey and all lost offsets."""
        first = self.work.survey()
        lost: list[Span] = []
        for _ in range(50):
            found = self.work.survey()
            if not found.damage:
                return first, lost
            damage = found.damage[0]
            self.work.apply(found, damage)
            lost.append(range(damage.offset, damage.resume))
        raise AssertionError("the repair does not come to an end")

    def without(self, lost: list[Span]) -> list[Record]:
        gone = set(itertools.chain.from_iterable(lost))
        return [record for record in self.records if record.offset not in gone]

    def kept(self) -> list[Path]:
        return sorted(self.path.glob("*-cut"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("filled") / "data")


@pytest.fixture
def folder(filled: Folder, tmp_path: Path) -> Folder:
    """A copy of the folder as a process leaves it that was killed."""
    copy = Folder.__new__(Folder)
    copy.__dict__ = dict(filled.__dict__)
    copy.path = tmp_path / "data"
    copy.work = PartitionRepair(RealFileSystem(), str(copy.path), TP)
    shutil.copytree(filled.path, copy.path)
    (copy.path / "clean-stop.json").unlink()
    return copy


def flip(path: Path, position: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def test_an_undamaged_partition_has_no_damage(filled: Folder, folder: Folder) -> None:
    for stopped in (filled, folder):
        found = stopped.work.survey()
        assert (found.damage, found.start, found.end) == ([], 0, stopped.end)
        assert found.batches == BATCHES


@pytest.mark.parametrize("segment", [0, 2, -1])
def test_a_damaged_batch_is_cut_out_and_everything_behind_it_stays(
    folder: Folder, segment: int
) -> None:
    path = folder.segments()[segment]
    position, size, base = folder.batches(path)[1]
    damaged = bytearray(path.read_bytes()[position : position + size])
    damaged[70] ^= 1
    flip(path, position + 70)
    found, lost = folder.repair()
    (damage,) = found.damage
    assert (damage.offset, damage.position, lost) == (base, position, [range(base, base + 3)])
    assert f"{path}" == found.path(damage.base)
    assert damage.before_ms > 0
    (kept,) = folder.kept()
    assert next(kept.glob("*.log.*")).read_bytes() == damaged
    assert json.loads((kept / "damage.json").read_text())["offset"] == base
    assert folder.open() == folder.without(lost)


def test_a_hard_link_of_a_backup_keeps_what_is_behind_the_damage(
    folder: Folder, tmp_path: Path
) -> None:
    path = folder.segments()[1]
    position, _, _ = folder.batches(path)[1]
    flip(path, position + 70)
    before = path.read_bytes()
    os.link(path, tmp_path / "backup.log")
    folder.repair()
    assert path.read_bytes() != before
    assert (tmp_path / "backup.log").read_bytes() == before


def test_a_cut_end_below_the_recovery_point_is_given_up_and_no_offset_is_used_again(
    folder: Folder,
) -> None:
    path = folder.segments()[-1]
    position, _, base = folder.batches(path)[-1]
    with path.open("r+b") as file:
        file.truncate(position + 10)
    assert folder.open() is None
    _, lost = folder.repair()
    assert lost == [range(base, folder.end)]
    assert folder.open() == folder.without(lost)


def test_a_missing_segment_is_bridged(folder: Folder) -> None:
    segments = folder.segments()
    segments[2].unlink()
    found, lost = folder.repair()
    assert lost == [range(int(segments[2].stem), int(segments[3].stem))]
    assert found.damage[0].offset == int(segments[2].stem)
    assert folder.open() == folder.without(lost)


def test_missing_first_segments_move_the_start_of_the_log(folder: Folder) -> None:
    segments = folder.segments()
    for path in segments[:2]:
        path.unlink()
    assert folder.open() is None
    found, lost = folder.repair()
    assert found.damage[0].offset == 0
    assert lost == [range(int(segments[2].stem))]
    assert folder.open() == folder.without(lost)


def test_without_any_segment_the_log_continues_behind_its_last_known_offset(folder: Folder) -> None:
    for path in (folder.path / str(TP)).iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    assert folder.open() is None
    _, lost = folder.repair()
    assert lost == [range(folder.end)]
    assert folder.open() == []


def test_the_replay_of_producers_does_not_begin_behind_the_damage(folder: Folder) -> None:
    path = folder.segments()[1]
    flip(path, folder.batches(path)[0][0] + 70)
    folder.repair()
    store = open_store(folder.path, folder.clock)
    entry = store.get(TP).producers.get(7)
    assert entry is not None
    assert entry.last_sequence == 3 * BATCHES - 1
    store.close()


def test_a_base_offset_with_a_flipped_bit_loses_this_batch_only(folder: Folder) -> None:
    path = folder.segments()[1]
    for byte in (7, 6, 2, 0):
        position, _, base = folder.batches(path)[1]
        before = path.read_bytes()
        for bit in (1, 4, 64):
            flip(path, position + byte, bit)
            found = folder.work.survey()
            assert [(each.offset, each.resume) for each in found.damage] == [(base, base + 3)]
            path.write_bytes(before)


def test_foreign_bytes_between_two_batches_are_taken_out(folder: Folder) -> None:
    path = folder.segments()[1]
    for place in (0, 1):
        position = folder.batches(path)[place][0]
        data = path.read_bytes()
        path.write_bytes(data[:position] + b"x" * 100 + data[position:])
        _, lost = folder.repair()
        assert lost == [range(lost[0].start, lost[0].start)]
        assert path.read_bytes() == data
    assert folder.open() == folder.records


def test_a_repair_that_a_crash_interrupted_is_completed_by_another_one(folder: Folder) -> None:
    """The rest has a segment of its own already, and the damaged one is not cut yet."""
    path = folder.segments()[1]
    position, _, base = folder.batches(path)[1]
    flip(path, position + 70)
    rest = path.read_bytes()[folder.batches(path)[2][0] :]
    (path.parent / f"{base + 3:020d}.log").write_bytes(rest)
    _, lost = folder.repair()
    assert lost == [range(base, base + 3)]
    assert folder.open() == folder.without(lost)


@pytest.mark.parametrize("kind", ["batch", "segment", "start"])
def test_a_crash_at_any_step_of_a_repair_loses_no_more(
    folder: Folder, tmp_path: Path, kind: str
) -> None:
    segments = folder.segments()
    if kind == "batch":
        flip(segments[2], folder.batches(segments[2])[1][0] + 70)
    else:
        segments[2 if kind == "segment" else 0].unlink()
    damaged = tmp_path / "damaged"
    shutil.copytree(folder.path, damaged)
    (damage,) = folder.work.survey().damage
    damaged_span = range(damage.offset, damage.resume)
    calls = 0
    while True:
        shutil.rmtree(folder.path)
        shutil.copytree(damaged, folder.path)
        work = PartitionRepair(EndingFileSystem(calls), str(folder.path), TP)
        found = folder.work.survey()
        try:
            work.apply(found, damage)
        except CrashError:
            _, lost = folder.repair()
            assert all(each in damaged_span for span in lost for each in span)
        else:
            break
        assert folder.open() == folder.without([damaged_span])
        calls += 1
    assert folder.open() == folder.without([damaged_span])
    assert calls > 4


def test_a_compacted_log_is_repaired_too(folder: Folder) -> None:
    """Its batches have gaps between them, which are not damage."""
    path = folder.segments()[1]
    position, size, removed = folder.batches(path)[1]
    data = path.read_bytes()
    data = data[:position] + data[position + size :]
    path.write_bytes(data)
    (found,) = folder.work.survey().damage
    assert (found.offset, found.resume) == (removed, removed + 3)
    checkpoint = folder.path / FIRST_DIRTY
    checkpoint.write_bytes(encode_checkpoint(FIRST_DIRTY, {TP: 0}))
    assert folder.work.survey().damage == []
    position, _, base = folder.batches(path)[1]
    for byte, bit in ((70, 1), (7, 32), (6, 1), (3, 1), (7, 4)):
        path.write_bytes(data)
        flip(path, position + byte, bit)
        places = [(each.offset, each.resume) for each in folder.work.survey().damage]
        # The gap before the batch belongs to what is perhaps lost.
        assert places == [(removed, base + 3)], (byte, bit)
    _, lost = folder.repair()
    assert folder.open() == folder.without([*lost, range(removed, removed + 3)])


def test_random_damage_loses_only_what_is_said_to_be_lost(folder: Folder, tmp_path: Path) -> None:
    """No record gets another offset, and the partition is online again after the repairs."""
    choice = random.Random(5)
    original = tmp_path / "original"
    shutil.copytree(folder.path, original)
    for number in range(rounds("REPAIRS", 40, 6000)):
        shutil.rmtree(folder.path)
        shutil.copytree(original, folder.path)
        for _ in range(choice.randint(1, 3)):
            damage(choice, folder)
        _, lost = folder.repair()
        assert folder.open() == folder.without(lost), number


def damage(choice: random.Random, folder: Folder) -> None:
    path = choice.choice(folder.segments())
    data = bytearray(path.read_bytes())
    if not data:
        return
    at = choice.randrange(len(data))
    match choice.choice(["bit", "byte", "zeros", "cut", "insert", "remove"]):
        case "bit":
            data[at] ^= 1 << choice.randrange(8)
        case "byte":
            data[at] = choice.randrange(256)
        case "zeros":
            end = min(len(data), at + choice.randint(1, 300))
            data[at:end] = bytes(end - at)
        case "cut":
            del data[at:]
        case "insert":
            data[at:at] = choice.randbytes(choice.randint(1, 200))
        case "remove":
            del data[at : at + choice.randint(1, 200)]
    path.write_bytes(data)
