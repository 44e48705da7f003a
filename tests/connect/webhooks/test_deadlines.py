"""Deadlines: a request ends in time, and no other cancellation is taken for one."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.connect.webhooks.deadlines import Deadlines


async def wait(deadlines: Deadlines, seconds: float) -> str:
    deadline = deadlines.begin()
    try:
        with deadline:
            await asyncio.sleep(seconds)
    except TimeoutError:
        return "late"
    finally:
        deadlines.end(deadline)
    return "in time"


async def test_each_request_ends_in_its_own_time() -> None:
    deadlines = Deadlines(0.08)
    began = asyncio.get_running_loop().time()
    first = [asyncio.create_task(wait(deadlines, pause)) for pause in (0.01, 60, 60)]
    await asyncio.sleep(0.04)
    second = [asyncio.create_task(wait(deadlines, pause)) for pause in (0.05, 60)]
    assert await asyncio.gather(*first) == ["in time", "late", "late"]
    assert not second[1].done()
    assert await asyncio.gather(*second) == ["in time", "late"]
    assert 0.11 <= asyncio.get_running_loop().time() - began < 10
    assert await wait(deadlines, 0) == "in time"
    deadlines.close()


async def test_a_task_works_on_after_its_request_was_late() -> None:
    deadlines = Deadlines(0.02)
    assert [await wait(deadlines, pause) for pause in (60, 0, 60)] == ["late", "in time", "late"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    deadlines.close()


async def test_the_innermost_part_of_a_request_gets_the_error_and_the_rest_goes_on() -> None:
    deadlines = Deadlines(0.02)
    deadline = deadlines.begin()
    with deadline:
        with pytest.raises(TimeoutError), deadline:
            await asyncio.sleep(60)
        await asyncio.sleep(0.03)  # nothing ends it again
    deadlines.end(deadline)
    deadlines.close()


async def test_a_cancellation_by_others_stays_one() -> None:
    deadlines = Deadlines(0.02)
    task = asyncio.create_task(wait(deadlines, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    both = asyncio.create_task(wait(deadlines, 60))
    await asyncio.sleep(0)
    (deadline,) = deadlines._running
    deadline._at = 0
    deadlines._look()
    both.cancel()  # in the same turn
    with pytest.raises(asyncio.CancelledError):
        await both
    deadlines.close()
