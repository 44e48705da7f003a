"""With more files than can be open, the event loop waits for no sync."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.engine.test_engine import running, write
from tidemill import system
from tidemill.engine.api import Durability, NewTopic

LIMIT, PARTITIONS = 16, 64


async def test_files_are_synced_by_another_thread_before_they_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    datasync = system.datasync

    def watched(fd: int) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        datasync(fd)

    limits, log = {"open_files": LIMIT}, {"sync_interval_ms": 60_000}
    async with running(tmp_path, limits=limits, log=log) as engine:
        await engine.topics.create([NewTopic("t", PARTITIONS)])
        pool = engine._store.environment.pool
        monkeypatch.setattr(system, "datasync", watched)
        async with asyncio.timeout(300):
            for turn in range(4 * PARTITIONS):
                engine.records.append(
                    [write("t", b"v", partition=turn % PARTITIONS)], Durability.WRITTEN
                )
                while engine._relief is not None and not engine._relief.done():
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert len(pool) <= LIMIT + LIMIT // 4
        assert threads
        assert not any(threads)
        monkeypatch.undo()
