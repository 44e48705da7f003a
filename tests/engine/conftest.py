"""Fixtures for the tests of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.support import Disk, entered, running
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine import journaling
from tidemill.engine.engine import Engine
from tidemill.log.errors import DiskFullError
from tidemill.log.partition.append import AppendInfo
from tidemill.log.partition.partition import PartitionLog


@pytest.fixture
def loop_runner() -> Iterator[asyncio.Runner]:
    """The loop of a test and of its fixtures."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def fs() -> FaultyFileSystem:
    """An empty disk in memory."""
    return FaultyFileSystem()


@pytest.fixture
def engine(loop_runner: asyncio.Runner, fs: FaultyFileSystem) -> Iterator[Engine]:
    """A broker in memory."""
    yield from entered(loop_runner, running(fs=fs))


@pytest.fixture
def real_engine(loop_runner: asyncio.Runner, tmp_path: Path) -> Iterator[Engine]:
    """A broker in an empty folder of this machine."""
    yield from entered(loop_runner, running(tmp_path))


@pytest.fixture
def no_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the sync of the second place that knows the journal's last entry.

    It comes a tenth of a second after the entry, and would be counted with others.
    """
    monkeypatch.setattr(journaling, "EXTENT_S", 3600.0)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """What refuses the appends of a test's brokers."""
    found = Disk()
    append = PartitionLog.append

    def checked(self: PartitionLog, *arguments: Any, **named: Any) -> AppendInfo:
        if self.tp.topic in found.refuses:
            found.refused += 1
            raise DiskFullError("no space left on device while writing")
        return append(self, *arguments, **named)

    monkeypatch.setattr(PartitionLog, "append", checked)
    return found
