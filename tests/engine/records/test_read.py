"""Reads: the aborted transactions in what was read, and memory that is short."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.engine.records.support import Bench, FakeBudget
from tests.engine.transactions.support import visible
from tests.support.logs import TP, write
from tidemill.engine.api import Durability, Isolation, PartitionRead, ReadQuery
from tidemill.log.compaction.run import compact
from tidemill.log.config.parse import parse_config
from tidemill.log.disk.slice import Slice
from tidemill.log.errors import OffsetOutOfRangeError
from tidemill.log.format.batch import Buffer, iter_headers
from tidemill.log.format.markers import Marker


async def test_readers_get_the_aborted_transactions_that_overlap_their_records(
    bench: Bench,
) -> None:
    for number in range(3):
        bench.produce(Durability.WRITTEN, number, transactional=True)
        bench.log.append_marker(Marker(7, 0, commit=False), now_ms=bench.clock.now_ms())
    bench.log.flush()
    whole = await bench.read(0, 1 << 20, Isolation.READ_COMMITTED)
    assert whole.aborted == ((7, 0), (7, 2), (7, 4))
    sizes = [header.size for _, header in iter_headers(whole.records)]
    middle = await bench.read(2, sum(sizes[2:4]), Isolation.READ_COMMITTED)
    assert middle.aborted == ((7, 2),)
    cut = await bench.read(2, sum(sizes[2:4]) + 20, Isolation.READ_COMMITTED)
    assert cut.aborted == ((7, 2),)
    dirty = await bench.read(0, 1 << 20, Isolation.READ_UNCOMMITTED)
    assert dirty.aborted == ()


@pytest.mark.parametrize("taken_away_by", ["compaction", "retention"])
async def test_readers_get_no_aborted_records_whose_index_vanishes_while_they_are_read_from_disk(
    taken_away_by: str, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    gone, load = threading.Event(), Slice.load

    def slow(piece: Slice) -> Buffer:
        assert gone.wait(60)
        return load(piece)

    monkeypatch.setattr(Slice, "load", slow)
    bench.log.config = parse_config({"cleanup.policy": "compact"})
    bench.produce(Durability.WRITTEN, 0, transactional=True)
    bench.log.append_marker(Marker(7, 0, commit=False), now_ms=bench.clock.now_ms())
    bench.log.roll(bench.clock.now_ms())
    bench.log.flush()
    bench.fs.cold = True
    reading = asyncio.ensure_future(bench.read(0, 1 << 20, Isolation.READ_COMMITTED))
    await asyncio.sleep(0)
    if taken_away_by == "retention":
        bench.log.delete_records_before(2)
    else:
        for work in compact(bench.log, bench.clock.now_ms()):
            if work is not None:
                work.run()
    gone.set()
    result = await reading
    assert (result.error, visible(result)) == (None, [])


# --- memory --------------------------------------------------------------------------------------


def fill(bench: Bench, count: int) -> int:
    """Append batches; return the size of one."""
    for number in range(count):
        bench.produce(Durability.WRITTEN, number)
    bench.log.flush()
    return bench.log.size_bytes // count


def query(budget: FakeBudget) -> ReadQuery:
    return ReadQuery([PartitionRead(*TP, 0, 1 << 20)], 0, 1, 1 << 20, budget=budget)


@pytest.mark.parametrize("share", [1.0, 3.0, 2.5, 0.5, 0.0])
async def test_a_read_loads_its_share_of_the_memory_or_one_batch(
    share: float, bench: Bench
) -> None:
    size = fill(bench, 3)
    budget = FakeBudget(lambda _: int(share * size))
    (result,) = await bench.reader.read(query(budget))
    assert budget.wanted == [3 * size]
    expected = max(int(share * size), size)
    assert len(result.records) == budget.held == expected


async def test_a_read_without_a_share_waits_for_its_turn_and_sees_what_is_there_then(
    bench: Bench,
) -> None:
    size = fill(bench, 3)
    budget = FakeBudget(lambda _: None)
    reading = asyncio.ensure_future(bench.reader.read(query(budget)))
    while not budget.turns:
        await asyncio.sleep(0)
    assert budget.turns == [3 * size]
    bench.log.delete_records_before(2)  # meanwhile
    budget.may_pass.set()
    (result,) = await reading
    assert isinstance(result.error, OffsetOutOfRangeError)
    assert budget.held == 0


async def test_an_empty_read_asks_for_no_memory(bench: Bench) -> None:
    budget = FakeBudget(lambda size: size)
    (result,) = await bench.reader.read(query(budget))
    assert (len(result.records), budget.wanted) == (0, [])


async def test_lookups_by_time_let_other_tasks_run_in_between(bench: Bench) -> None:
    write(bench.log, [(b"k", b"v")], bench.clock.now_ms())

    async def lookups() -> None:
        for _ in range(50):
            found = await bench.positions.find(*TP, 0, Isolation.READ_UNCOMMITTED, None)
            assert found is not None
            assert found.offset == 0

    task, turns = asyncio.ensure_future(lookups()), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 50
