"""Queries whose own tasks write to a topic: exactly once, in all output modes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tests.support.committed import values
from tidemill.spark import ChangelogSink, TopicSink
from tidemill.spark.sinks.base import Run
from tidemill.spark.sinks.topic.sink import tasks_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 40


class Query:
    """A query of numbers, whose sink writes to a topic."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self.source, self.target = broker.topic(), broker.topic()
        self.checkpoint = folder / "checkpoint"

    def produce(self, *numbers: int) -> None:
        self._broker.produce(self.source, [b"%d" % number for number in numbers])

    def run(self, sink: Any, mode: str, result: Callable[[DataFrame], DataFrame]) -> None:
        """Run the query until it has read all numbers."""
        run = Run(
            pipeline="p",
            query="q",
            mode=mode,
            checkpoint=f"file://{self.checkpoint}",
            checkpoint_id=self.target,
            created_ms=0,
            kafka=self._broker.kafka,
        )
        df = self._broker.stream(self._spark, self.source)
        df = result(df.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "timestamp"))
        writer = sink.open(run).stream(df).outputMode(mode).trigger(availableNow=True)
        writer.option("checkpointLocation", run.checkpoint).start().awaitTermination()

    def found(self) -> list[Any]:
        return [json.loads(each or b"null") for each in values(self._broker.bootstrap, self.target)]

    def forget_last_commit(self) -> None:
        """Make Spark run the last batch again, as after a crash."""
        commits = self.checkpoint / "commits"
        last = max((each for each in commits.iterdir() if each.name.isdecimal()), key=_number)
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def _number(path: Path) -> int:
    return int(path.name)


@pytest.fixture
def query(spark: SparkSession, tidemill_broker: Broker, tmp_path: Path) -> Query:
    return Query(spark, tidemill_broker, tmp_path)


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_each_batch_is_written_once_also_if_it_is_run_again(query: Query, mode: str) -> None:
    def result(df: DataFrame) -> DataFrame:
        if mode == "append":
            return df.selectExpr("n % 2 AS odd", "1L AS count")
        return df.selectExpr("n % 2 AS odd").groupBy("odd").count()

    sink = TopicSink(query.target) if mode == "append" else ChangelogSink(query.target, "odd")
    query.produce(0, 1, 2)
    query.run(sink, mode, result)
    first = sorted((each["odd"], each["count"]) for each in query.found())
    assert first == ([(0, 1), (0, 1), (1, 1)] if mode == "append" else [(0, 2), (1, 1)])

    query.forget_last_commit()
    query.run(sink, mode, result)
    assert len(query.found()) == len(first)

    query.produce(3)
    query.run(sink, mode, result)
    more = sorted((each["odd"], each["count"]) for each in query.found()[len(first) :])
    assert more == {"append": [(1, 1)], "update": [(1, 2)], "complete": [(0, 2), (1, 2)]}[mode]


@pytest.mark.usefixtures("small_batches")
def test_a_task_that_fails_above_the_sink_writes_nothing_until_it_is_run_again(
    query: Query, tmp_path: Path
) -> None:
    repaired = tmp_path / "repaired"

    def above(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if ROWS - 5 in batch.column("n").to_pylist() and not repaired.exists():
                raise ValueError("broken above")
            yield batch

    def result(df: DataFrame) -> DataFrame:
        return df.select("n").mapInArrow(above, "n int")

    query.produce(*range(ROWS))
    with pytest.raises(Exception, match="broken above"):
        query.run(TopicSink(query.target), "append", result)
    assert query.found() == []
    repaired.touch()
    query.run(TopicSink(query.target), "append", result)
    assert query.found() == [{"n": n} for n in range(ROWS)]


@pytest.mark.parametrize(
    ("master", "can_read"),
    [
        ("local", True),
        ("local[2]", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("", False),
    ],
)
def test_only_tasks_on_this_machine_read_the_checkpoint(master: str, can_read: bool) -> None:
    assert tasks_read(master) is can_read
