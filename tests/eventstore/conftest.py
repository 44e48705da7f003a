"""A broker that the tests of event stores share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tidemill.confluent.clients import Kafka

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of indexes, also for the processes that a test starts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tidemill" / "eventstore"


@pytest.fixture
def kafka(broker: BrokerProcess) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.fixture
def topic() -> str:
    """The name of a topic that does not exist."""
    return f"store{next(_NUMBERS)}"
