"""A broker in memory for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.amqp.client import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.close()
