"""The console in front of Apache Kafka, in the tests of tidemill's broker."""

from __future__ import annotations

import httpx

from tests.gateway.console.test_cluster import (  # noqa: F401 - pytest collects them
    test_a_lost_connection_is_made_again,
    test_a_snapshot_has_topics_groups_members_and_lag,
)
from tests.gateway.console.test_messages import (  # noqa: F401
    test_a_record_is_written_edited_and_imported,
    test_a_search_is_followed_with_its_progress,
    test_dead_letters_go_back_to_their_origin,
    test_headers_are_searched,
    test_new_records_are_followed,
    test_the_latest_records_come_first_and_a_search_goes_on,
)
from tests.gateway.console.test_pages import test_a_page_and_its_twin_answer  # noqa: F401
from tests.gateway.console.test_readers import (  # noqa: F401
    group,
    open_transaction,
    setting,
    test_a_group_is_listed_with_its_lag,
    test_a_group_with_members_is_not_moved,
    test_a_preview_says_what_a_reset_would_change,
    test_a_reset_moves_the_group,
    test_a_share_group_has_its_list_and_its_reset,
    test_a_write_that_no_coordinator_knows_hangs_and_is_ended,
    test_an_invalid_reset_is_refused,
    test_an_open_transaction_is_shown_with_what_it_holds_back_and_aborted,
)
from tests.gateway.console.test_topics import (  # noqa: F401
    test_a_topic_is_created_found_and_shown,
    test_lists_are_sorted_and_paged_at_the_server,
    test_the_readers_of_a_topic_and_how_far_they_are_behind,
)
from tests.gateway.test_apache_kafka import gateway, http  # noqa: F401
from tests.support.apache_kafka_tests import MARKS, apache

pytestmark = MARKS
broker = apache


def test_there_are_no_queues(http: httpx.Client) -> None:  # noqa: F811
    assert "There are no queues here" in http.get("/console/queues").text
    assert "There are no AMQP connections here" in http.get("/console/connections").text
    for path in ("/api/overview", "/api/queues"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert "tidemill.amqp" not in http.get("/topics").text
