"""Queries that end because their sink can't write a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tidemill.spark import ChangelogSink, SqliteSink, TopicSink
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.problems import PipelineProblemsError
from tidemill.spark.pipelines.runner import Runner, RunOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Place:
    """A broker, a folder for checkpoints, and a topic with two flights."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self._options = RunOptions(broker.bootstrap, folder / "pipelines", until_caught_up=True)
        self.topic = broker.topic()
        broker.produce(self.topic, ['{"id": "1", "airport": "JFK"}', '{"id": "2"}'])
        self.pipeline = Pipeline(self.topic)
        self.pipeline.stream(
            "flights", topic=self.topic, schema="id STRING, airport STRING", dead_letters=None
        )

    def run(self) -> Any:
        [status] = Runner(self.pipeline, self._options).run()
        return status


@pytest.fixture
def place(spark: SparkSession, tidemill_broker: Broker, tmp_path: Path) -> Place:
    return Place(tidemill_broker, tmp_path)


@pytest.mark.slow
def test_a_row_without_its_key_ends_a_query_that_keeps_a_changelog(place: Place) -> None:
    sink = ChangelogSink(f"{place.topic}.now", key="airport")
    place.pipeline.sql("now", "SELECT * FROM flights", sink=sink)

    status = place.run()

    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error.startswith(
        f"a row for topic {place.topic}.now has no airport, which is part of the key"
    )
    assert status.error.endswith('Filter out such rows: filter("`airport` IS NOT NULL").')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "SELECT * FROM flights",
            "1 of 2 rows for table t in {} have no airport, which is part",
        ),
        (
            "SELECT 'JFK' AS airport FROM flights",
            "more than one row of a batch for table t in {} h",
        ),
    ],
)
def test_rows_that_no_table_can_take_end_a_query(
    place: Place, tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "out.db"
    place.pipeline.sql("now", text, sink=SqliteSink("t", "airport", path), mode="update")

    status = place.run()

    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error.startswith(told.format(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sink", [TopicSink("{}.out"), ChangelogSink("{}.out", "id"), SqliteSink("t", "id", path="x")]
)
def test_a_record_that_is_no_row_ends_a_query_that_has_nowhere_to_put_it(
    place: Place, tmp_path: Path, sink: Any
) -> None:
    if isinstance(sink, SqliteSink):
        sink = replace(sink, path=tmp_path / "out.db")
    else:
        sink = replace(sink, topic=sink.topic.format(place.topic))
    place.broker.produce(place.topic, ["nothing"])
    place.pipeline.sql("all", "SELECT * FROM flights", sink=sink)

    status = place.run()

    assert (status.state, status.restarts) == ("failed", 0)
    assert status.error.startswith(
        f"topic {place.topic}: the record at offset 2 of partition 0 can't be parsed: the value is "
    )
    assert 'dead_letters="' in status.error


@pytest.mark.slow
def test_a_result_that_no_record_can_hold_starts_nothing(place: Place) -> None:
    text = "SELECT *, airport AS id FROM flights"
    place.pipeline.sql("twice", text, sink=TopicSink(f"{place.topic}.out"))

    with pytest.raises(
        PipelineProblemsError, match="twice: the result has columns with the same name: i"
    ):
        place.run()
