"""A broker with topics for the tests of handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.protocols.kafka.broker import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with topic ``orders`` of three partitions and topic ``users`` of one."""
    with closing(Broker()) as broker:
        broker.create("orders", 3)
        broker.create("users")
        yield broker
