"""What was synced in segments is noted in the journal soon, with few more syncs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.engine.support import entered, until
from tests.engine.test_journaling import begin, broker, ends, write_each
from tests.engine.transactions.support import cut_power, noted
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tidemill.engine import journaling as journaling_module
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.journal import LOG_BYTES, Journal, JournalWrite
from tidemill.log.names import TopicPartition
from tidemill.log.partition.sync import SyncTicket


@pytest.fixture
def engine(loop_runner: asyncio.Runner, fs: FaultyFileSystem) -> Iterator[Engine]:
    yield from entered(loop_runner, broker(fs))


async def test_a_damaged_first_batch_of_a_partition_is_restored(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    """It was synced in the segment, perhaps before the journal was open."""
    await cut_power(engine, fs, Unlucky())
    fs.clear_faults()
    damaged = [TopicPartition("t", 3), TopicPartition("t", 4)]
    flipped, torn = (fs.content(f"/data/{tp}/{0:020}.log") for tp in damaged)
    flipped[61] ^= 1
    del torn[20:]
    async with broker(fs) as again:
        assert not again._store.offline
        restored = [str(each) for each in again._store.reports if each.tp in damaged]
        assert len(restored) == 2
        assert all("offsets 0 to 0 restored from the journal" in each for each in restored)
        assert ends(again) == {2}


async def test_entries_with_notes_only_are_rare(
    fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaling_module, "TICK_S", 3_600)
    monkeypatch.setattr(journaling_module, "NOTES_S", 3_600)
    async with broker(fs) as engine:
        journal = engine._store.journal
        await write_each(engine, b"second")
        before = journal.next_sequence
        for _ in range(10):
            await begin(engine, 0, LOG_BYTES)  # too much for the journal
        assert journal.notes.are_waiting
        assert journal.next_sequence <= before + 1
        await write_each(engine, b"third", partitions=1)
        await begin(engine, 1, 100)
        assert not journal.notes.are_waiting  # the next round had them


async def test_an_append_does_not_wait_behind_an_entry_with_notes_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    entries: list[int] = []
    written, begun = JournalWrite.run, Journal.begin

    def held(write: JournalWrite) -> None:
        assert gate.wait(60)
        written(write)

    def counted(journal: Journal, pieces: Sequence[Piece]) -> JournalWrite | None:
        entries.append(len(pieces))
        return begun(journal, pieces)

    journal = engine._store.journal
    await engine.topics.create([NewTopic("new", 2)])
    await noted(engine)
    monkeypatch.setattr(JournalWrite, "run", held)
    monkeypatch.setattr(Journal, "begin", counted)
    await begin(engine, 0, 100, topic="new")
    assert entries == [0]  # its note is on its way
    append = asyncio.ensure_future(begin(engine, 0, 100))
    await begin(engine, 1, 100, topic="new")
    assert journal.notes.are_waiting
    gate.set()
    await append
    assert entries == [0, 1]  # with the note of the other partition
    assert not journal.notes.are_waiting


async def test_a_partition_that_is_deleted_during_its_sync_leaves_no_note(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    synced = SyncTicket.run

    def held(ticket: SyncTicket) -> None:
        if "new" in ticket.chain.folder:
            assert gate.wait(60)
        synced(ticket)

    await engine.topics.create([NewTopic("new", 1)])
    log = engine._store.get(TopicPartition("new", 0))
    monkeypatch.setattr(SyncTicket, "run", held)
    answer = asyncio.ensure_future(begin(engine, 0, 100, topic="new"))
    await until(lambda: engine._flusher._runner.is_busy)
    await engine.topics.delete(["new"])
    gate.set()
    (result,) = await answer
    assert isinstance(result, TidemillError)
    await until(lambda: not engine._flusher._runner.is_busy)
    await noted(engine)
    await begin(engine, 0, 100)
    assert log not in dict(engine._store.journal.notes.noted())
