"""Fixtures for the tests of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.support import entered, running
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine import journaling
from tidemill.engine.engine import Engine


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
def engine(loop_runner: asyncio.Runner, tmp_path: Path) -> Iterator[Engine]:
    """A broker in an empty folder."""
    yield from entered(loop_runner, running(tmp_path))


@pytest.fixture
def no_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the sync of the second place that knows the journal's last entry.

    It comes a tenth of a second after the entry, and would be counted with others.
    """
    monkeypatch.setattr(journaling, "EXTENT_S", 3600.0)
