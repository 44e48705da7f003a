"""Fixtures and marks for modules that run tests of tidemill against Apache Kafka.

A module imports the tests, the fixtures that they need, and ``MARKS`` as its ``pytestmark``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import skip_if_missing
from tidemill.confluent.clients import Kafka

MARKS = [
    pytest.mark.apache_kafka,
    pytest.mark.skipif(
        not os.environ.get("APACHE_KAFKA_TESTS"),
        reason="only with APACHE_KAFKA_TESTS=1 in the environment",
    ),
]


def on_apache_kafka(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a single test of a module whose other tests run without it."""
    for mark in MARKS:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with skip_if_missing():
        server = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    with server:
        yield server


@pytest.fixture
def kafka(apache: ApacheKafka) -> Kafka:
    return Kafka(apache.bootstrap)
