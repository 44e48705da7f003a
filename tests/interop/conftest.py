"""One broker process for the whole suite, or another Kafka that the environment names.

With ``TIDEMILL_INTEROP_BOOTSTRAP=host:port`` the suite runs against that broker: against Apache
Kafka it shows that the tests themselves are right (``python -m tests.support.apache_kafka``).
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.java_client import JavaClient
from tests.support.broker_process import BrokerProcess
from tests.support.processes import skip_if_missing

MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of the broker under test."""
    other = os.environ.get("TIDEMILL_INTEROP_BOOTSTRAP")
    if other:
        yield other
        return
    settings = {"groups.min_session_timeout_ms": "1000"}
    with BrokerProcess(tmp_path_factory.mktemp("interop"), settings=settings) as broker:
        yield broker.bootstrap
        assert broker.terminate() == 0, broker.log()
        assert "Traceback" not in broker.log(10_000_000), broker.log(10_000_000)


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """librdkafka's admin client."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """Runs the programs of ``java/``; skips where there is no JDK or no jar."""
    with skip_if_missing():
        return JavaClient(tmp_path_factory.mktemp("java"))


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names that no other test and no earlier run has used."""
    run = uuid.uuid4().hex[:8]
    numbers = itertools.count()
    return lambda kind: f"{kind}-{run}-{next(numbers)}"


@pytest.fixture
def make_topic(admin: AdminClient, unique: Callable[[str], str]) -> MakeTopic:
    """Creates a topic: ``make_topic(partitions=3, **{"max.message.bytes": "1000"})``."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = unique("topic")
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=configs)
        for future in admin.create_topics([topic]).values():
            future.result(timeout=60)
        return name

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic with one partition."""
    return make_topic()


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    """The name of a group that is not there yet."""
    return unique("group")


@pytest.fixture
def txn_id(unique: Callable[[str], str]) -> str:
    """A transactional id that nobody has used."""
    return unique("txn")
