"""The connectors' producers and the worker against Apache Kafka, in the tests of tidemill."""

from __future__ import annotations

from tests.connect.base.test_fenced import (  # noqa: F401 - pytest collects them
    fenced,
    test_a_fenced_producer_is_reported_as_fenced,
    test_it_is_reported_again_at_a_second_use,
)
from tests.connect.base.test_producer import (  # noqa: F401
    test_a_new_producer_fences_the_one_before,
    test_a_record_that_is_too_large_is_named,
    test_a_topic_that_does_not_exist_fails_when_the_broker_says_so,
    test_closing_aborts_what_is_open,
    test_records_are_visible_after_the_commit_and_in_order,
    test_records_have_headers,
)
from tests.connect.cdc.test_worker import (  # noqa: F401
    test_a_lost_position_stops_until_a_new_snapshot_is_ordered,
    test_a_second_worker_fences_the_first,
    test_a_table_becomes_a_topic_once_across_restarts,
    test_rules_an_outbox_and_tables_without_a_key_together,
    test_what_was_not_captured_is_repaired_by_a_new_snapshot,
)
from tests.support.apache_kafka_tests import MARKS, apache, kafka  # noqa: F401

pytestmark = MARKS
