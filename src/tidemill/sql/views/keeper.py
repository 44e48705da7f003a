"""Keep one view current in a thread: it starts again after a failure, and rests while paused.

Must not know: the topic that orders come from.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter
from tidemill.connect.base.manager import Commands
from tidemill.connect.base.runs import Runs
from tidemill.sql.errors import SqlError, StatementRefusedError
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.store import Store

_LOOK_S = 0.2
_PUBLISH_S = 1.0
_SHARE = 10
"""A copy is published at most so many times as long after the last one as that one took."""

log = structlog.get_logger("tidemill.views")


class Keeper:
    """Keeps a view current until ``stop``. Create and use it on the event loop.

    Args:
        folder: has the files of all views.
    """

    def __init__(
        self, definition: Definition, kafka: Kafka, folder: Path, commands: Commands
    ) -> None:
        self._definition, self._kafka, self._folder = definition, kafka, folder
        self._commands = commands
        self._changed = asyncio.Event()
        self._stopping = False
        self._runs = Runs(StatementRefusedError, SqlError)
        self._read, self._file, self._published_ms = 0, "", 0

    def order(self, commands: Commands) -> None:
        """Take over the present commands."""
        if commands != self._commands:
            self._commands = commands
            self._changed.set()

    def stop(self) -> None:
        """Ask it to end; ``run`` then returns soon."""
        self._stopping = True
        self._changed.set()

    def take_finished(self, writer: BoardWriter) -> Collection[str]:
        """Return nothing: a view has no command that ends."""
        return ()

    async def run(self) -> None:
        """Keep the view current until ``stop``."""
        while not self._stopping:
            self._changed.clear()
            if self._commands.get("pause", {}).get("paused"):
                self._runs.rest("paused")
                await self._changed.wait()
                continue
            await self._run_once()
        self._runs.phase = "stopped"

    async def _run_once(self) -> None:
        """Work until it fails, or there is an order."""
        self._runs.begin()
        stop = threading.Event()
        running = asyncio.create_task(asyncio.to_thread(self._work, stop))
        order = asyncio.create_task(self._changed.wait())
        await asyncio.wait([running, order], return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        (result,) = await asyncio.gather(running, return_exceptions=True)
        order.cancel()
        if result is None or self._changed.is_set():
            return
        pause = self._runs.fail(result)
        if pause is None:
            log.error("view.failed", view=self._definition.name, **self._runs.said())
        else:
            log.warning("view.failed", view=self._definition.name, **self._runs.said())
        try:
            await asyncio.wait_for(self._changed.wait(), pause)
        except TimeoutError:
            return

    def _work(self, stop: threading.Event) -> None:
        with Store(self._folder, self._definition, self._kafka, stop) as store:
            self._runs.work()
            log.info("view.running", view=self._definition.name)
            due, is_changed = 0.0, True
            while not stop.is_set():
                count = store.advance()
                self._read += count
                is_changed |= count > 0
                if is_changed and time.monotonic() >= due:
                    due, is_changed = self._publish(store), False
                if not count:
                    stop.wait(_LOOK_S)
            if is_changed:
                self._publish(store)

    def _publish(self, store: Store) -> float:
        """Publish a copy, and return when the next one is due."""
        began = time.monotonic()
        store.publish()
        now = time.monotonic()
        self._file, self._published_ms = str(store.published), time.time_ns() // 1_000_000
        return now + max(_PUBLISH_S, _SHARE * (now - began))

    def status(self) -> dict[str, Any]:
        """Return the present status, as JSON values."""
        own = {"read": self._read, "file": self._file, "published_ms": self._published_ms}
        return {**self._runs.status(), **own}
