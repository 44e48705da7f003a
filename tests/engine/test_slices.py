"""Long work in slices: fairness, memory, errors and the stop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.records.slices import MEDIUM_AT_ONCE, MEDIUM_BYTES, SLICE_MS, Slices
from tidemill.log.errors import InvalidRecordError
from tidemill.log.steps import Steps, Work, elsewhere


@pytest.fixture
def slices() -> Slices:
    return Slices()


def busy(milliseconds: float, done: list[str], name: str) -> Steps[str]:
    """Use the processor for so long, in steps of a tenth of a slice."""
    for _ in range(int(milliseconds / SLICE_MS * 10)):
        ends = time.perf_counter() + SLICE_MS / 10_000
        while time.perf_counter() < ends:
            pass
        yield None
    done.append(name)
    return name


async def test_short_work_does_not_wait_for_long_work(slices: Slices) -> None:
    done: list[str] = []
    long = [asyncio.ensure_future(slices.run(busy(100, done, "long"))) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert await slices.run(busy(2, done, "short")) == "short"
    assert done == ["short"]
    assert await asyncio.gather(*long) == ["long", "long"]


async def test_the_loop_is_free_between_two_slices(slices: Slices) -> None:
    done: list[str] = []
    work = [asyncio.ensure_future(slices.run(busy(50, done, "x"))) for _ in range(4)]
    turns = 0
    while not all(each.done() for each in work):
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 200 / SLICE_MS / 2  # one slice of all work in a turn


async def test_background_work_takes_half_of_the_time_and_no_memory_of_requests(
    slices: Slices,
) -> None:
    def background() -> Steps[str]:
        yield Work(lambda: None, MEDIUM_BYTES + 1)
        return (yield from busy(60, [], "background"))

    began = time.perf_counter()
    work = asyncio.ensure_future(slices.run(background(), in_background=True))
    await asyncio.sleep(0.01)
    large = slices.run(elsewhere(threading.get_ident, MEDIUM_BYTES + 1))
    assert await asyncio.wait_for(large, 600)
    assert not work.done()
    assert await work == "background"
    assert time.perf_counter() - began >= 0.11


async def test_blocking_work_runs_on_a_thread_and_gives_its_result(slices: Slices) -> None:
    def steps() -> Steps[int]:
        return (yield from elsewhere(threading.get_ident))

    assert await slices.run(steps()) != threading.get_ident()


async def test_an_error_of_blocking_work_reaches_the_steps_which_can_go_on(slices: Slices) -> None:
    def fail() -> None:
        raise InvalidRecordError("no")

    def steps() -> Steps[str]:
        try:
            yield from elsewhere(fail)
        except InvalidRecordError:
            yield from elsewhere(lambda: None)  # the next work of a step that handles an error
        return "handled"

    assert await slices.run(steps()) == "handled"
    with pytest.raises(InvalidRecordError):
        await slices.run(elsewhere(fail))


@pytest.mark.parametrize(
    ("holds", "at_once"), [(MEDIUM_BYTES, MEDIUM_AT_ONCE), (MEDIUM_BYTES + 1, 1)]
)
async def test_memory_is_held_by_few_at_a_time(holds: int, at_once: int, slices: Slices) -> None:
    holding = most = 0
    release = threading.Event()

    def steps() -> Steps[None]:
        nonlocal holding, most
        yield Work(lambda: None, holds)
        holding += 1
        most = max(most, holding)
        yield from elsewhere(release.wait)
        holding -= 1

    work = [asyncio.ensure_future(slices.run(steps())) for _ in range(12)]
    while holding < at_once:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*work)
    assert (holding, most) == (0, at_once)


async def test_work_that_waits_for_much_memory_does_not_keep_little_from_others(
    slices: Slices,
) -> None:
    release = threading.Event()

    def grows() -> Steps[None]:
        yield Work(lambda: None, MEDIUM_BYTES)
        yield from elsewhere(release.wait, MEDIUM_BYTES * 8)

    def small() -> Steps[str]:
        yield Work(lambda: None, MEDIUM_BYTES)
        return "small"

    growing = [asyncio.ensure_future(slices.run(grows())) for _ in range(2 * MEDIUM_AT_ONCE)]
    try:
        assert await asyncio.wait_for(slices.run(small()), 600) == "small"
    finally:
        release.set()
    await asyncio.gather(*growing)


async def test_a_stop_ends_all_work(slices: Slices) -> None:
    work = [asyncio.ensure_future(slices.run(busy(60_000, [], "x"))) for _ in range(3)]
    await asyncio.sleep(0.01)
    slices.stop()
    results = await asyncio.gather(*work, return_exceptions=True)
    assert [type(each) for each in results] == [BrokerStoppingError] * 3
