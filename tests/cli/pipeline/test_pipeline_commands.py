"""``tidemill pipeline`` against a broker process: files with mistakes, runs, conflicts, losses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import CommandLine
from tests.support.in_process import InProcess
from tests.support.other_system import hide_linux
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.spark.pipelines.progress import QueryStatus, SourceStatus, now_text
from tidemill.spark.pipelines.status_topic import StatusTopic

WAIT_S = 240

FILE = """\
from tidemill.spark import Pipeline, TopicSink

p = Pipeline("flights")
p.stream("departures", topic="TOPIC", schema="id INT, at TIMESTAMP", dead_letters=None)


@p.query(sink=TopicSink("TOPIC.late", key="id"))
def late(departures):
    return departures.df.filter("id > 1")
"""


@pytest.fixture
def file(tidemill: CommandLine, topic: str) -> Path:
    """A pipeline file, as a user has it."""
    path = tidemill.folder / "flights.py"
    path.write_text(FILE.replace("TOPIC", topic))
    return path


def data_dir(tidemill: CommandLine) -> list[str]:
    return ["--data-dir", str(tidemill.folder / "data")]


def publish(tidemill: CommandLine, *statuses: QueryStatus) -> None:
    with StatusTopic({"bootstrap.servers": tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"]}) as topic:
        topic.create([])
        for each in statuses:
            topic.publish(each)


# --- without Spark -------------------------------------------------------------------------------


def test_mistakes_are_reported_with_lines_and_nothing_is_started(
    tidemill: CommandLine, file: Path
) -> None:
    file.write_text(
        file.read_text().replace("def late(departures)", "def late(departure)")
        + 'p.sql("x", "SELECT idd FROM departures", sink=TopicSink("x"))\n'
    )
    done = tidemill.run("pipeline", "run", str(file), *data_dir(tidemill))

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "error: pipeline flights has 2 mistakes:\n"
        f"  {file}:7: query late has a parameter departure, and no stream or table has this name\n"
        "    hint: Did you mean departures?\n"
        f"  {file}:10: query x: the SQL names an unknown column idd\n"
        "    hint: Did you mean id?\n"
    )
    assert not (tidemill.folder / "data").exists()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("p = (\n", 1, "FILE:1: '(' was never closed"),
        ("x = 1\ny = 1 / 0\n", 1, "FILE:2: ZeroDivisionError: division by zero"),
        ("import no_such_module\n", 1, "FILE:1: ModuleNotFoundError: No module named"),
        ("x = 1\n", 2, "FILE does not declare a pipeline"),
        (
            "from tidemill.spark import Pipeline\na, b = Pipeline('a'), Pipeline('b')\n",
            2,
            "FILE declares several pipelines: a, b",
        ),
        ("import sys\nsys.exit('no config')\n", 1, "FILE:2: the file exits the program: no config"),
        ("import sys\nsys.exit(0)\n", 1, "FILE:2: the file exits the program: exit code 0"),
        (
            "from tidemill.spark import Pipeline\np = Pipeline('a')\n"
            "@p.query\ndef q(a): return a.df\n",
            1,
            "FILE:3: a query needs a sink\nhint: Write @pipeline.query(sink=",
        ),
        (
            "from tidemill.spark import tumbling\ntumbling('at', '1 month')\n",
            1,
            "FILE:2: invalid duration '1 month': a month has no fixed length",
        ),
        (
            "from pyspark.sql import functions as f\nx = f.col('a')\n",
            1,
            "FILE:2: AssertionError\nhint: Spark starts after the file was read and checked",
        ),
    ],
    ids=[
        "syntax",
        "an error",
        "an import",
        "no pipeline",
        "several",
        "an exit with words",
        "an exit",
        "no parentheses",
        "a window",
        "too early",
    ],
)
def test_errors_in_a_pipeline_file_have_the_line(
    monkeypatch: pytest.MonkeyPatch,
    tidemill: CommandLine,
    file: Path,
    text: str,
    code: int,
    message: str,
) -> None:
    # Another test of this process may have left a session.
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    file.write_text(text)
    done = tidemill.run("pipeline", "run", str(file), *data_dir(tidemill))

    assert done.returncode == code
    assert done.stderr.startswith(f"error: {message.replace('FILE', str(file))}"), done.stderr


def test_missing_files_and_invalid_options_are_errors(tidemill: CommandLine, file: Path) -> None:
    folder = data_dir(tidemill)
    cases: list[tuple[int, str, list[str]]] = [
        (2, "file nowhere.py does not exist", ["run", "nowhere.py"]),
        (2, f"{file.parent} is a folder", ["run", str(file.parent)]),
        (2, "does not declare pipeline other", ["run", str(file), "--pipeline", "other"]),
        (2, "hint: It declares: flights.", ["run", str(file), "--pipeline", "other"]),
        (2, "--from someday: invalid start", ["run", str(file), "--from", "someday"]),
        (2, "hint: Use beginning, end, a time (", ["run", str(file), "--from", "-5"]),
        (2, "--master foo: invalid Spark master", ["run", str(file), "--master", "foo"]),
        (2, f"{file} is not a folder", ["run", str(file), "--data-dir", str(file)]),
        (
            2,
            "folder /nowhere does not exist",
            ["run", str(file), "--spark-log", "/nowhere/x", *folder],
        ),
        (3, "pipeline unknown has not run against these brokers", ["describe", "unknown"]),
        (3, "pipeline unknown has no checkpoint in", ["reset", "unknown", "--yes", *folder]),
    ]
    for code, message, arguments in cases:
        done = tidemill.run("pipeline", *arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_an_unreachable_broker_is_an_error_before_spark_starts(
    tidemill: CommandLine, file: Path
) -> None:
    away = f"127.0.0.1:{reserve_port()}"
    done = tidemill.run("pipeline", "run", str(file), "-b", away, *data_dir(tidemill))

    assert done.returncode == 5
    assert away in done.stderr


@pytest.mark.parametrize(
    ("options", "environment", "asked"),
    [
        ([], None, "localhost:1"),
        (["-b", "localhost:9092"], None, "localhost:9092"),  # the default, but given
        ([], "localhost:9092", "localhost:9092"),
        (["-b", "localhost:2"], "localhost:9092", "localhost:2"),
    ],
    ids=["the file's", "the command line's", "the environment's", "both"],
)
def test_the_brokers_in_the_file_are_used_unless_others_are_given(
    monkeypatch: pytest.MonkeyPatch,
    tidemill: CommandLine,
    file: Path,
    options: list[str],
    environment: str | None,
    asked: str,
) -> None:
    def refuse(address: tuple[str, int], timeout: float) -> None:
        raise ConnectionRefusedError(f"refused by {address[0]}:{address[1]}")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP_SERVERS", raising=False)
    del tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"]
    if environment is not None:
        tidemill.env["TIDEMILL_BOOTSTRAP_SERVERS"] = environment
    file.write_text(
        file.read_text().replace('"flights")', '"flights", bootstrap_servers="localhost:1")')
    )
    done = tidemill.run("pipeline", "run", str(file), *options, *data_dir(tidemill))

    assert done.returncode == 5
    assert done.stderr.startswith(f"error: no broker answers at {asked} (refused by {asked})")


def test_a_file_can_import_from_its_own_folder(tidemill: CommandLine, file: Path) -> None:
    (file.parent / "my_own_helpers.py").write_text("SCHEMA = 'id'\n")
    file.write_text(
        "from my_own_helpers import SCHEMA\n"
        + file.read_text().replace('schema="id INT, at TIMESTAMP"', "schema=SCHEMA")
    )
    done = tidemill.run("pipeline", "run", str(file), *data_dir(tidemill))

    assert f"{file}:5: stream departures: 'id' is not a column with a type" in done.stderr


def test_a_pipeline_that_publishes_no_status_is_lost(tidemill: CommandLine) -> None:
    told = QueryStatus(
        *("silent", "q", "running"),
        sink="topic out",
        latency_p50_ms=120,
        latency_p99_ms=1500,
        sources=(SourceStatus("a", 5), SourceStatus("b")),
        mode="update",
        updated="2020-01-01T00:00:00.000+00:00",
    )
    publish(
        tidemill,
        told,
        replace(told, query="new", updated=now_text()),
        replace(told, query="over", state="done"),
    )

    found = {
        each["query"]: each["state"] for each in tidemill.json("pipeline", "describe", "silent")
    }
    assert found == {"new": "running", "over": "done", "q": "lost"}
    assert "silent/q     lost" in tidemill.ok("pipeline", "list")
    described = tidemill.ok("pipeline", "describe", "silent").split("\n\n")
    running, _, lost = [
        dict(re.split("  +", line, maxsplit=1) for line in each.splitlines()) for each in described
    ]
    assert running["sources"] == "a (5 behind), b"
    assert lost["state"] == "lost"
    assert lost["sources"] == "a, b"  # topic a does not exist, so its lag is unknown
    assert lost["latency"] == "120ms (half), 1s (99 of 100)"


def test_the_lag_of_an_ended_query_counts_new_records(tidemill: CommandLine, topic: str) -> None:
    tidemill.ok("topic", "create", topic)
    produce(tidemill, topic, *range(5))
    long_ago = "2020-01-01T00:00:00.000Z"
    told = QueryStatus("behind", "done", "done", sources=(SourceStatus(topic, 0, 2),))
    changed = {
        "done": told,
        "lost": replace(told, query="lost", state="running", updated=long_ago),
        "runs": replace(told, query="runs", state="running", updated=now_text()),
        "never": replace(told, query="never", sources=(SourceStatus(topic),)),
        "recreated": replace(told, query="recreated", sources=(SourceStatus(topic, 0, 90),)),
        "gone": replace(told, query="gone", sources=(SourceStatus("gone", 0, 2),)),
        "table": replace(told, query="table", sources=(*told.sources, SourceStatus("t"))),
    }
    publish(tidemill, *changed.values())

    found = {
        line.split()[0].partition("/")[2]: line.split()[5]
        for line in tidemill.ok("pipeline", "list").splitlines()
        if line.startswith("behind/")
    }
    assert found == {
        "done": "3",
        "lost": "3",
        "runs": "0",
        "never": "-",
        "recreated": "-",
        "gone": "-",
        "table": "3",
    }
    assert f"{topic} (3 behind)" in tidemill.ok("pipeline", "describe", "behind")


def test_before_the_first_batch_most_fields_are_empty(tidemill: CommandLine) -> None:
    publish(
        tidemill, QueryStatus("fresh", "q", "starting", "append", "topic x", updated=now_text())
    )

    lines = tidemill.ok("pipeline", "describe", "fresh").splitlines()
    fields = dict(re.split("  +", line, maxsplit=1) for line in lines)
    assert {fields[name] for name in ("batch", "watermark", "batch took", "latency")} == {"-"}
    assert fields["updated"].endswith("Z")


def test_reset_lists_the_checkpoints_and_deletes_the_statuses(tidemill: CommandLine) -> None:
    state = tidemill.folder / "data" / "pipelines"
    (state / "mine" / "a" / "checkpoint").mkdir(parents=True)
    (state / "mine" / "b" / "checkpoint").mkdir(parents=True)
    done = QueryStatus("mine", "a", "done")
    publish(tidemill, done, replace(done, query="b"))

    def refused(*arguments: str) -> str:
        answer = tidemill.run("pipeline", "reset", *arguments, "--yes")
        assert answer.returncode == 3
        return answer.stderr

    typo = refused("mine", "--query", "c", *data_dir(tidemill))
    assert "query c of pipeline mine has no checkpoint in" in typo
    assert "hint: These queries have one: a, b.\n" in typo
    other = "Was it run with another --data-dir?\n"
    assert refused("yours", *data_dir(tidemill)).endswith(
        f"hint: There are those of: mine. {other}"
    )
    elsewhere = ["--data-dir", str(tidemill.folder / "elsewhere")]
    assert refused("mine", *elsewhere).endswith(f"hint: The folder has none. {other}")

    tidemill.ok("pipeline", "reset", "mine", "--query", "a", "--yes", *data_dir(tidemill))
    assert [each["query"] for each in tidemill.json("pipeline", "describe", "mine")] == ["b"]
    # No broker needs to answer.
    away = ["-b", f"127.0.0.1:{reserve_port()}", "--yes", *data_dir(tidemill)]
    assert tidemill.ok("pipeline", "reset", "mine", *away) == "reset mine/b\n"


def test_a_rebuild_names_what_prevents_it_before_spark_starts(
    tidemill: CommandLine, file: Path
) -> None:
    for query, code, message in (
        ("lates", 1, "pipeline flights has no query lates\nhint: Did you mean late?"),
        (
            "late",
            1,
            "query late: TopicSink can't be rebuilt beside itself\nhint: Declare the query",
        ),
    ):
        done = tidemill.run("pipeline", "rebuild", str(file), query, *data_dir(tidemill))
        assert done.returncode == code
        assert done.stdout == ""
        assert f"error: {message}" in done.stderr
    assert "Spark is starting" not in done.stderr


def test_the_help_has_the_exit_codes(tidemill: CommandLine) -> None:
    text = " ".join(tidemill.ok("pipeline", "run", "--help").split())

    assert "The exit code is 0 after a stop or when the pipeline has caught up" in text
    assert "It is 1 if a query failed for good." in text


# --- with Spark ----------------------------------------------------------------------------------


class Running:
    """A ``pipeline run`` in a process of its own."""

    def __init__(self, tidemill: CommandLine, file: Path, *options: str) -> None:
        self.process = tidemill.start("pipeline", "run", file.name, "--data-dir", "data", *options)
        os.set_blocking(self.process.stderr.fileno(), False)  # type: ignore[union-attr]
        self._stderr = b""

    def stderr(self) -> str:
        """Return its stderr up to now."""
        assert self.process.stderr is not None
        self._stderr += self.process.stderr.read() or b""
        return self._stderr.decode()

    def wait_for(self, text: str) -> None:
        poll_until(
            lambda: text in self.stderr() or self.process.poll() is not None, WAIT_S, text, 0.05
        )
        assert text in self.stderr(), self.stderr()

    @property
    def java(self) -> psutil.Process:
        """Its JVM."""
        children = psutil.Process(self.process.pid).children()
        return next(each for each in children if "java" in each.name())

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        return code, self.process.stdout.read().decode(), self.stderr()


@pytest.fixture
def start(tidemill: CommandLine, file: Path) -> Iterator[Any]:
    made: list[Running] = []

    def run(*options: str) -> Running:
        made.append(Running(tidemill, file, *options))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.communicate()


def produce(tidemill: CommandLine, topic: str, *ids: int) -> None:
    rows = "\n".join(json.dumps({"id": each, "at": "2026-03-01T12:00:00Z"}) for each in ids)
    tidemill.ok("topic", "produce", topic, stdin=rows)


def results(tidemill: CommandLine, topic: str) -> list[str]:
    found = tidemill.records(f"{topic}.late", "--from", "beginning", "--until-end")
    return [each["key"] for each in found]


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_s_life(
    tidemill: CommandLine,
    topic: str,
    start: Any,
    warm_spark: InProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tidemill.folder)
    tidemill.ok("topic", "create", topic)
    produce(tidemill, topic, 1, 2, 3)
    until_caught_up = ["pipeline", "run", "flights.py", "--data-dir", "data", "--until-caught-up"]

    done = warm_spark.run_command(until_caught_up, tidemill.folder, tidemill.env)
    assert done.exit_code == 0, done.stderr
    header, row = done.stdout.splitlines()
    assert header.split()[:4] == ["QUERY", "STATE", "BATCH", "ROWS"]
    assert row.split()[:4] == ["late", "done", "0", "3"]
    assert done.stderr.startswith("flights/late: starting\n")
    assert done.stderr.endswith("flights/late: done\n")
    assert results(tidemill, topic) == ["2", "3"]

    [described] = tidemill.json("pipeline", "describe", "flights")
    [listed] = [each for each in tidemill.json("pipeline", "list") if each["query"] == "late"]
    assert described == listed
    assert (described["state"], described["rows"], described["restarts"]) == ("done", 3, 0)
    fields = dict(re.split("  +", line, maxsplit=1) for line in describe(tidemill))
    assert fields["sources"] == f"{topic} (0 behind)"
    assert fields["sink"] == f"topic {topic}.late"
    assert fields["last error"] == "-"
    assert "flights/late" in tidemill.ok("pipeline", "list")

    # A second run does not read the same records again.
    done = warm_spark.run_command([*until_caught_up, "--json"], tidemill.folder, tidemill.env)
    assert done.exit_code == 0, done.stderr
    [status] = json.loads(done.stdout)
    assert (status["state"], status["rows"]) == ("done", 0)
    assert results(tidemill, topic) == ["2", "3"]

    # A process of its own, whose JVM is killed while it runs: it ends with an error.
    running = start()
    running.wait_for("flights/late: running")
    produce(tidemill, topic, 4)
    poll_until(lambda: results(tidemill, topic) == ["2", "3", "4"], WAIT_S, "a result", 0.5)
    refuse_what_would_spoil_it(tidemill)
    running.java.kill()
    code, _, stderr = running.end()
    assert code == 1
    assert "error: Spark's JVM ended while the pipeline ran (killed by signal 9)\n" in stderr
    assert "hint: The system may have killed it for lack of memory: see dmesg." in stderr
    assert "Traceback" not in stderr
    assert tidemill.json("pipeline", "describe", "flights")[0]["state"] == "failed"

    # After a reset, the next run writes all results again.
    assert "would reset flights/late" in tidemill.ok(
        "pipeline", "reset", "flights", "--dry-run", "--data-dir", "data"
    )
    unknown = tidemill.run(
        "pipeline", "reset", "flights", "--query", "x", "--yes", "--data-dir", "data"
    )
    assert (unknown.returncode, "query x of pipeline flights" in unknown.stderr) == (3, True)
    reset = ["pipeline", "reset", "flights", "--data-dir", "data"]
    assert tidemill.run(*reset).returncode == 2  # not a terminal
    assert tidemill.ok(*reset, "--yes") == "reset flights/late\n"
    stop_in_the_middle_of_a_batch(tidemill, topic, start)


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_and_its_python_workers_run_without_linux(
    tidemill: CommandLine, topic: str, file: Path, tmp_path: Path
) -> None:
    tidemill.ok("topic", "create", topic)
    produce(tidemill, topic, 1, 2, 3)
    env = {**tidemill.env, **hide_linux(tmp_path / "hidden", tidemill.env)}
    run = ("pipeline", "run", file.name, "--data-dir", "data", "--until-caught-up")
    done = subprocess.run(
        tidemill.command(*run), env=env, cwd=tidemill.folder, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert results(tidemill, topic) == ["2", "3"]


def describe(tidemill: CommandLine) -> list[str]:
    return tidemill.ok("pipeline", "describe", "flights").splitlines()


def refuse_what_would_spoil_it(tidemill: CommandLine) -> None:
    reset = tidemill.run("pipeline", "reset", "flights", "--yes", "--data-dir", "data")
    assert (reset.returncode, "another process runs pipeline" in reset.stderr) == (4, True)
    another = tidemill.run("pipeline", "run", "flights.py", "--data-dir", "data")
    assert (another.returncode, "another process runs pipeline" in another.stderr) == (4, True)


def stop_in_the_middle_of_a_batch(tidemill: CommandLine, topic: str, start: Any) -> None:
    """Press Ctrl-C while a task is busy for minutes: the run ends in seconds, without an error."""
    begun = tidemill.folder / "begun"
    file = tidemill.folder / "flights.py"
    file.write_text(
        file.read_text()
        + f"""

@p.query(sink=TopicSink("{topic}.slow"))
def slow(departures):
    from pyspark.sql import functions as f

    @f.udf("int")
    def sleep(number):
        import pathlib, time

        pathlib.Path({str(begun)!r}).touch()
        time.sleep(600)
        return number

    return departures.df.select(sleep("id").alias("id"))
"""
    )
    running = start()
    poll_until(lambda: begun.exists() or running.process.poll() is not None, WAIT_S, "a task", 0.1)
    assert begun.exists(), running.stderr()
    expected = ["2", "3", "4"] * 2
    poll_until(lambda: results(tidemill, topic) == expected, WAIT_S, "all results again", 0.5)
    began = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    code, stdout, stderr = running.end()

    assert code == 0, stderr
    assert time.monotonic() - began < 500  # it did not wait for the sleep of the task
    assert {line.split()[1] for line in stdout.splitlines()[1:]} == {"stopped"}
    assert "Traceback" not in stderr
