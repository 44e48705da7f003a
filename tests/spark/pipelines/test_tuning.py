"""Settings of Spark that suit one query, and that no other query gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.spark.conftest import Broker
from tidemill.spark.base.session import DEFAULTS
from tidemill.spark.joins.streams import stream_stream
from tidemill.spark.pipelines.inputs import Built
from tidemill.spark.pipelines.start import settings, tuning
from tidemill.spark.windows.functions import tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
POLLING_DELAY = "spark.sql.streaming.pollingDelay"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
JOIN_STATE = "spark.sql.streaming.join.stateFormatVersion"
COUNTS_ROWS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
ALWAYS = {JOIN_STATE: "3", COUNTS_ROWS: "false"}


def built(df: DataFrame, mode: str) -> Built:
    return cast(Built, SimpleNamespace(df=df, query=SimpleNamespace(mode=mode)))


def test_settings_of_a_query_leave_no_trace_and_those_of_the_user_stay(
    spark: SparkSession,
) -> None:
    with settings(spark, {NO_DATA_BATCHES: "false"}):
        assert spark.conf.get(NO_DATA_BATCHES) == "false"
    assert spark.conf.get(NO_DATA_BATCHES) == "true"
    assert NO_DATA_BATCHES not in spark.conf.getAll
    spark.conf.set(NO_DATA_BATCHES, "true")
    try:
        with settings(spark, {NO_DATA_BATCHES: "false"}):
            assert spark.conf.get(NO_DATA_BATCHES) == "true"
        assert NO_DATA_BATCHES in spark.conf.getAll
    finally:
        spark.conf.unset(NO_DATA_BATCHES)


def test_a_default_of_the_session_is_not_a_setting_of_the_user(spark: SparkSession) -> None:
    before = spark.conf.get(POLLING_DELAY)
    try:
        for there, expected in ((DEFAULTS[POLLING_DELAY], "10ms"), ("70ms", "70ms")):
            spark.conf.set(POLLING_DELAY, there)
            with settings(spark, {POLLING_DELAY: "10ms"}):
                assert spark.conf.get(POLLING_DELAY) == expected
            assert spark.conf.get(POLLING_DELAY) == there
    finally:
        spark.conf.set(POLLING_DELAY, cast(str, before))


def test_a_query_runs_batches_without_records_where_they_can_return_rows(
    spark: SparkSession,
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    counted = rows.withWatermark("timestamp", "1 minute").groupBy("value").count()

    def count(_: Any, frames: Any, state: Any) -> Any:
        yield from frames

    timed = rows.groupBy("value").applyInPandasWithState(
        count, "value long", "n long", "update", "EventTimeTimeout"
    )
    assert tuning(built(counted, "update")) == {**ALWAYS, NO_DATA_BATCHES: "false"}
    assert tuning(built(counted, "append")) == ALWAYS
    assert tuning(built(timed, "update")) == ALWAYS


def test_spark_asks_often_only_where_the_source_keeps_the_pace(
    spark: SparkSession, tidemill_broker: Broker
) -> None:
    ours = tidemill_broker.stream(spark, tidemill_broker.topic())
    theirs = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    both = ours.select("timestamp").union(theirs.select("timestamp"))
    assert tuning(built(ours, "append")) == {**ALWAYS, POLLING_DELAY: "10ms"}
    assert tuning(built(both, "append")) == ALWAYS


def test_joins_with_a_bound_of_time_keep_their_state_by_time(spark: SparkSession) -> None:
    def stream(key: str, time: str) -> DataFrame:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        renamed = rows.withColumnsRenamed({"value": key, "timestamp": time})
        return renamed.withWatermark(time, "1 minute")

    def state_of(df: DataFrame) -> str:
        return tuning(built(df, "append"))[JOIN_STATE]

    left, right = stream("a", "a_at"), stream("b", "b_at")
    bound = stream_stream(left, right, on={"a": "b"}, within="1 minute", how="left")
    forever = left.join(right, left["a"] == right["b"])
    sides = ((left, "a_at"), (right, "b_at"))
    windows = [df.groupBy(tumbling(time, "1 minute")).count() for df, time in sides]
    by_window = windows[0].join(windows[1], "window")
    assert state_of(bound) == "4"
    assert state_of(bound.drop("a_at", "b_at")) == "4"  # the condition keeps them in the state
    assert state_of(forever) == "3"
    assert state_of(by_window) == "3"
    third = stream("c", "c_at")
    # The left side has two event times.
    again = bound.join(third, (bound["a"] == third["c"]) & (bound["a_at"] >= third["c_at"]))
    assert state_of(again) == "3"
    one = bound.drop("b_at")
    both = one.join(third, (one["a"] == third["c"]) & (one["a_at"] >= third["c_at"]))
    assert state_of(both) == "4"
    assert state_of(one.join(third, one["a"] == third["c"])) == "3"


def test_a_store_that_has_no_column_families_keeps_the_old_state_of_joins(
    spark: SparkSession,
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    before = cast(str, spark.conf.get(PROVIDER))
    assert before.endswith(".RocksDBStateStoreProvider")
    spark.conf.set(PROVIDER, before.replace("RocksDBState", "HDFSBackedState"))
    try:
        assert tuning(built(rows, "append")) == {}
    finally:
        spark.conf.set(PROVIDER, before)
