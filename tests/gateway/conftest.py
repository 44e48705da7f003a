"""A broker that the tests of the gateway share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tidemill.confluent.clients import Kafka

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def kafka(broker: BrokerProcess) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"topic{next(_NUMBERS)}"
    kafka.create_topics("tests", {name: (2, {})})
    return name
