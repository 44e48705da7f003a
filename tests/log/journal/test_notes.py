"""What was acknowledged stays proven after the sync of its segment, until a recovery point does."""

from __future__ import annotations

import errno
import random
from uuid import UUID

import pytest

from tests.log.journal.test_journal_recovery import FIRST, NOW, A, B, World
from tests.support.journaled import commit, make_durable, store_segments
from tests.support.logs import advance, ticket_of, write
from tidemill.log.config.parse import parse_config
from tidemill.log.disk.files import RawFile
from tidemill.log.errors import CorruptLogError
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.notes import BATCH_BYTES, NOTES_TOGETHER, Notes
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.recovery.inspect import Inspection


def add_partition(world: World) -> PartitionLog:
    """Create a partition without records, which the world has behind the others."""
    world.partitions.append(TopicPartition("u", 0))
    return world.store.create(world.partitions[-1], parse_config({}), UUID(int=2))


def overwrite_journal(world: World, partition: int = 1) -> None:
    """Write to another partition until the journal has reused all of its files."""
    first = world.store.journal.next_sequence
    while world.store.journal.next_sequence < first + 40:  # the files have 32 blocks
        world.promise(b"other", partition=partition)
        store_segments(world.store, world.log(partition))


def test_a_changed_bit_in_a_synced_segment_is_restored_while_the_journal_has_the_batch() -> None:
    world = World.promised(A, B, partitions=2)
    store_segments(world.store, world.log(0))
    world.promise(b"other", partition=1)  # its entry says that those before are not needed
    world.fs.kill()
    world.flip(1)
    world.reopen()
    assert world.values() == [FIRST, A, B]
    assert "restored from the journal" in world.reports()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_changed_bit_below_the_recovery_point_is_restored_too(is_closed: bool) -> None:
    world = World.promised(A, B)
    path = world.segment()
    if is_closed:
        world.log().roll(NOW)
        world.append(0, b"later")
        make_durable(world.store, world.log())
    store_segments(world.store, world.log())
    advance(world.store)
    assert world.log().recovery_point == world.log().log_end_offset
    world.fs.kill()
    world.fs.content(path)[-1] ^= 1
    world.reopen()
    assert world.values() == [FIRST, A, B, b"later"][: 4 if is_closed else 3]


@pytest.mark.parametrize("operation", ["open", "read", "write"])
def test_a_disk_that_refuses_to_restore_below_the_recovery_point_does_not_prevent_a_start(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.promised(A, partitions=2)
    log, path = world.log(), world.segment()
    log.roll(NOW)
    world.append(0, b"later")
    make_durable(world.store, log)
    advance(world.store)
    world.fs.kill()
    world.fs.content(path)[80] ^= 1
    if operation == "open":
        opened = world.fs.open

        def refuse(name: str, *, create: bool = False) -> RawFile:
            if name == path:
                raise OSError(errno.EIO, "Input/output error", path)
            return opened(name, create=create)

        monkeypatch.setattr(world.fs, "open", refuse)
    else:
        world.fs.fail(operation, errno.EIO, times=-1, path=path)
    world.reopen()
    monkeypatch.undo()
    world.fs.clear_faults()
    assert world.values(1) == [FIRST]
    if not world.store.offline:
        with pytest.raises(CorruptLogError):
            world.values()


@pytest.mark.parametrize("files", [1, 2])
def test_a_changed_bit_is_damage_after_the_journal_was_overwritten(files: int) -> None:
    world = World(2)
    if files == 2:
        world.store.journal.add_file(world.store.journal.create_file())
    world.promise(A, B)
    store_segments(world.store, world.log(0))
    overwrite_journal(world)
    world.fs.kill()
    world.flip(1)
    before = bytes(world.content())
    (damage,) = Inspection(world.fs, "/data").run()
    assert not damage.is_repaired  # not taken for an unfinished write
    world.reopen()
    error = world.store.offline[world.partitions[0]]
    assert isinstance(error, CorruptLogError)
    assert "the journal proves records up to offset 2" in str(error)
    assert bytes(world.fs.content(error.path)) == before
    assert len(world.values(1)) == 41


def test_a_note_is_not_needed_when_the_recovery_point_is_on_disk() -> None:
    world = World.promised(b"a", partitions=2)
    store_segments(world.store, world.log(0))
    world.promise(b"other", partition=1)
    journal = world.store.journal
    assert dict(journal.notes.noted()) == {world.log(0): 2}
    for _ in range(3):  # seen as idle, written, and seen as written
        world.store.checkpoint()
    assert dict(journal.notes.noted()) == {}
    overwrite_journal(world)
    world.flip(1)
    world.kill()
    assert "the log was synced up to offset 2" in str(world.store.offline[world.partitions[0]])


def test_a_deleted_partition_has_no_note() -> None:
    world = World.promised(b"a", partitions=2)
    log = world.log()
    store_segments(world.store, log)
    world.promise(b"other", partition=1)
    store_segments(world.store, world.log(1))
    world.store.journal.forget(log)
    assert log not in dict(world.store.journal.notes.noted())


@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
@pytest.mark.parametrize("is_rolled", [False, True], ids=["first segment", "next segment"])
def test_the_first_batch_of_a_segment_is_restored(damage: str, is_rolled: bool) -> None:
    """It can't go to the journal before the file's name is synced, and goes there afterwards."""
    world = World()
    if is_rolled:
        world.log().roll(NOW)
    else:
        add_partition(world)
    log = world.log(len(world.partitions) - 1)
    values = [b"%d" % n for n in range(5)]
    write(log, [(b"k", value) for value in values], NOW, sync=False)
    make_durable(world.store, log)
    assert log.stored_offset == log.log_end_offset
    write(log, [(b"k", b"next")], NOW, sync=False)
    assert commit(world.store, [log]) == []  # the entry has the note too
    world.fs.kill()
    data = world.fs.content(log.chain.active.path())
    if damage == "torn":
        del data[20:]
    elif damage == "gone":
        data.clear()
    else:
        data[61] ^= 1
    world.reopen()
    assert not world.store.offline
    last = world.values(len(world.partitions) - 1)
    assert last == [FIRST] * is_rolled + values + [b"next"]


def test_a_journal_without_space_for_all_notes_still_takes_appends() -> None:
    world = World(2)
    store_segments(world.store, world.log(0))
    journal = world.store.journal
    note = Piece(b"x" * 16, 0, 0, 0, 0, 5, 0)
    for _ in range(3):
        for owner in range(3 * NOTES_TOGETHER):  # 3072 notes don't fit in a file of 64 KB
            journal.notes.add(owner, note)
        overwrite_journal(world)
    world.power_cut()
    assert len(world.values(1)) == 121


@pytest.mark.parametrize("seed", range(30))
def test_no_changed_bit_loses_an_acknowledged_record_in_silence(seed: int) -> None:
    dice = random.Random(seed)
    world = World(3)
    for step in range(dice.randrange(10, 150)):
        n = dice.randrange(3)
        value = b"%d." % step + bytes(dice.randrange(1500))
        world.append(n, value)
        make_durable(world.store, world.log(n))
        if dice.random() < 0.5:
            store_segments(world.store, world.log(n))
        if dice.random() < 0.05:
            world.store.checkpoint()
    commit(world.store, [])
    expected = [world.values(n) for n in range(3)]
    noted = dict(world.store.journal.notes.noted())
    n = dice.randrange(3)
    batch = dice.randrange(len(world.starts(world.segment(n))))
    world.fs.kill()
    world.flip(batch, n)
    last_is_noted = noted.get(world.log(n), 0) >= len(expected[n])
    world.reopen()
    if world.partitions[n] not in world.store.offline:
        found = world.values(n)
        # The note of a direct sync is in the next entry, which was perhaps not written yet.
        assert found == expected[n] or (not last_is_noted and found == expected[n][: len(found)])
    for other in {0, 1, 2} - {n}:
        assert world.values(other) == expected[other]


def test_the_first_batches_are_restored_if_more_was_synced_before_they_were_noted() -> None:
    """The journal is perhaps not open yet, so further batches are synced in the segment too."""
    world = World()
    log = add_partition(world)
    for value in (b"one", b"two"):
        write(log, [(b"k", value)], NOW, sync=False)
        ticket = ticket_of(log)
        ticket.run()
        log.finish_sync(ticket)
        world.store.journal.notes.add(log, ticket.note(UUID(int=2).bytes))
    write(log, [(b"k", b"three")], NOW, sync=False)
    assert commit(world.store, [log]) == []
    world.fs.kill()
    world.fs.content(log.chain.active.path())[61] ^= 1
    world.reopen()
    assert world.values(1) == [b"one", b"two", b"three"]


def test_notes_without_space_do_not_keep_appends_out_of_the_journal() -> None:
    world = World(2)
    journal = world.store.journal
    for _ in range(14):  # of 16 blocks of the only file
        world.promise(b"x", partition=1)
    journal.notes.add(world.log(0), Piece(b"x" * 16, 0, 0, 0, 0, 5, 20_000, (bytes(20_000),)))
    world.promise(b"small", partition=1)
    assert journal.notes.are_waiting


def test_the_only_copy_of_a_note_is_not_overwritten() -> None:
    world = World(2)
    journal = world.store.journal
    world.promise(A, B)
    for _ in range(14):  # the only file is full
        world.promise(b"x", partition=1)
    for _ in range(2):
        store_segments(world.store, world.log(0))
        store_segments(world.store, world.log(1))
        first = journal.next_sequence
        while journal.next_sequence < first + 16:
            world.promise(b"x", partition=1)
            store_segments(world.store, world.log(1))
    world.promise(b"x", partition=1)  # to the beginning of the file
    world.fs.kill()
    world.flip(2)
    world.reopen()
    assert world.partitions[0] in world.store.offline


def test_the_doctor_names_what_is_restored_and_the_damage_of_other_segments() -> None:
    world = World()
    first = world.segment()
    world.log().roll(NOW)
    world.append(0, A)
    make_durable(world.store, world.log())
    world.promise(b"next")
    world.fs.kill()
    world.fs.content(first)[61] ^= 1
    world.fs.content(world.segment())[61] ^= 1
    restored, damage = Inspection(world.fs, "/data").run()
    assert "the journal has offsets 1 to 1" in restored.text
    assert restored.is_repaired
    assert first in damage.text
    assert not damage.is_repaired


# --- the notes -----------------------------------------------------------------------------------


@pytest.fixture
def notes() -> Notes:
    return Notes()


def note(end_offset: int, size: int = 0) -> Piece:
    return Piece(b"t" * 16, 0, 0, 0, 0, end_offset, size, (bytes(size),) if size else ())


def test_notes_are_taken_in_portions_and_the_latest_counts(notes: Notes) -> None:
    for owner in range(NOTES_TOGETHER + 1):
        notes.add(owner, note(1))
    notes.add(0, note(3))
    notes.add(0, note(2))
    assert len(taken := notes.take(1 << 20)) == NOTES_TOGETHER
    assert taken[0].end_offset == 3
    assert notes.are_waiting
    notes.written(7)
    assert len(notes.take(1 << 20)) == 1
    notes.written(8)
    assert not notes.are_waiting
    assert len(notes.noted()) == NOTES_TOGETHER + 1


def test_notes_are_written_again(notes: Notes) -> None:
    for sequence, owner in ((1, "a"), (2, "b")):
        notes.add(owner, note(1))
        notes.take(1 << 20)
        notes.written(sequence)
    notes.renew()
    assert len(notes.take(1 << 20)) == 2
    assert notes.noted() == []
    notes.give_back()
    notes.add("a", note(2))
    assert len(notes.take(1 << 20)) == 2
    notes.written(6)
    assert dict(notes.noted()) == {"a": 2, "b": 1}


def test_an_entry_that_can_not_be_written_gives_its_notes_to_the_next_one(notes: Notes) -> None:
    notes.add("a", note(1, 1000))
    notes.take(1 << 20)
    notes.add("b", note(1))
    notes.add("a", note(2))
    taken = [(each.end_offset, each.size) for each in notes.take(1 << 20)]
    assert taken == [(1, 0), (1, 1000), (2, 0)]


def test_a_note_keeps_its_batches_if_there_is_space_and_no_second_time(notes: Notes) -> None:
    notes.add("a", note(1, 1000))
    notes.add("b", note(1, 1000))
    assert [each.size for each in notes.take(1200)] == [1000, 0]
    notes.written(1)
    notes.renew()
    assert [each.size for each in notes.take(1200)] == [0, 0]


def test_the_batches_in_waiting_notes_are_bounded(notes: Notes) -> None:
    for owner in range(10):
        notes.add(owner, note(1, BATCH_BYTES // 4))
    notes.forget(0)
    notes.add("next", note(1, BATCH_BYTES // 4))
    sizes = [each.size for each in notes.take(1 << 30)]
    assert sum(map(bool, sizes)) == 4
    notes.written(1)
    notes.add("later", note(1, BATCH_BYTES))
    assert [each.size for each in notes.take(1 << 30)] == [BATCH_BYTES]


def test_a_later_note_leaves_the_batches_of_one_that_waits(notes: Notes) -> None:
    for each in (note(1, 1000), note(2), note(3, 10), note(2)):
        notes.add("a", each)
    assert [(each.end_offset, each.size) for each in notes.take(1 << 20)] == [(1, 1000), (3, 10)]
    notes.written(1)
    assert notes.noted() == [("a", 3)]


def test_a_note_that_was_forgotten_while_it_was_written_does_not_return(notes: Notes) -> None:
    notes.add("a", note(1))
    notes.take(1 << 20)
    notes.forget("a")
    notes.written(1)
    assert notes.noted() == []
