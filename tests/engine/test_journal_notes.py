"""What was synced in segments is noted in the journal soon, with few more syncs."""

from __future__ import annotations

import pytest

from tests.engine.test_journaling import begin, broker, ends, run, write
from tests.engine.transactions.support import cut_power
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tidemill.engine import journaling as journaling_module
from tidemill.log.journal.journal import LOG_BYTES
from tidemill.log.names import TopicPartition


def test_a_damaged_first_batch_of_a_partition_is_restored() -> None:
    """It was synced in the segment, perhaps before the journal was open."""

    async def test() -> None:
        fs = FaultyFileSystem()
        engine = await broker(fs)
        await cut_power(engine, fs, Unlucky())
        fs.clear_faults()
        damaged = [TopicPartition("t", 3), TopicPartition("t", 4)]
        flipped, torn = (fs.content(f"/data/{tp}/{0:020}.log") for tp in damaged)
        flipped[61] ^= 1
        del torn[20:]
        again = await broker(fs)
        assert not again._store.offline
        restored = [str(each) for each in again._store.reports if each.tp in damaged]
        assert len(restored) == 2
        assert all("offsets 0 to 0 restored from the journal" in each for each in restored)
        assert ends(again) == {2}
        await again.stop()

    run(test)


def test_entries_with_notes_only_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaling_module, "TICK_S", 3_600)
    monkeypatch.setattr(journaling_module, "NOTES_S", 3_600)

    async def test() -> None:
        engine = await broker(FaultyFileSystem())
        journal = engine._store.journal
        await write(engine, b"second")
        before = journal.next_sequence
        for _ in range(10):
            await begin(engine, 0, LOG_BYTES)  # too much for the journal
        assert journal.has_notes
        assert journal.next_sequence <= before + 1
        await write(engine, b"third", partitions=1)
        await begin(engine, 1, 100)
        assert not journal.has_notes  # the next round had them
        await engine.stop()

    run(test)
