"""Keep one bridge running: it starts again after a failure, and rests while it is paused.

Must not know: the topic that orders come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter
from tidemill.connect.base.manager import Commands
from tidemill.connect.base.runs import Runs
from tidemill.connect.direct.contract import Bridge, Place
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import BridgeError, PermanentBridgeError
from tidemill.connect.direct.registry import make_bridge

log = structlog.get_logger("tidemill.bridges")


class Keeper:
    """Keeps a bridge running until ``stop``. Create and use it on the event loop.

    Attributes:
        definition: that of the bridge.
    """

    def __init__(self, definition: Definition, kafka: Kafka, commands: Commands) -> None:
        self.definition = definition
        self._place = Place(definition.name, definition.topic, definition.partitions, kafka)
        self._commands = commands
        self._changed = asyncio.Event()
        self._stopping = False
        self._bridge: Bridge | None = None
        self._runs = Runs(PermanentBridgeError, BridgeError)

    def order(self, commands: Commands) -> None:
        """Take over the present commands."""
        if commands != self._commands:
            self._commands = commands
            self._changed.set()

    def stop(self) -> None:
        """Ask it to end; ``run`` then returns soon."""
        self._stopping = True
        self._changed.set()

    @property
    def _is_paused(self) -> bool:
        return bool(self._commands.get("pause", {}).get("paused"))

    def take_finished(self, writer: BoardWriter) -> Collection[str]:
        """Return nothing: a bridge has no command that ends."""
        return ()

    async def run(self) -> None:
        """Keep the bridge running until ``stop``."""
        while not self._stopping:
            self._changed.clear()
            if self._is_paused:
                self._runs.rest("paused")
                await self._changed.wait()
                continue
            await self._run_once()
        self._runs.phase = "stopped"

    async def _run_once(self) -> None:
        """Run the bridge until it fails, or there is an order."""
        self._runs.begin()
        running = asyncio.create_task(self._bridge_run())
        order = asyncio.create_task(self._changed.wait())
        await asyncio.wait([running, order], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        order.cancel()
        if result is not None and not isinstance(result, asyncio.CancelledError):
            await self._rest_after(result)

    async def _bridge_run(self) -> None:
        self._bridge = make_bridge(self.definition, self._place)
        await self._bridge.run(self._is_running)

    def _is_running(self) -> None:
        self._runs.work()
        log.info("bridge.running", bridge=self._place.name, kind=self.definition.kind)

    async def _rest_after(self, error: BaseException) -> None:
        pause = self._runs.fail(error)
        if pause is None:
            log.error("bridge.failed", bridge=self._place.name, **self._runs.said())
        else:
            log.warning("bridge.failed", bridge=self._place.name, **self._runs.said())
        try:
            await asyncio.wait_for(self._changed.wait(), pause)
        except TimeoutError:
            return

    def status(self) -> dict[str, Any]:
        """Return the present status, as JSON values."""
        bridge = self._bridge
        own = {} if bridge is None else {**asdict(bridge.counts()), "details": bridge.details()}
        return {**self._runs.status(), **own}
