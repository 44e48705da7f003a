"""Measures the start-up time: from exec to the line that reports that the broker is ready."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from bench import history, machine, wire
from bench.compare import Comparison, Figures, typical
from bench.history import Writer
from bench.programs import environment_of
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target

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
        checkout: The checkout that it runs; None for this one.
    """

    def __init__(self, folder: Path, checkout: Path | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tidemill", "serve", "--host", "127.0.0.1"]
        command += ["--kafka-port", "0", "--set", "amqp.port=0", "--data-dir", str(folder / "data")]
        if checkout is None:  # an earlier one possibly has no gateway
            command += ["--set", "gateway.enabled=false", "--set", "health.port=0"]
        env = {**os.environ, **environment_of(checkout)}
        began = time.perf_counter()
        with (folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=folder, env=env
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
    compared = Comparison(run, "Start-up", ["s"], about=("case",), note=NOTE)
    size, count = run.options.history_gb, run.options.partitions
    aims: list[Aim] = []
    with tempfile.TemporaryDirectory(prefix="startup-", dir=run.options.folder) as name:
        parent, new = Path(name), itertools.count()
        all_versions = run.versions

        def add(case: str, measure: Callable[[str, Path | None], float], aim: bool = True) -> None:
            run.say(f"start-up: {case}")
            turns = {
                who: partial(_figure, measure, who, checkout)
                for who, checkout in all_versions.items()
            }
            seconds = typical(list(compared.measure([case], turns).values())[-1], "s")
            if aim and seconds is not None:
                what = f"start-up after a clean stop, slowest case ({case})"
                aims.append(Aim(what, seconds, AIM_S, "s", at_most=True))

        add("no data folder", lambda _, checkout: started(parent / f"new-{next(new)}", checkout))
        add("interpreter alone", lambda *_: interpreter(), aim=False)
        for what, kind, topic, partitions in (
            (f"{size:g} GB of history", "large", history.TOPIC, history.PARTITIONS),
            (f"{count} partitions", "many", "many-0", min(count, 100)),
        ):
            for who, checkout in all_versions.items():
                folder = parent / who / kind
                run.say(f"start-up: writing {what}")
                if kind == "many":
                    make_partitions(folder, count, checkout)
                else:
                    with history.broker_with_topic(folder, checkout) as (broker, writer):
                        writer.write(size * 1000)
                        broker.terminate()
            files = partial(_folder, parent, kind)
            add(f"{what}, clean stop", partial(_clean, files))
            add(f"{what}, clean stop, cold", partial(_cold, files))
            add(f"{what}, killed", partial(_killed, files, topic, partitions), aim=False)
    slowest = max(aims, key=lambda aim: aim.measured)
    return Section("startup", [compared.table()], [slowest, *compared.regressions()])


def _folder(parent: Path, kind: str, who: str) -> Path:
    return parent / who / kind


def _figure(
    measure: Callable[[str, Path | None], float], who: str, checkout: Path | None
) -> Figures:
    return {"s": measure(who, checkout)}


def _clean(files: Callable[[str], Path], who: str, checkout: Path | None) -> float:
    return started(files(who), checkout)


def _cold(files: Callable[[str], Path], who: str, checkout: Path | None) -> float:
    machine.forget_pages(files(who))
    return started(files(who), checkout)


def _killed(
    files: Callable[[str], Path], topic: str, partitions: int, who: str, checkout: Path | None
) -> float:
    broker = Started(files(who), checkout)
    Writer(broker.target, topic, partitions).write(UNSYNCED_MB)
    broker.stop(signal.SIGKILL)
    return started(files(who), checkout)


def started(folder: Path, checkout: Path | None) -> float:
    """Start and stop the broker, and return the seconds of the start."""
    broker = Started(folder, checkout)
    broker.stop()
    return broker.seconds


def interpreter() -> float:
    """Measure a process that does nothing, the lower limit."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def make_partitions(folder: Path, count: int, checkout: Path | None) -> None:
    """Create topics of a hundred partitions with a batch in each, and stop the broker cleanly."""
    batch = wire.make_batch(100, records=8)
    with BrokerProcess(folder, env=environment_of(checkout), fresh=True) as broker:
        target = Target("tidemill", broker.bootstrap, broker.pid)
        for number in range(-(-count // TOPIC_PARTITIONS)):
            partitions = min(TOPIC_PARTITIONS, count - number * TOPIC_PARTITIONS)
            target.create_topic(f"many-{number}", partitions)
            target.write_first(f"many-{number}", partitions, batch)
        broker.terminate()
