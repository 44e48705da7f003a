"""What is kept running starts again after failures and orders, rests while paused, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tidemill.connect.base.keeper import RestartingKeeper
from tidemill.connect.base.runs import Runs
from tidemill.connect.direct.errors import BridgeError, PermanentBridgeError

PAUSED = {"pause": {"id": "1", "paused": True}}


class Work:
    """Fails as often as it is told to, and then works until it is cancelled."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.seen: list[str] = []
        self.changed = asyncio.Event()

    async def run(self, keeper: RestartingKeeper) -> None:
        try:
            if self.errors:
                raise self.errors.pop(0)
            keeper.works()
            self.note("works")
            if "job" in keeper.commands:
                keeper.finish("job")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.note("cancelled")
            raise

    def note(self, what: str) -> None:
        self.seen.append(what)
        self.changed.set()

    def failed(self, pause_s: float | None, said: Mapping[str, Any]) -> None:
        self.note(f"failed: {said['error']}, {pause_s}")

    def figures(self) -> dict[str, Any]:
        return {"seen": len(self.seen)}

    async def wait_for(self, *expected: str) -> None:
        async with asyncio.timeout(10):
            while self.seen != list(expected):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def kept(work: Work, commands: Mapping[str, Any]) -> AsyncIterator[RestartingKeeper]:
    keeper = RestartingKeeper(work, Runs(PermanentBridgeError, BridgeError), commands)
    running = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        keeper.stop()
        await asyncio.wait_for(running, 10)
        assert keeper.status()["phase"] == "stopped"


async def test_it_starts_again_after_a_failure_and_waits_after_a_permanent_one() -> None:
    work = Work(ValueError("x"), PermanentBridgeError("y"))
    async with kept(work, {}) as keeper:
        failures = ["failed: unexpected ValueError: x, 0.5", "failed: y, None"]
        await work.wait_for(*failures)
        assert keeper.status()["phase"] == "failed"
        keeper.order({"pause": {"id": "2", "paused": False}})
        await work.wait_for(*failures, "works")
        assert (keeper.status()["phase"], keeper.status()["error"]) == ("running", "")
        assert keeper.status()["seen"] == 3
    assert work.seen[-1] == "cancelled"


async def test_it_rests_while_it_is_paused() -> None:
    work = Work()
    async with kept(work, PAUSED) as keeper:
        await asyncio.sleep(0)
        assert keeper.status()["phase"] == "paused"
        keeper.order({})
        await work.wait_for("works")
        keeper.order(PAUSED)
        await work.wait_for("works", "cancelled")
        assert work.seen == ["works", "cancelled"]


async def test_a_command_that_was_carried_out_does_not_start_it_again() -> None:
    work, commands = Work(), {"job": {"id": "1"}}
    async with kept(work, commands) as keeper:
        await work.wait_for("works")
        keeper.order(commands)  # the board still has it
        assert keeper.take_finished(None) == ["job"]  # type: ignore[arg-type]
        assert keeper.take_finished(None) == []  # type: ignore[arg-type]
        keeper.order({})
        await asyncio.sleep(0)
        assert work.seen == ["works"]
        keeper.order({"job": {"id": "2"}})
        await work.wait_for("works", "cancelled", "works")
