"""The store on Apache Kafka: the tests of ``test_store`` and others, on demand."""

from __future__ import annotations

import pytest

from tests.eventstore.test_async_store import (  # noqa: F401
    test_a_version_heard_from_another_process_is_read_first,
    test_it_appends_reads_and_follows,
)
from tests.eventstore.test_groups import (  # noqa: F401
    test_a_group_that_was_offline_until_its_offset_expired_continues_where_it_stopped,
)
from tests.eventstore.test_index import (  # noqa: F401
    test_a_replaced_topic_is_an_error,
    test_an_index_of_another_log_is_an_error_until_it_is_rebuilt,
)
from tests.eventstore.test_races import (  # noqa: F401
    test_racing_processes_agree_with_the_model_and_each_other,
)
from tests.eventstore.test_retention import (  # noqa: F401
    filled,
    test_truncated_events_are_not_read_anywhere_and_still_count,
)
from tests.eventstore.test_store import (  # noqa: F401
    store,
    test_a_commit_larger_than_the_topic_takes_is_an_error_and_the_store_works_on,
    test_a_missing_topic_is_not_created_if_that_is_not_wanted,
    test_a_topic_that_can_lose_commits_is_refused,
    test_foreign_records_in_the_topic_are_void,
    test_threads_of_one_store_race_without_void_commits,
    test_transactions_of_others_in_the_topic_do_not_hold_up_the_store,
)
from tests.eventstore.test_verifying import (  # noqa: F401
    records,
    test_a_log_that_fits_together_has_no_break,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.apache_kafka_tests import MARKS, apache, kafka  # noqa: F401

pytestmark = MARKS


@pytest.fixture
def broker(apache: ApacheKafka) -> ApacheKafka:  # noqa: F811
    return apache
