"""Positions in a log."""

from __future__ import annotations

import asyncio

from tests.engine.records.support import Bench
from tests.support.logs import TP, write
from tidemill.engine.api import (
    Isolation,
)


async def test_lookups_by_time_let_other_tasks_run_in_between() -> None:
    bench = Bench()
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
