"""A broker in memory for each test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.protocols.amqp.client import Broker


@pytest.fixture
def loop_runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def broker(loop_runner: asyncio.Runner) -> Iterator[Broker]:
    broker = Broker(loop_runner)
    yield broker
    broker.close()
