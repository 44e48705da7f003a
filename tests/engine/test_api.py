"""A write that waits for the disk is completed once, for a callback as for a waiter."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.engine.api import PendingWrites, WriteResult
from tidemill.log.errors import StorageError

FIRST, SECOND = (0, -1, 0), (7, -1, 0)
LOST = StorageError("the disk is gone")


def pending(remaining: int) -> PendingWrites:
    writes = PendingWrites([FIRST, SECOND])
    writes.remaining = remaining
    return writes


def test_the_callback_comes_with_the_last_sync() -> None:
    writes, seen = pending(2), list[list[WriteResult]]()
    writes.call_when_done(seen.append)
    writes.count((0,), None)
    assert seen == []
    writes.count((1,), None)
    assert seen == [[FIRST, SECOND]]


def test_a_failed_sync_is_the_result_of_its_writes_only() -> None:
    writes, seen = pending(2), list[list[WriteResult]]()
    writes.call_when_done(seen.append)
    writes.count((1,), LOST)
    assert seen == []
    writes.count((0,), None)
    assert seen == [[FIRST, LOST]]


def test_a_write_keeps_its_first_error() -> None:
    """A write of a transaction waits for two syncs."""
    writes = pending(2)
    writes.count((0, 1), LOST)
    writes.count((1,), StorageError("again"))
    assert writes.results == [LOST, LOST]


def test_any_error_of_a_sync_becomes_one_that_clients_understand() -> None:
    writes = pending(1)
    writes.count((0,), RuntimeError("no thread"))
    error = writes.results[0]
    assert isinstance(error, StorageError)
    assert "no thread" in str(error)


@pytest.mark.parametrize("error", [None, LOST])
async def test_a_late_caller_gets_the_results(error: Exception | None) -> None:
    writes, seen = pending(1), list[list[WriteResult]]()
    writes.count((1,), error)
    writes.call_when_done(seen.append)
    assert seen == [await writes] == [[FIRST, SECOND if error is None else LOST]]


async def test_a_waiter_gets_the_results_and_can_be_cancelled() -> None:
    first, second = pending(1), pending(1)
    waiters = [asyncio.ensure_future(each) for each in (first, second)]
    await asyncio.sleep(0)  # both wait now
    waiters[0].cancel()
    first.count((0, 1), None)
    second.count((0, 1), None)
    assert await waiters[1] == [FIRST, SECOND]
    assert waiters[0].cancelled()
