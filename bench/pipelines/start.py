"""Measures the start of a pipeline: from a new process to its first result, in phases.

Spark runs in its own processes. The topics and their records exist before the clock starts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from bench import programs, targets
from bench.pipelines.latency import Failure, reading
from bench.pipelines.results import PHASES
from bench.programs import ROOT
from bench.report import Aim, Section, Table
from bench.run import Run
from bench.targets import Target

COLUMNS = ["phase", "median s", "slowest s", "CPU s"]
NOTE = (
    "One stateless query in new processes, local[2]. CPU: Python, the JVM and the Python workers. "
    "The broker runs before, and its topic has records."
)
HELP_S, FIRST_RESULT_S = 0.25, 8.0
RECORDS = 1000
TIMEOUT_S = 300.0

_PIPELINE = """\
from bench.pipelines.declared import declared

pipeline = declared("stateless", "200 milliseconds", {topic!r})
"""


def section(run: Run) -> Section:
    """Measure the help, each phase, and the command as users run it.

    Raises:
        RuntimeError: A process failed.
    """
    table = Table("Pipelines: start", COLUMNS, note=NOTE)
    rounds = run.options.rounds
    run.say("start of a pipeline: the command's help, phases, the command")
    helps = [run_help() for _ in range(rounds)]
    with targets.tidemill(run.options.folder) as target:
        phases = [in_phases(run, target, number) for number in range(rounds)]
        commands = [as_command(run, target, number) for number in range(rounds)]
    table.rows.append(["tidemill --help", statistics.median(helps), max(helps), None])
    for name in PHASES:
        walls = [each[name][0] for each in phases]
        used = statistics.median(each[name][1] for each in phases)
        table.rows.append([name, statistics.median(walls), max(walls), used])
    whole = "tidemill pipeline run, to the first result"
    table.rows.append([whole, statistics.median(commands), max(commands), None])
    return Section(
        "pipeline-start",
        [table],
        [
            Aim("tidemill --help", statistics.median(helps), HELP_S, "s", at_most=True),
            Aim(whole, statistics.median(commands), FIRST_RESULT_S, "s", at_most=True),
        ],
    )


def run_help() -> float:
    """Return the seconds of ``tidemill --help``."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "tidemill", "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - began


def in_phases(run: Run, target: Target, number: int) -> dict[str, list[float]]:
    """Return the wall and processor seconds of each phase.

    Raises:
        RuntimeError: The process failed; its traceback is on stderr.
    """
    topic = _records(target, f"start.phases.{number}")
    with tempfile.TemporaryDirectory(prefix="start-", dir=run.options.folder) as folder:
        arguments = (target.bootstrap, folder, topic, f"{topic}.out")
        found: dict[str, list[float]] = programs.result(
            "bench.pipelines.start_client", *arguments, timeout_s=TIMEOUT_S
        )
    return found


def as_command(run: Run, target: Target, number: int) -> float:
    """Return the seconds from the start of ``tidemill pipeline run`` to its first result.

    Raises:
        RuntimeError: The command ended before.
    """
    topic = _records(target, f"start.command.{number}")
    with tempfile.TemporaryDirectory(prefix="start-", dir=run.options.folder) as folder:
        file = Path(folder) / "pipeline.py"
        file.write_text(_PIPELINE.format(topic=topic))
        command = [sys.executable, "-m", "tidemill", "pipeline", "run", str(file)]
        command += ["-b", target.bootstrap, "--data-dir", folder]
        began = time.perf_counter()
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
        try:
            with reading(target.bootstrap, f"{topic}.out") as seen:
                seen.wait_for(0, _Ended(process, Path(folder) / "output"))
            return seen.at[0] - began
        finally:
            process.terminate()
            process.wait(60)


class _Ended(Failure):
    """Reports a process that has ended."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        super().__init__()
        self._process = process
        self._output = output

    def check(self) -> None:
        if (code := self._process.poll()) is not None:
            text = self._output.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the command ended with {code}:\n{text}")


def _records(target: Target, topic: str) -> str:
    """Create a topic with records, and the topic of the results; return the name."""
    target.create_topic(topic, 1)
    target.create_topic(f"{topic}.out", 1)
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"n": number, "at": "2026-01-01T00:00:00Z"}))
    if left := producer.flush(60):
        raise RuntimeError(f"{left} records were not acknowledged")
    return topic
