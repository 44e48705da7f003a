"""SQL on topics of Apache Kafka, in the tests of tidemill's broker."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")

from tests.sql.test_following import (  # noqa: F401 - pytest collects them
    test_a_condition_on_offset_or_time_says_where_it_begins,
    test_a_followed_query_gives_rows_that_come_later,
    test_a_join_sees_the_table_as_it_is_when_a_row_comes,
    test_rows_behind_the_watermark_are_counted_and_left_out,
    test_rows_that_are_followed_are_those_of_the_query,
    test_windows_are_those_of_the_query_when_they_are_complete,
)
from tests.sql.test_slt import (  # noqa: F401
    oracle,
    test_a_statement_on_a_topic_gives_what_duckdb_gives,
    test_a_statement_that_is_followed_gives_what_duckdb_gives,
    test_a_view_has_what_duckdb_gives,
    test_statements_that_write_leave_what_duckdb_has,
)
from tests.sql.test_sql import (  # noqa: F401
    connection,
    test_a_captured_table_shows_its_rows,
    test_a_failure_amid_an_insert_leaves_nothing_visible,
    test_an_insert_that_fails_writes_nothing,
    test_columns_of_the_record,
    test_each_type_is_read_back_as_it_was_written,
    test_less_is_read_where_a_condition_allows_it,
    test_only_committed_records_are_seen,
    test_reading_too_much_is_refused_before_it_begins,
    test_records_are_written_with_all_that_they_have,
    test_rows_of_a_query_become_records_of_a_topic,
    test_the_latest_record_of_each_key_without_deleted_ones,
    test_values_that_do_not_fit_are_null_and_reported,
    test_what_is_not_read_changes_no_result,
    timed,
)
from tests.sql.test_views import (  # noqa: F401
    test_a_view_is_created_read_and_dropped_with_statements,
    test_a_view_that_is_dropped_leaves_no_files,
    test_another_query_or_another_topic_makes_the_view_again,
    test_kills_lose_nothing_and_count_nothing_twice,
    test_the_last_worker_that_has_begun_keeps_a_view_alone,
    test_views_have_the_results_of_their_queries_after_each_start,
    without_pauses,
)
from tests.support.apache_kafka import ApacheKafka
from tests.support.apache_kafka_tests import MARKS, apache  # noqa: F401

pytestmark = MARKS


@dataclass(frozen=True)
class _Servers:
    """What the tests use of a broker."""

    bootstrap_servers: str


@pytest.fixture(scope="module")
def sql_broker(apache: ApacheKafka) -> _Servers:  # noqa: F811
    return _Servers(apache.bootstrap)
