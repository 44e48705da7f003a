"""The whole demo as a user runs it: the figures are right, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.demo.support import command_of, no_process_left, skip_without_data_set
from tests.support.effort import in_nightly_runs
from tests.support.processes import poll_until
from tidemill.cli.demo.tables import QUERIES
from tidemill.demo.check_all import index_can_be_kept
from tidemill.demo.check_results import EXPECTED
from tidemill.demo.database.registry import AIRCRAFT, AIRLINES, CHANGED_AT, COLUMNS, KEYS
from tidemill.demo.topics import (
    DEAD_LETTERS,
    PUBLISHED,
    SENT,
    TOPICS,
    captured_topic,
    create_topics,
    delete_topics,
    end_offsets,
)
from tidemill.errors import TopicExistsError
from tidemill.local.broker import Broker
from tidemill.spark.base.java import find_java
from tidemill.spark.errors import JavaNotFoundError

TIMEOUT_S = 800


@pytest.fixture
def needs_spark() -> None:
    pytest.importorskip("pyspark")
    skip_without_data_set()
    try:
        find_java()
    except JavaNotFoundError as missing:
        pytest.skip(str(missing))


@contextmanager
def running_demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``tidemill demo`` with temporary files in a folder, its output in ``output`` there."""
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", "demo", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.spark
@pytest.mark.separate
@pytest.mark.usefixtures("needs_spark")
def test_every_result_of_a_day_is_equal(tmp_path: Path) -> None:
    # The day on which clocks go forward.
    with running_demo(
        tmp_path, "--from", "2013-03-10", "--days", "1", "--speed", "max", "--json"
    ) as demo:
        code = demo.wait(TIMEOUT_S)
    output = (tmp_path / "output").read_text()
    assert code == 0, output
    report = json.loads(output.splitlines()[-1])
    assert report["ok"] is True
    queries = report["queries"]
    tables = {
        f"{table}: {where}" for table in ("aircraft", "airlines") for where in ("database", "topic")
    }
    index = {"search"} if index_can_be_kept() else set()
    assert set(queries) == {*EXPECTED, *tables, *index, "departures.dlq", "arrivals.dlq"}
    for query, found in queries.items():
        assert found["equal"] == found["expected"], query
        assert not found["repeated"], query
    assert {query for query in EXPECTED if not queries[query]["expected"]} == set()
    assert queries["hourly"]["expected"] > 40
    assert queries["aircraft: topic"]["expected"] > 3000
    assert (report["database"], report["edits"] > 100) == ("sqlite", True)
    assert report["late_dropped"] == 0
    assert report["stored"] == report["sent"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tidemill-demo")] == []


@pytest.mark.spark
@pytest.mark.separate
@pytest.mark.slow
@pytest.mark.usefixtures("needs_spark")
@pytest.mark.parametrize("number", [signal.SIGINT, *in_nightly_runs(signal.SIGKILL)])
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "output"
    with no_process_left() as processes, running_demo(tmp_path, "--speed", "3600x") as demo:
        poll_until(
            lambda: reads_with_spark(demo.pid) or demo.poll() is not None,
            TIMEOUT_S,
            "a query begins to read",
        )
        assert demo.poll() is None, output.read_text()
        found = psutil.Process(demo.pid).children(recursive=True)
        commands = {process: command_of(process) for process in found}
        assert any("SparkSubmit" in command for command in commands.values())
        assert any("serve" in command for command in commands.values())
        assert any("source run demo" in command for command in commands.values())
        demo.send_signal(number)
        code = demo.wait(60)
        readers = {p for p, command in commands.items() if "source_runner" in command}
        processes |= commands.keys() - readers
        if number == signal.SIGINT:
            processes |= readers
        else:  # asks the broker for a minute, which is gone as well, before it looks for its JVM
            for reader in readers:
                with suppress(psutil.NoSuchProcess):
                    reader.kill()
    assert code == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert "error:" not in output.read_text()


def test_the_demos_broker_keeps_its_topics_apart_from_those_of_an_earlier_run(
    tmp_path: Path,
) -> None:
    with (
        no_process_left() as processes,
        Broker(tmp_path / "data", log_file=tmp_path / "broker.log") as broker,
    ):
        processes.add(psutil.Process(broker.pid))
        captured = ("demo.main.aircraft",)
        create_topics(broker.bootstrap_servers, captured)
        with pytest.raises(TopicExistsError, match=r"demo\.main\.aircraft") as raised:
            create_topics(broker.bootstrap_servers, captured)
        assert "--reset" in raised.value.hint
        assert set(end_offsets(broker.bootstrap_servers, TOPICS).values()) == {0}
        names = sorted(topic.name for topic in TOPICS)
        assert sorted(delete_topics(broker.bootstrap_servers)) == names
        assert delete_topics(broker.bootstrap_servers, captured) == list(captured)
        assert delete_topics(broker.bootstrap_servers) == []
        create_topics(broker.bootstrap_servers)


def test_the_users_settings_do_not_apply_to_the_demos_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_CONFIG", "missing.toml")
    monkeypatch.setenv("TIDEMILL_NODE_ID", "invalid")
    with Broker(tmp_path / "data", log_file=tmp_path / "broker.log") as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")


def test_the_topics_and_the_checks_are_those_of_the_pipeline() -> None:
    pytest.importorskip("pyspark")
    from tidemill.demo.control_room import pipeline
    from tidemill.spark import ChangelogSink, TopicSink
    from tidemill.spark.pipelines.check import problems

    assert not list(problems(pipeline))
    found = {}
    for query in pipeline.queries:
        assert isinstance(query.sink, (TopicSink, ChangelogSink))
        found[query.name] = (query.sink.topic, isinstance(query.sink, ChangelogSink))
    assert found == {query: (topic.name, topic.is_changelog) for query, topic in PUBLISHED.items()}
    assert found.keys() == EXPECTED.keys() == QUERIES.keys() - {"search"}
    assert {topic for each in pipeline.inputs for topic in each.topics} == {
        *(topic.name for topic in SENT),
        *(captured_topic("main", table) for table in (AIRCRAFT, AIRLINES)),
    }
    for table in pipeline.tables:
        assert table.valid_from == CHANGED_AT
        names = [column.split()[0] for column in table.schema.strip().split(", ")]
        assert tuple(names) == (*COLUMNS[table.name], CHANGED_AT)
        assert table.key == (KEYS[table.name],)
    letters = {stream.dead_letters for stream in pipeline.streams}
    assert letters == {topic.name for topic in DEAD_LETTERS}


def reads_with_spark(pid: int) -> bool:
    """Whether a process of Spark's that reads for a query is there."""
    children = psutil.Process(pid).children(recursive=True)
    return any("source_runner" in command_of(child) for child in children)
