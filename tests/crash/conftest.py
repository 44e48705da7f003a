"""What several crash tests use: a broker that is not killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.support.processes import skip_if_missing


@pytest.fixture(params=["tidemill", pytest.param("kafka", marks=pytest.mark.apache_kafka)])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a broker: tidemill, or Apache Kafka with APACHE_KAFKA_TESTS=1."""
    if request.param == "tidemill":
        with BrokerProcess(tmp_path / "broker") as broker:
            yield broker.bootstrap
        return
    if not os.environ.get("APACHE_KAFKA_TESTS"):
        pytest.skip("only with APACHE_KAFKA_TESTS=1 in the environment")
    with skip_if_missing():
        kafka = ApacheKafka(tmp_path / "kafka")
    with kafka:
        yield kafka.bootstrap
