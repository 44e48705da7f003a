"""A write that waits for the disk is completed once, for a callback as for a future."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidemill.engine.api import Countdown


@pytest.fixture
def countdown() -> Iterator[Countdown]:
    with asyncio.Runner() as runner:
        yield Countdown(runner.get_loop())


def test_the_callback_comes_with_the_last_sync(countdown: Countdown) -> None:
    seen: list[Exception | None] = []
    countdown.remaining = 2
    countdown.call_when_done(seen.append)
    countdown.count(None)
    assert seen == []
    countdown.count(None)
    assert seen == [None]


def test_the_first_failure_ends_the_wait_and_nothing_follows(countdown: Countdown) -> None:
    seen: list[Exception | None] = []
    failure = OSError("disk")
    countdown.remaining = 2
    countdown.call_when_done(seen.append)
    countdown.count(failure)
    countdown.count(OSError("again"))
    countdown.count(None)
    assert seen == [failure]


@pytest.mark.parametrize("failure", [None, OSError("disk")])
def test_a_late_caller_gets_the_result(countdown: Countdown, failure: Exception | None) -> None:
    seen: list[Exception | None] = []
    countdown.remaining = 1
    countdown.count(failure)
    countdown.call_when_done(seen.append)
    assert seen == [failure]
    assert countdown.future.exception() is failure


def test_a_cancelled_future_does_not_disturb_the_callback(countdown: Countdown) -> None:
    seen: list[Exception | None] = []
    countdown.remaining = 1
    countdown.call_when_done(seen.append)
    countdown.future.cancel()
    countdown.count(None)
    assert seen == [None]
