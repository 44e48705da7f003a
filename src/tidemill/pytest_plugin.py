"""Fixtures for tests that need a broker: pytest finds them when tidemill is installed.

``tidemill_broker`` starts once per process, in about half a second. ``tidemill_topic`` and
``tidemill_queue`` are fresh names on it. Must not import anything of tidemill before it is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidemill.local.broker import Broker


@pytest.fixture(scope="session")
def tidemill_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this run on loopback: its ``bootstrap_servers`` and ``amqp_url`` are for clients.

    With pytest-xdist each process has its own.
    """
    from tidemill.local.broker import Broker

    folder = tmp_path_factory.mktemp("tidemill")
    with Broker(folder / "data", amqp=True) as broker:
        yield broker


@pytest.fixture
def tidemill_topic(tidemill_broker: Broker) -> str:
    """The name of a fresh topic with one partition."""
    from tidemill.confluent.clients import Kafka

    name = f"test-{uuid.uuid4().hex[:12]}"
    Kafka(tidemill_broker.bootstrap_servers).create_topics("tidemill-pytest", {name: (1, {})})
    return name


@pytest.fixture
def tidemill_queue(tidemill_broker: Broker) -> str:
    """The name of a queue that no test has used: the test declares it as it needs it."""
    return f"test-{uuid.uuid4().hex[:12]}"
