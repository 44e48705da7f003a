"""The adapter for eventsourcing, and publishing, on Apache Kafka, on demand."""

from __future__ import annotations

from tests.eventstore.test_eventsourcing import (  # noqa: F401
    TestAggregateRecorder,
    TestApplicationRecorder,
    TestApplicationRecorderOfProcesses,
    TestFactory,
    TestNonInterleavingNotificationIDs,
    TestProcessRecorder,
    TestTrackingRecorder,
    test_a_system_of_applications,
    test_an_application_with_snapshots_in_two_processes_of_the_library,
    test_two_recorders_with_one_tracking_record_it_once,
)
from tests.eventstore.test_publishing import (  # noqa: F401
    store,
    test_a_second_publisher_takes_over_and_nothing_is_doubled,
    test_each_event_is_a_record_with_its_place,
    test_it_continues_where_it_stopped,
    test_without_a_marker_the_topic_says_where_to_continue,
)
from tests.support.apache_kafka_tests import MARKS, apache, kafka  # noqa: F401

pytestmark = MARKS
