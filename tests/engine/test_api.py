"""A write that waits for the disk is completed once, for a callback as for a future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidemill.engine.api import Countdown


def run(test: Callable[[Countdown], object]) -> None:
    async def main() -> None:
        result = test(Countdown(asyncio.get_running_loop()))
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(main())


def test_the_callback_comes_with_the_last_sync() -> None:
    def test(countdown: Countdown) -> None:
        seen: list[Exception | None] = []
        countdown.remaining = 2
        countdown.call_when_done(seen.append)
        countdown.count(None)
        assert seen == []
        countdown.count(None)
        assert seen == [None]

    run(test)


def test_the_first_failure_ends_the_wait_and_nothing_follows() -> None:
    def test(countdown: Countdown) -> None:
        seen: list[Exception | None] = []
        failure = OSError("disk")
        countdown.remaining = 2
        countdown.call_when_done(seen.append)
        countdown.count(failure)
        countdown.count(OSError("again"))
        countdown.count(None)
        assert seen == [failure]

    run(test)


@pytest.mark.parametrize("failure", [None, OSError("disk")])
def test_a_late_caller_gets_the_result(failure: Exception | None) -> None:
    async def test(countdown: Countdown) -> None:
        seen: list[Exception | None] = []
        countdown.remaining = 1
        countdown.count(failure)
        countdown.call_when_done(seen.append)
        assert seen == [failure]
        assert countdown.future.exception() is failure

    run(test)


def test_a_cancelled_future_does_not_disturb_the_callback() -> None:
    async def test(countdown: Countdown) -> None:
        seen: list[Exception | None] = []
        countdown.remaining = 1
        countdown.call_when_done(seen.append)
        countdown.future.cancel()
        countdown.count(None)
        assert seen == [None]

    run(test)
