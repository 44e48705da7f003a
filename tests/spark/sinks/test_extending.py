"""A new sink is one class in one file: it is checked and run without any change elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tests.spark.documented import documented_class
from tests.spark.sinks.toy_sink import ToySink
from tidemill.spark import Pipeline, Runner, RunOptions
from tidemill.spark.pipelines.check import check
from tidemill.spark.pipelines.problems import PipelineProblemsError
from tidemill.spark.pipelines.resolve import topics_to_create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def declared(sink: Any, topic: str = "numbers", **options: Any) -> Pipeline:
    pipeline = Pipeline(f"to-{topic}")
    pipeline.stream("numbers", topic=topic, schema="n INT", dead_letters=None)
    pipeline.sql("all", "SELECT n FROM numbers", sink=sink, **options)
    return pipeline


def problems(pipeline: Pipeline) -> list[tuple[str, str]]:
    with pytest.raises(PipelineProblemsError) as error:
        check(pipeline)
    return [(each.message, each.hint) for each in error.value.problems]


def test_a_toy_sink_is_checked_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "out.md"
    found = problems(declared(ToySink(path, "announced"), mode="complete"))
    assert [message for message, _ in found] == [
        "query all: ToySink does not support complete mode",
        "query all: ToySink has no key",
        "query all: toy out.md of query all is not a .txt file",
    ]
    same = declared(ToySink(tmp_path / "out.txt", "announced", "n"))
    same.sql("again", "SELECT n FROM numbers", sink=ToySink(tmp_path / "out.txt", "x", "n"))
    [(message, _)] = problems(same)
    assert message.startswith("two queries write to toy out.txt")


def test_a_toy_sink_s_topics_are_created_and_must_not_be_read(tmp_path: Path) -> None:
    sink = ToySink(tmp_path / "out.txt", "announced", "n")
    assert topics_to_create(declared(sink))[1] == [("announced", True)]
    [(message, _)] = problems(declared(sink, topic="announced"))
    assert "reads topic announced and writes to it" in message


def test_the_documented_sink_is_checked(tmp_path: Path) -> None:
    sink = documented_class("JsonFolderSink")
    check(declared(sink(str(tmp_path))))
    [(message, hint)] = problems(declared(sink(str(tmp_path / "no"))))
    assert message == f"query all: folder {tmp_path / 'no'} does not exist"
    assert hint == "Create it first."


@pytest.mark.spark
def test_a_toy_sink_and_the_documented_one_run_in_a_pipeline(
    spark: SparkSession, tidemill_broker: Broker, tmp_path: Path
) -> None:
    topic = tidemill_broker.topic()
    tidemill_broker.produce(topic, ['{"n": 1}', '{"n": 2}'])
    folder = tmp_path / "out"
    folder.mkdir()
    toy = ToySink(tmp_path / "toy.txt", f"{topic}.announced", "n")
    pipeline = declared(toy, topic)
    pipeline.sql(
        "files",
        "SELECT n + 1 AS n FROM numbers",
        sink=documented_class("JsonFolderSink")(str(folder)),
    )
    options = RunOptions(tidemill_broker.bootstrap, tmp_path / "state", until_caught_up=True)

    for _ in range(2):  # the second run finds nothing new
        for status in Runner(pipeline, options).run():
            assert (status.state, status.error) == ("done", None)

    lines = [json.loads(line) for line in (tmp_path / "toy.txt").read_text().splitlines()]
    opened = {
        "open": f"{pipeline.name}/all",
        "mode": "append",
        "servers": ["bootstrap.servers"],
    }
    rows = [{"n": 1}, {"n": 2}]
    # ``close`` may be called more than once.
    seen = [line for at, line in enumerate(lines) if line != lines[at - 1]]
    assert seen == [
        {"fresh": True},
        opened,
        {"batch": 0, "rows": rows},
        {"closed": True},
        {"fresh": False},
        opened,
        {"closed": True},
    ]
    assert [path.name for path in folder.iterdir()] == ["0.jsonl"]
    assert (folder / "0.jsonl").read_text() == '{"n": 2}\n{"n": 3}\n'
