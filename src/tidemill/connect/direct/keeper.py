"""Keep one bridge running: it starts again after a failure, and rests while it is paused.

Must not know: the topic that orders come from.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Literal

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter
from tidemill.connect.base.manager import Commands
from tidemill.connect.base.secrets import redact
from tidemill.connect.direct.contract import Bridge, Place
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import BridgeError, PermanentBridgeError
from tidemill.connect.direct.registry import make_bridge
from tidemill.errors import SettingsError, TidemillError

Phase = Literal["starting", "running", "paused", "waiting", "failed", "stopped"]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
STEADY_S = 60.0
"""After a run of so long, a failure counts as the first one."""

log = structlog.get_logger("tidemill.bridges")


class Keeper:
    """Keeps a bridge running until ``stop``. Create and use it on the event loop.

    Attributes:
        definition: that of the bridge.
        phase: "waiting" starts again by itself after a failure, "failed" waits for the user.
    """

    def __init__(self, definition: Definition, kafka: Kafka, commands: Commands) -> None:
        self.definition = definition
        self.phase: Phase = "starting"
        self._place = Place(definition.name, definition.topic, definition.partitions, kafka)
        self._commands = commands
        self._changed = asyncio.Event()
        self._stopping = False
        self._bridge: Bridge | None = None
        self._error: TidemillError | None = None
        self._failures = 0

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
                self.phase, self._error, self._failures = "paused", None, 0
                await self._changed.wait()
                continue
            await self._run_once()
        self.phase = "stopped"

    async def _run_once(self) -> None:
        """Run the bridge until it fails, or there is an order."""
        self.phase = "starting"
        began = time.monotonic()
        running = asyncio.create_task(self._bridge_run())
        order = asyncio.create_task(self._changed.wait())
        await asyncio.wait([running, order], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        order.cancel()
        if result is None or isinstance(result, asyncio.CancelledError):
            return
        if time.monotonic() - began > STEADY_S:
            self._failures = 0
        await self._rest_after(_as_error(result))

    async def _bridge_run(self) -> None:
        self._bridge = make_bridge(self.definition, self._place)
        await self._bridge.run(self._is_running)

    def _is_running(self) -> None:
        self.phase, self._error = "running", None
        log.info("bridge.running", bridge=self._place.name, kind=self.definition.kind)

    async def _rest_after(self, error: TidemillError) -> None:
        self._failures += 1
        self._error = error
        is_permanent = isinstance(error, (PermanentBridgeError, SettingsError))
        self.phase = "failed" if is_permanent else "waiting"
        said = {"error": redact(str(error)), "hint": redact(error.hint), "failures": self._failures}
        if is_permanent:
            log.error("bridge.failed", bridge=self._place.name, **said)
        else:
            log.warning("bridge.failed", bridge=self._place.name, **said)
        pause = min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10), LONGEST_PAUSE_S)
        try:
            await asyncio.wait_for(self._changed.wait(), None if is_permanent else pause)
        except TimeoutError:
            return

    def status(self) -> dict[str, Any]:
        """Return the present status, as JSON values."""
        bridge, error = self._bridge, self._error
        return {
            "phase": self.phase,
            "updated_ms": time.time_ns() // 1_000_000,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
            "error": redact(" ".join(str(error).split())) if error else "",
            "hint": redact(error.hint) if error else "",
            "failures": self._failures,
            **({} if bridge is None else {**asdict(bridge.counts()), "details": bridge.details()}),
        }


def _as_error(found: BaseException) -> TidemillError:
    if isinstance(found, TidemillError):
        return found
    return BridgeError(f"unexpected {type(found).__name__}: {found}")
