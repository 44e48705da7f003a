"""Hooks in front of Apache Kafka, in the tests of tidemill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.hooks.test_kills import check_kills
from tests.gateway.hooks.test_writer import (  # noqa: F401 - pytest collects them
    test_a_commit_with_an_unknown_outcome_is_looked_up,
    test_a_record_is_stored_once_and_a_restart_remembers_it,
    test_a_record_that_is_too_large_fails_alone,
    test_a_record_that_the_broker_refuses_fails_alone,
    test_a_second_gateway_fences_the_first,
    test_what_waits_is_bounded_in_number_and_time,
    test_what_waits_is_stored_together,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.effort import rounds
from tests.support.processes import skip_if_missing
from tidemill.confluent.clients import Kafka

pytestmark = [
    pytest.mark.apache_kafka,
    pytest.mark.skipif(
        not os.environ.get("APACHE_KAFKA_TESTS"),
        reason="only with APACHE_KAFKA_TESTS=1 in the environment",
    ),
]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with skip_if_missing():
        server = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    with server:
        yield server


@pytest.fixture
def kafka(apache: ApacheKafka) -> Kafka:
    return Kafka(apache.bootstrap)


def test_each_delivery_is_stored_once_when_the_gateway_is_killed(
    tmp_path: Path, apache: ApacheKafka
) -> None:
    check_kills(tmp_path, apache.bootstrap, None, rounds("HOOK_KILLS", 10, 100))
