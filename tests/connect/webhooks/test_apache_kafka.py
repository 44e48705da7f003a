"""Webhooks over Apache Kafka, in the tests of tidemill."""

from __future__ import annotations

from tests.connect.webhooks.test_delivery import (  # noqa: F401 - pytest collects them
    receiver,
    test_410_disables_until_resumed_and_nothing_is_lost,
    test_a_failing_key_holds_only_itself_and_is_shown,
    test_a_new_worker_continues_exactly_where_the_last_one_stopped,
    test_a_range_is_redelivered,
    test_a_topic_that_is_created_again_is_delivered_from_its_beginning,
    test_records_arrive_signed_and_other_libraries_verify_them,
    test_records_that_retention_has_deleted_are_counted,
    test_what_can_not_be_delivered_becomes_a_dead_letter_and_can_be_redelivered,
)
from tests.support.apache_kafka_tests import MARKS, apache, kafka  # noqa: F401

pytestmark = MARKS
