"""A broker in memory for each test of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.engine.support import entered, running
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.engine import Engine


@pytest.fixture
def engine(loop_runner: asyncio.Runner, fs: FaultyFileSystem) -> Iterator[Engine]:
    yield from entered(loop_runner, running(fs=fs))
