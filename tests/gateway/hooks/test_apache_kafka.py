"""Hooks in front of Apache Kafka, in the tests of tidemill."""

from __future__ import annotations

from pathlib import Path

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
from tests.support.apache_kafka_tests import MARKS, apache, kafka  # noqa: F401
from tests.support.effort import rounds

pytestmark = MARKS


def test_each_delivery_is_stored_once_when_the_gateway_is_killed(
    tmp_path: Path,
    apache: ApacheKafka,  # noqa: F811 - the fixture
) -> None:
    check_kills(tmp_path, apache.bootstrap, None, rounds("HOOK_KILLS", 10, 100))
