"""The broker that is killed: tidemill, or Apache Kafka itself to show that the tests are right.

``CRASH_REFERENCE=1`` takes Apache Kafka, which takes ten times as long to come back: use a small
``CRASH_KILLS``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess

REFERENCE = os.environ.get("CRASH_REFERENCE", "") not in ("", "0")
SETTINGS = {
    "groups.min_session_timeout_ms": "100",
    "groups.initial_rebalance_delay_ms": "0",
    "log.checkpoint_interval_ms": "100",
}


class Broker(Protocol):
    """The operations of tests on a broker."""

    @property
    def bootstrap(self) -> str: ...

    def start(self, timeout: float = ...) -> Self: ...

    def kill(self) -> None: ...

    def log(self, last_characters: int = ...) -> str: ...


class ReferenceBroker(ApacheKafka):
    """Apache Kafka that can be killed."""

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()

    def log(self, last_characters: int = 8000) -> str:
        """The end of what it said."""
        return "" if self.process is None else self.process.output(last_characters)


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """A broker that is ready, and has not reported a fault of its own at the end."""
    if REFERENCE:
        properties = {
            "group.min.session.timeout.ms": "100",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "200",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        }
        with ReferenceBroker(folder, properties=properties) as reference:
            yield reference
        return
    with BrokerProcess(folder, settings=SETTINGS) as process:
        yield process
        log = process.log(10_000_000)
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:5000]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test."""
    with running(tmp_path / "broker") as made:
        yield made


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that no test kills."""
    with running(tmp_path_factory.mktemp("shared")) as made:
        yield made


def make_topics(bootstrap: str, partitions: int, *names: str) -> None:
    """Create topics."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(name, partitions, 1) for name in names]
    for future in admin.create_topics(topics).values():
        future.result(timeout=60)
