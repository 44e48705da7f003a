"""The gateway in front of Apache Kafka, in the tests of tidemill's broker."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.test_dedup import (  # noqa: F401 - pytest collects them
    test_a_start_reads_the_ids_back_from_the_end_of_the_topic,
    test_a_topic_that_does_not_exist_or_is_empty_has_no_ids,
)
from tests.gateway.test_following import (  # noqa: F401
    test_a_break_before_the_first_record_loses_nothing,
    test_a_client_that_breaks_off_and_resumes_gets_each_record_once_and_in_order,
    test_a_client_that_does_not_read_is_closed_and_costs_the_others_nothing,
    test_a_topic_that_is_created_again_is_read_from_its_beginning,
    test_a_topic_that_is_deleted_ends_its_streams,
    test_many_clients_follow_a_topic_each_from_its_own_position,
    test_partitions_that_are_added_are_followed_from_their_beginning,
    test_records_of_all_partitions_come_as_they_are_written,
    test_records_of_an_open_transaction_come_when_it_is_committed,
    test_records_that_retention_has_deleted_are_reported_as_lost,
)
from tests.gateway.test_posting import (  # noqa: F401
    TestIdempotencyKey,
    test_a_list_is_answered_in_its_order,
    test_a_list_with_a_record_that_is_too_large_stores_the_others,
    test_a_partition_that_was_added_can_be_written_soon,
    test_a_stream_can_be_answered_with_its_errors_only,
    test_a_topic_that_was_deleted_is_not_created_again,
    test_a_value_as_it_is_has_its_key_in_the_url,
    test_curl_sends_lines_and_gets_an_answer_for_each,
    test_one_record_is_stored_with_all_its_parts,
    test_what_can_not_be_stored_is_refused_with_its_reason,
)
from tests.gateway.test_reading import (  # noqa: F401
    test_a_long_poll_is_answered_when_a_record_comes,
    test_a_position_is_an_offset_a_word_or_a_time,
    test_an_answer_has_a_limit_of_bytes_but_at_least_one_record,
    test_only_what_is_committed_is_read,
    test_pages_have_each_record_once_and_can_be_asked_for_again,
    test_records_that_are_deleted_or_not_there_yet_are_an_error_with_the_range,
    test_the_lag_of_a_group_is_what_it_has_not_read,
    test_topics_and_their_offsets_are_listed,
    test_what_can_not_be_answered_is_refused_with_its_reason,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.apache_kafka_tests import MARKS, apache
from tests.support.gateway_process import GatewayProcess

pytestmark = MARKS
broker = apache


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, broker: ApacheKafka
) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), broker.bootstrap) as process:
        yield process
    assert "gateway.failed" not in process.log()


@pytest.fixture(scope="module")
def http(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client:
        yield client
