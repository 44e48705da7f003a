"""Damage of each file of the journal after a power cut, in every region.

After each damage, no acknowledged record is missing, or the loss is reported with its place: its
partition is offline, or the broker does not start. So no offset is used again in silence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from tests.log.journal.test_journal_recovery import NOW
from tests.support.effort import IS_NIGHTLY
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tests.support.journaled import commit, open_journaled, store_segments, witness
from tests.support.logs import read_records, write
from tidemill.clock import ManualClock
from tidemill.log.config.parse import parse_config
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.index import MapCache
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.errors import CorruptLogError, JournalDamagedError
from tidemill.log.journal.checkpoint import CHECKPOINT, JournalCheckpoint, encode_journal_checkpoint
from tidemill.log.journal.entry import BLOCK, HEADER_BYTES, read_place
from tidemill.log.journal.extent import EXTENT, SLOT_BYTES
from tidemill.log.journal.reading import JournalContent, accept_damage, read_journal
from tidemill.log.names import TopicPartition
from tidemill.log.recovery.inspect import Inspection
from tidemill.log.store import LogStore

PARTITIONS = 3
FILE_BYTES = 8 * BLOCK
FOLDER = "/data/journal"
HARMLESS, PARTLY, REFUSED = "harmless", "some partitions offline", "refused"


@dataclass
class Life:
    """A broker's disk after a power cut, and what was acknowledged before.

    Attributes:
        before: the files of the journal at some time before the cut.
        covered: the last entry that the extent has.
    """

    fs: FaultyFileSystem = field(default_factory=FaultyFileSystem)
    promised: dict[int, list[bytes]] = field(
        default_factory=lambda: {n: [b"first"] for n in range(PARTITIONS)}
    )
    before: dict[str, bytes] = field(default_factory=dict)
    covered: int = 0

    def open(self) -> LogStore:
        return open_journaled("/data", ManualClock(NOW), self.fs, file_bytes=FILE_BYTES)

    def snapshot(self) -> dict[str, bytes]:
        """Return all files of the journal by path."""
        paths = [f"{FOLDER}/{name}" for name in self.fs.files(FOLDER)]
        return {path: bytes(self.fs.content(path)) for path in [*paths, *self.small()]}

    @staticmethod
    def small() -> list[str]:
        return [f"/data/{name}" for name in (CHECKPOINT, EXTENT)]

    def files(self) -> list[str]:
        """Return the paths of the journal's files, the one with the oldest entries first."""
        paths = [f"{FOLDER}/{name}" for name in self.fs.files(FOLDER)]
        return sorted(paths, key=lambda path: max([0, *(n for n, _ in self.entries(path))]))

    def entries(self, path: str) -> Iterator[tuple[int, int]]:
        """Yield sequence and position of each entry of a file."""
        data = memoryview(bytes(self.fs.content(path)))
        for position in range(0, len(data), BLOCK):
            place = read_place(data, position, bytes(data[position + 8 : position + 24]))
            if place is not None:
                yield place.sequence, position

    def last_entry(self) -> tuple[str, int]:
        """Return path and position of the last entry."""
        path = self.files()[-1]
        return path, max(self.entries(path))[1]


@pytest.fixture(scope="module", params=[0, 3], ids=["at the last entry", "three entries behind"])
def life(request: pytest.FixtureRequest) -> Life:
    """A disk after a power cut. The extent has the last entry, or three less."""
    found = Life()
    store = found.open()
    logs = []
    for n in range(PARTITIONS):
        store.create(TopicPartition("t", n), parse_config({}), UUID(int=n + 1))
        log = store.get(TopicPartition("t", n))
        write(log, [(b"k", b"first")], NOW, sync=True)
        logs.append(log)
    while len(found.fs.files(FOLDER)) < 4:
        store.journal.add_file(store.journal.create_file())
    rounds = 24
    for number in range(rounds):
        n = number % PARTITIONS
        value = b"%d." % number + bytes(100)
        write(logs[n], [(b"k", value)], NOW, sync=False)
        assert commit(store, [logs[n]]) == []
        found.promised[n].append(value)
        if number == 5:
            for log in logs:
                store_segments(store, log)
        if number == 10:
            witness(store)
            found.before = found.snapshot()
        if number == rounds - 1 - request.param:
            witness(store)
            found.covered = number + 1
    found.fs.power_cut(Unlucky())
    return found


def damaged(life: Life, damage: Callable[..., None], *where: Any) -> Life:
    """Return a copy of the disk with a damage."""
    victim = copy.deepcopy(life)
    damage(victim, *where)
    return victim


def outcome(victim: Life, name: str) -> str:
    """Start, and return what has happened. A loss without a report is an error."""
    found = [each for each in Inspection(victim.fs, "/data").run() if not each.is_repaired]
    try:
        store = victim.open()
    except JournalDamagedError as refusal:
        check_refusal(victim, str(refusal), [each.text for each in found])
        return REFUSED
    is_harmless = True
    for n, promised in victim.promised.items():
        tp = TopicPartition("t", n)
        if tp in store.offline:
            is_harmless = False
            error = store.offline[tp]
            assert isinstance(error, CorruptLogError), name
            assert error.offset is not None, name
            assert error.offset < len(promised), name
            assert any(f"t-{n}" in each.text for each in found), name
            continue
        values = [record.value for record in read_records(store.get(tp))]
        assert values[: len(promised)] == promised, name
    assert not (found and is_harmless), (name, found)
    return HARMLESS if is_harmless else PARTLY


def check_refusal(victim: Life, error: str, found: list[str]) -> None:
    """The place is named, a refused start changes nothing, and a repair lets the broker start."""
    assert "/data/" in error
    assert any(text.removeprefix("the journal is damaged: ") in error for text in found)
    victim.fs.kill()
    with pytest.raises(JournalDamagedError):
        victim.open()
    victim.fs.kill()
    accept_damage(victim.fs, "/data")
    assert "accepted" in reports(victim.open())


def run(life: Life, *cases: tuple[Any, ...]) -> set[str]:
    """Return the outcomes of all cases: a damage and its arguments."""
    return {outcome(damaged(life, *case), f"{case[0].__name__} {case[1:]}") for case in cases}


def flip(victim: Life, path: str, position: int, bit: int) -> None:
    victim.fs.content(path)[position] ^= 1 << bit


def content_of(life: Life) -> JournalContent:
    """Return what a start reads in the journal."""
    env = Environment(life.fs, HandlePool(life.fs, 4), MapCache(life.fs), ManualClock(NOW))
    return read_journal(env, "/data")


def reports(store: LogStore) -> str:
    return "\n".join(map(str, store.reports))


def cut(victim: Life, path: str, size: int) -> None:
    del victim.fs.content(path)[size:]


def fill(victim: Life, path: str, start: int, end: int, byte: int) -> None:
    victim.fs.content(path)[start:end] = bytes([byte]) * (end - start)


def remove(victim: Life, *paths: str) -> None:
    for path in paths:
        victim.fs.remove(path)


def restore(victim: Life, *paths: str) -> None:
    """Restore files as they were some time before."""
    for path in paths:
        victim.fs.content(path)[:] = victim.before[path]


def test_an_undamaged_journal_restores_everything(life: Life) -> None:
    assert run(life, (remove,)) == {HARMLESS}  # of no file


# --- the small files ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CHECKPOINT, EXTENT])
def test_a_changed_bit_in_a_small_file_is_harmless(life: Life, name: str) -> None:
    path = f"/data/{name}"
    size = len(life.fs.content(path))
    whole, data = content_of(life).proofs, life.fs.content(path)
    for at in (at for at in range(size) if at % SLOT_BYTES < 400):
        data[at] ^= 1 << at % 8
        found = content_of(life)
        assert not found.unproven
        assert {key: each.pieces for key, each in found.proofs.items()} == {
            key: each.pieces for key, each in whole.items()
        }
        data[at] ^= 1 << at % 8
    assert run(life, *((flip, path, at, at % 8) for at in range(0, 120, 7))) == {HARMLESS}


@pytest.mark.parametrize("name", [CHECKPOINT, EXTENT])
def test_a_small_file_that_is_lost_cut_or_old_is_harmless(life: Life, name: str) -> None:
    path = f"/data/{name}"
    cases = [(cut, path, size) for size in (0, 1, 40, 100, 4096, SLOT_BYTES)]
    zeros = fill, path, 0, len(life.fs.content(path)), 0
    assert run(life, *cases, (remove, path), (restore, path), zeros) == {HARMLESS}


def test_an_old_checkpoint_of_another_journal_is_noticed(life: Life) -> None:
    def replace(victim: Life, old: JournalCheckpoint) -> None:
        victim.fs.content(f"/data/{CHECKPOINT}")[:] = encode_journal_checkpoint(old)

    for old in (JournalCheckpoint(b"", epoch=1), JournalCheckpoint(bytes(16), 7, epoch=2)):
        assert run(life, (replace, old)) == {HARMLESS}
        assert "older than the journal" in reports(damaged(life, replace, old).open())


def test_without_both_small_files_the_broker_does_not_start(life: Life) -> None:
    assert run(life, (remove, *life.small())) == {REFUSED}


# --- files ----------------------------------------------------------------------------------------


def test_a_file_that_is_missing_is_noticed(life: Life) -> None:
    files = life.files()
    assert run(life, *((remove, path) for path in files), (remove, *files)) == {REFUSED}


def test_a_file_that_is_cut_is_noticed(life: Life) -> None:
    sizes = range(0, FILE_BYTES, BLOCK // 2)
    assert run(life, *((cut, path, size) for path in life.files() for size in sizes)) == {REFUSED}


def test_renamed_and_copied_files_are_harmless_or_noticed(life: Life) -> None:
    first, *_, last = life.files()

    def swap(victim: Life) -> None:
        one, other = victim.fs.content(first), victim.fs.content(last)
        one[:], other[:] = bytes(other), bytes(one)

    def duplicate(victim: Life) -> None:
        victim.fs.write_atomic(f"{FOLDER}/00000009.journal", bytes(victim.fs.content(last)))

    def rename(victim: Life) -> None:
        victim.fs.rename(last, f"{FOLDER}/00000009.journal")

    assert run(life, (swap,), (duplicate,)) == {HARMLESS}
    assert run(life, (rename,)) == {REFUSED}


def test_an_old_journal_with_its_old_checkpoint_is_noticed(life: Life) -> None:
    journal = [path for path in life.before if path.startswith(FOLDER)]
    cases = (restore, *journal), (restore, *journal, f"/data/{CHECKPOINT}")
    assert HARMLESS not in run(life, *cases)


# --- regions --------------------------------------------------------------------------------------


def test_a_changed_bit_in_any_entry_is_harmless(life: Life) -> None:
    """Every bit of the header and of the pieces, also of the last entry."""
    expected = content_of(life)
    assert expected.is_whole
    for path in life.files():
        for sequence, position in life.entries(path):
            data = life.fs.content(path)
            size = HEADER_BYTES + int.from_bytes(data[position + 40 : position + 44], "big")
            is_last = sequence == 24 and life.covered < 24
            step = 1 if is_last else 41 if IS_NIGHTLY else 127
            for number in range(sequence % step, size * 8, step):  # not the same bits in each entry
                at, bit = divmod(number, 8)
                data[position + at] ^= 1 << bit
                assert content_of(life) == expected, (path, sequence, at, bit)
                data[position + at] ^= 1 << bit
    last, position = life.last_entry()
    cases = [(flip, last, position + at, at % 8) for at in range(0, 200, 9)]
    assert run(life, *cases) == {HARMLESS}
    victim = damaged(life, *cases[1])
    assert "a changed bit in entry 24 of the journal was corrected" in reports(victim.open())


def test_an_entry_that_is_overwritten_is_noticed(life: Life) -> None:
    """By zeros, by garbage, or by what was there before the write: its first bytes, or all."""
    cases = [
        (fill, path, position + start, position + end, byte)
        for path in life.files()
        for sequence, position in life.entries(path)
        if sequence <= life.covered
        for byte in (0, 0xAA)
        for start, end in ((0, 16), (0, 512), (24, 60), (130, 180), (0, BLOCK))
    ]
    assert run(life, *cases) == {HARMLESS, PARTLY}


def test_the_end_of_the_newest_file_with_old_content_is_noticed(life: Life) -> None:
    *_, path = life.files()
    for sequence, position in life.entries(path):
        if sequence <= life.covered:
            for old in (bytes(FILE_BYTES), life.before[path]):
                victim = copy.deepcopy(life)
                victim.fs.content(path)[position:] = old[position:]
                for number in range(life.covered, 24):  # no second place has them
                    victim.promised[number % PARTITIONS].pop()
                assert outcome(victim, f"old content from entry {sequence} on") == PARTLY


def test_an_entry_in_the_middle_that_nothing_describes_stops_the_start(life: Life) -> None:
    """The extent does not reach it yet, but an entry behind it shows that it was acknowledged."""
    last = max(sequence for path in life.files() for sequence, _ in life.entries(path))
    for path in life.files():
        for sequence, position in life.entries(path):
            if life.covered < sequence < last:
                assert run(life, (fill, path, position, position + 512, 0)) == {REFUSED}


def test_damage_of_the_last_entry_before_the_extent_has_it_looks_like_an_unfinished_write(
    life: Life,
) -> None:
    path, position = life.last_entry()
    store = damaged(life, fill, path, position + 130, position + 180, 0xAA).open()
    is_known = "the last one, is incomplete" not in reports(store)
    assert is_known == (life.covered == 24)
    assert is_known == (TopicPartition("t", 2) in store.offline)


def test_segments_that_survived_need_no_journal(life: Life) -> None:
    """After the end of a process only, nothing is missing, whatever the journal has lost."""
    victim = copy.deepcopy(life)
    victim.open()
    victim.fs.kill()
    assert outcome(victim, "killed") == HARMLESS


def test_reports_about_the_journal_name_no_partition(life: Life) -> None:
    store = damaged(life, remove, f"/data/{CHECKPOINT}").open()
    reports = [str(each) for each in store.reports]
    assert any(each.startswith("the file is missing") for each in reports)
    assert not any("--1" in each for each in reports)
