"""Work that is not left in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from tidemill.connect.direct.waiting import to_its_end


async def test_a_cancelled_caller_waits_for_the_thread() -> None:
    began, may_end, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        may_end.wait(60)
        ended.set()

    task = asyncio.create_task(to_its_end(asyncio.to_thread(work)))
    await began.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert task.cancelled()


async def test_results_and_errors_are_those_of_the_work() -> None:
    async def fails() -> None:
        raise ValueError("no")

    assert await to_its_end(asyncio.to_thread(lambda: 5)) == 5
    with pytest.raises(ValueError, match="no"):
        await to_its_end(fails())
