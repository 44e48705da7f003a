"""A broker and a gateway that the tests of the gateway share, and a client."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import Producer

from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka

_NUMBERS = itertools.count(1)


@functools.cache
def producer_of(servers: str) -> Producer:
    """Return a producer that is connected, from the second use on."""
    return Kafka(servers).producer("tests", linger_ms=5)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Tests write the statuses of workers, which real ones would replace.
    settings = {f"{kind}.run": "false" for kind in ("sources", "bridges", "webhooks")}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


@pytest.fixture(scope="package")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess
) -> Iterator[GatewayProcess]:
    settings = {"gateway.amqp_url": f"amqp://127.0.0.1:{broker.amqp_port}/"}
    folder = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(folder, broker.bootstrap, settings=settings) as process:
        yield process
    assert "gateway.failed" not in process.log()


@pytest.fixture(scope="package")
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
def kafka(broker: BrokerProcess) -> Kafka:
    return Kafka(broker.bootstrap)


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"topic{next(_NUMBERS)}"
    kafka.create_topics("tests", {name: (2, {})})
    # Apache Kafka answers before its brokers know the topic.
    poll_until(lambda: len(kafka.partitions("tests", name)) == 2, 60, "the topic is there")
    return name
