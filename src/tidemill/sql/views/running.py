"""Keep one view current in a thread, as what ``connect/base/keeper`` keeps running.

Must not know: pauses, the topic that orders come from.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.keeper import RestartingKeeper
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.store import Store

_LOOK_S = 0.2
_PUBLISH_S = 1.0
_SHARE = 10
"""A copy is published at most so many times as long after the last one as that one took."""

log = structlog.get_logger("tidemill.views")


class RunningView:
    """A view that is kept current (``Work`` of the keeper).

    Args:
        folder: has the files of all views.
    """

    def __init__(self, definition: Definition, kafka: Kafka, folder: Path) -> None:
        self._definition, self._kafka, self._folder = definition, kafka, folder
        self._read, self._file, self._published_ms = 0, "", 0

    async def run(self, keeper: RestartingKeeper) -> None:
        """Keep the view current until it fails or is cancelled: then its file is closed."""
        stop = threading.Event()
        thread = asyncio.ensure_future(asyncio.to_thread(self._work, keeper, stop))
        try:
            await asyncio.shield(thread)
        finally:
            stop.set()
            await asyncio.gather(thread, return_exceptions=True)

    def _work(self, keeper: RestartingKeeper, stop: threading.Event) -> None:
        with Store(self._folder, self._definition, self._kafka, stop) as store:
            keeper.works()
            log.info("view.running", view=self._definition.name)
            due, is_changed = 0.0, True
            while not stop.is_set():
                count = store.advance()
                self._read += count
                is_changed |= count > 0
                if is_changed and store.is_current and time.monotonic() >= due:
                    due, is_changed = self._publish(store), False
                if not count:
                    stop.wait(_LOOK_S)
            if is_changed and store.is_current:
                self._publish(store)

    def _publish(self, store: Store) -> float:
        """Publish a copy, and return when the next one is due."""
        began = time.monotonic()
        store.publish()
        now = time.monotonic()
        self._file, self._published_ms = str(store.published), time.time_ns() // 1_000_000
        return now + max(_PUBLISH_S, _SHARE * (now - began))

    def failed(self, pause_s: float | None, said: Mapping[str, Any]) -> None:
        """Log a failure."""
        if pause_s is None:
            log.error("view.failed", view=self._definition.name, **said)
        else:
            log.warning("view.failed", view=self._definition.name, **said)

    def figures(self) -> dict[str, Any]:
        """Return how many offsets were read, and the copy for readers."""
        return {"read": self._read, "file": self._file, "published_ms": self._published_ms}
