"""Measures the start-up time: from exec to the line that reports that the broker is ready."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from bench import history, machine, wire
from bench.history import Writer
from bench.report import Aim, Section, Table
from bench.run import Run
from bench.targets import Target

COLUMNS = ["case", "median s", "slowest s", "aim"]
NOTE = (
    "Seconds from exec to the ready line. Cold: none of the data is in the page cache. Killed: "
    "SIGKILL right after 64 MB with acks 1."
)
AIM_S = 1.0
READY_S = 300.0
UNSYNCED_MB = 64
TOPIC_PARTITIONS = 100


class Started:
    """A broker that measures its start.

    Args:
        folder: Folder for its data.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tidemill", "serve", "--host", "127.0.0.1"]
        command += ["--kafka-port", "0", "--set", "amqp.port=0", "--data-dir", str(folder / "data")]
        began = time.perf_counter()
        with (folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=folder
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.seconds = time.perf_counter() - began
        if not line:
            text = (folder / "broker.log").read_text()[-2000:]
            raise RuntimeError(f"the broker ended with {self._process.wait()}:\n{text}")
        self.target = Target("tidemill", str(json.loads(line)["kafka"]), self._process.pid)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the broker and wait for its end."""
        assert self._process.stdout is not None
        self._process.send_signal(number)
        self._process.wait(timeout=READY_S)
        self._process.stdout.close()


def section(run: Run) -> Section:
    """Measure an empty broker, a large history and many partitions, after stops and kills."""
    table = Table("Start-up", COLUMNS, note=NOTE)
    result = Section("startup", [table])
    with tempfile.TemporaryDirectory(prefix="startup-", dir=run.options.folder) as name:
        parent = Path(name)
        run.say("start-up: empty")
        fresh = iter(range(1000))
        add(run, result, "no data folder", lambda: started(parent / f"new-{next(fresh)}"))
        add(run, result, "interpreter alone", interpreter, aim=False)

        size = run.options.history_gb
        run.say(f"start-up: writing {size:g} GB")
        large = parent / "large"
        with history.broker_with_topic(large) as (broker, writer):
            writer.write(size * 1000)
            broker.terminate()
        measure_folder(run, result, large, f"{size:g} GB of history", history.TOPIC, 8)

        count = run.options.partitions
        run.say(f"start-up: creating {count} partitions")
        many = parent / "many"
        make_partitions(many, count)
        measure_folder(run, result, many, f"{count} partitions", "many-0", min(count, 100))
    clean = [aim for aim in result.aims if "killed" not in aim.what]
    slowest = max(clean, key=lambda aim: aim.measured)
    result.aims = [slowest]
    return result


def measure_folder(
    run: Run, result: Section, folder: Path, what: str, topic: str, partitions: int
) -> None:
    """Measure starts with existing data: warm, cold, and after kills."""
    run.say(f"start-up: {what}")
    add(run, result, f"{what}, clean stop", lambda: started(folder))

    def cold() -> float:
        machine.forget_pages(folder)
        return started(folder)

    def killed() -> float:
        broker = Started(folder)
        Writer(broker.target, topic, partitions).write(UNSYNCED_MB)
        broker.stop(signal.SIGKILL)
        return started(folder)

    add(run, result, f"{what}, clean stop, cold", cold)
    add(run, result, f"{what}, killed", killed, aim=False)


def add(
    run: Run, result: Section, case: str, measure: Callable[[], float], *, aim: bool = True
) -> None:
    """Measure a case several times; add one row and one aim."""
    seconds = []
    for _ in range(run.options.rounds):
        machine.settle()
        seconds.append(measure())
    typical = statistics.median(seconds)
    verdict = None
    if aim:
        one = Aim(f"start-up after a clean stop, slowest case ({case})", typical, AIM_S, "s", True)
        verdict = "met" if one.met else "missed"
        result.aims.append(one)
    result.tables[0].rows.append([case, typical, max(seconds), verdict])


def started(folder: Path) -> float:
    """Start and stop the broker, and return the seconds of the start."""
    broker = Started(folder)
    broker.stop()
    return broker.seconds


def interpreter() -> float:
    """Measure a process that does nothing, the lower limit."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def make_partitions(folder: Path, count: int) -> None:
    """Create topics of a hundred partitions with a batch in each, and stop the broker cleanly."""
    batch = wire.make_batch(100, records=8)
    with BrokerProcess(folder, fresh=True) as broker:
        target = Target("tidemill", broker.bootstrap, broker.pid)
        for number in range(-(-count // TOPIC_PARTITIONS)):
            partitions = min(TOPIC_PARTITIONS, count - number * TOPIC_PARTITIONS)
            target.create_topic(f"many-{number}", partitions)
            target.write_first(f"many-{number}", partitions, batch)
        broker.terminate()
