"""Dead letters: Spark and this process continue from each other's checkpoints."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Broker
from tests.support.committed import read_to_end
from tidemill.spark import TopicSink
from tidemill.spark.pipelines import runner
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.reading.letters import runs_here
from tidemill.spark.pipelines.resolve import all_queries
from tidemill.spark.pipelines.runner import Runner, RunOptions, find_error


def pipeline(name: str) -> Pipeline:
    p = Pipeline(name)
    p.stream("flights", topic=f"{name}.flights", schema="id INT")
    p.query(sink=TopicSink(f"{name}.out"), name="copy")(lambda flights: flights.df)
    return p


@pytest.mark.parametrize(
    ("master", "source_format", "expected"),
    [
        ("local[2]", "tidemill", True),
        ("local[*]", "tidemill", True),
        ("local[2]", "kafka", False),
        ("spark://host:7077", "tidemill", False),
        ("yarn", "tidemill", False),
    ],
)
def test_only_dead_letters_of_one_machine_run_here(
    master: str, source_format: str, expected: bool
) -> None:
    query, letters = all_queries(pipeline("p"))
    assert runs_here(letters, master, source_format) is expected
    assert not runs_here(query, master, source_format)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_spark_and_this_process_continue_from_each_other(
    tidemill_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"p-{uuid.uuid4().hex[:8]}"
    tidemill_broker.topic(name=f"{name}.flights")
    offsets = tmp_path / "pipelines" / name / "flights.dlq" / "checkpoint" / "offsets"

    def run(*values: str, in_spark: bool) -> None:
        tidemill_broker.produce(f"{name}.flights", values)
        options = RunOptions(
            tidemill_broker.bootstrap, tmp_path / "pipelines", until_caught_up=True
        )
        with monkeypatch.context() as patch:
            if in_spark:
                patch.setattr(runner, "runs_here", lambda *_: False)
            assert find_error(Runner(pipeline(name), options).run()) is None

    def interrupt() -> None:
        """Leave the last batch as if the process had been killed before it was committed."""
        last = max(int(each.name) for each in offsets.iterdir() if each.name.isdecimal())
        (offsets.parent / "commits" / str(last)).unlink()
        (offsets.parent / "commits" / f".{last}.crc").unlink(missing_ok=True)

    run("a", '{"id": 1}', in_spark=True)
    interrupt()
    run("b", in_spark=False)
    interrupt()
    run("c", in_spark=True)
    run('{"id": 2}', "d", in_spark=False)
    found: list[Any] = read_to_end(tidemill_broker.bootstrap, f"{name}.flights.dlq")
    assert [each.value() for each in found] == [b"a", b"b", b"c", b"d"]
    places = [dict(each.headers())["source.offset"] for each in found]
    assert places == [b"0", b"2", b"3", b"5"]
