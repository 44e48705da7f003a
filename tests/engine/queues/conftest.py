"""A broker for each test of queues, with a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.queues.harness import Client, connected
from tests.engine.support import entered


@pytest.fixture
def client(loop_runner: asyncio.Runner, tmp_path: Path) -> Iterator[Client]:
    """A client of a broker in an empty folder."""
    yield from entered(loop_runner, connected(tmp_path))
