"""The pages for Prometheus: written in slices of the event loop, and kept for a second.

Scrapes that come together share one text. Must not know a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from time import monotonic, perf_counter

import structlog

from tidemill.metrics import text
from tidemill.metrics.registry import Registry
from tidemill.net.turns import Turns
from tidemill.net.work import Work

log = structlog.get_logger("tidemill.http")

PAGES = {"/metrics": False, "/metrics/partitions": True}
"""Path -> whether it has the series of single partitions."""
KEPT_S = 1.0
"""How long a text is served again. Less than any interval of scrapes."""

_Key = tuple[bool, str]


class MetricsPages:
    """The texts of one broker's metrics."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._work = Work(Turns())
        self._kept: dict[_Key, tuple[float, bytes]] = {}
        self._running: dict[_Key, asyncio.Task[bytes]] = {}

    def get(self, path: str, content: str) -> bytes | asyncio.Task[bytes]:
        """Return the text of a page if one is kept, else the task that writes it.

        Args:
            path: one of ``PAGES``.
            content: ``text.PROMETHEUS`` or ``text.OPENMETRICS``.
        """
        key = PAGES[path], content
        kept = self._kept.get(key)
        if kept is not None and monotonic() - kept[0] < KEPT_S:
            return kept[1]
        running = self._running.get(key)
        if running is None:
            self._kept.pop(key, None)
            running = asyncio.get_running_loop().create_task(self._write(key))
            self._running[key] = running
        return running

    async def _write(self, key: _Key) -> bytes:
        try:
            self._work.turns.begin_slice(perf_counter())
            page = await self._work.run(self._steps(*key))
        except Exception as error:
            log.error("metrics.failed", exc_info=error)
            raise
        finally:
            del self._running[key]
        self._kept[key] = monotonic(), page
        return page

    def _steps(self, detailed: bool, content: str) -> Generator[None, None, bytes]:
        pieces: list[bytes] = []
        for piece in text.write(self._registry.families(detailed=detailed), content):
            pieces.append(piece.encode())
            yield
        return b"".join(pieces)

    def stop(self) -> None:
        """End what is being written."""
        for task in list(self._running.values()):
            task.cancel()
