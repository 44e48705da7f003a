"""Each record is written once although the driver, whose own tasks write on one machine, is killed.

The driver runs on a local master, so all tasks end with it. Most kills come while a task waits at a
step: while it sends rows, before it commits its transaction, or after that and before Spark commits
the batch to its checkpoint.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.crash.driver_process import WAIT_S, DriverProcess, kill
from tests.crash.numbers import (
    COPY,
    COUNTS,
    SOURCE,
    NumberProducer,
    check_copy,
    check_counts,
    create_topics,
)
from tests.crash.spark_driver import COMMITTED, WRITING, WRITTEN, Job
from tests.support.effort import chosen_seed, rounds
from tidemill.spark.datasource import worker_daemon

pytestmark = [pytest.mark.crash, pytest.mark.separate, pytest.mark.spark, pytest.mark.timeout(1700)]

ANYWHERE = ""
TASK, DRIVER = "task", "driver without its tasks"
ALL, PYTHON, JVM = "all", "python", "jvm"
"""What is killed: the processes of the tasks that wait; the driver with all its processes but
these, which go on later; the whole driver, or the process of Python or of Java first."""
Kill = tuple[str, str]
"""The step at which something is killed, and what."""
KILLS: tuple[Kill, ...] = ((WRITING, TASK), (WRITTEN, DRIVER), (COMMITTED, PYTHON))
"""The start of a driver is what costs time."""
RANDOM_KILLS = rounds("CRASH_IN_PLAN_KILLS", 60, nightly=60)


class LocalDriver(DriverProcess):
    """A driver on a local master, whose tasks wait where they are told to."""

    def __init__(self, job: Job, folder: Path, dice: random.Random) -> None:
        super().__init__(job, folder, dice)
        self._hold = Path(job.hold)

    def kill_at(self, step: str, victim: str) -> None:
        """Kill something while a task waits at a step, and wait until both queries go on."""
        held = self._held(step) if step else []
        time.sleep(self._dice.random() * 0.3)  # other tasks go on meanwhile
        self.notes.append(f"{victim} at {step or 'any step'}")
        waiting: list[Path] = []
        if victim == TASK:
            for process in held:
                kill(process)
        elif victim == DRIVER:
            waiting = [Path(f"{self._hold}.{process.pid}") for process in held]
            for path in waiting:
                path.touch()
            self._kill_without(held)
        else:
            self.kill_driver(victim)
        self._hold.unlink(missing_ok=True)
        if victim != TASK:
            self.start()
        self.wait_for_batches(1)
        for path in waiting:  # these tasks try to go on where the next driver's have been
            path.unlink()

    def _kill_without(self, held: Sequence[psutil.Process]) -> None:
        """Kill the driver and its processes, without the tasks that wait."""
        driver = psutil.Process(self.driver.pid)
        family = [driver, *driver.children(recursive=True)]
        self._left += family
        # The parents of tasks tell them to end when Java does.
        family.sort(key=lambda each: each.name() != worker_daemon.TASKS_NAME)
        for process in family:
            if process not in held:
                kill(process)
        self.driver.kill()

    def _held(self, step: str) -> list[psutil.Process]:
        """Make tasks wait at a step, and return the processes of those that do."""
        begun = len(self.events())
        self._hold.write_text(step)

        def found() -> list[str]:
            return [each for each in self.events()[begun:] if each.startswith(f"held {step} ")]

        self.driver.wait_until(lambda: bool(found()), WAIT_S)
        return [psutil.Process(int(each.rpartition(" ")[2])) for each in found()]


def test_each_record_is_written_once_after_a_kill_at_each_step(
    bootstrap: str, tmp_path: Path
) -> None:
    seed = chosen_seed(7)
    check_kills(bootstrap, tmp_path, KILLS, random.Random(seed), f"seed {seed}")


@pytest.mark.nightly
def test_each_record_is_written_once_after_many_kills_on_one_machine(
    bootstrap: str, tmp_path: Path
) -> None:
    seed = chosen_seed(7)
    dice = random.Random(seed)
    steps, whole = (WRITING, WRITTEN, COMMITTED), (ALL, PYTHON, JVM)
    likely = [(step, victim) for step in steps for victim in (TASK, DRIVER, *whole)]
    likely += [(ANYWHERE, victim) for victim in whole] * 3
    kills = [dice.choice(likely) for _ in range(RANDOM_KILLS)]
    check_kills(bootstrap, tmp_path, kills, dice, f"seed {seed}")


def check_kills(
    bootstrap: str, folder: Path, kills: Sequence[Kill], dice: random.Random, context: str
) -> None:
    """Kill what ``kills`` names while records are written, then check all that was written."""
    create_topics(bootstrap)
    numbers = NumberProducer(bootstrap)
    job = Job.in_folder(folder, "local[2]", bootstrap, SOURCE, COPY, COUNTS)
    work = LocalDriver(job, folder, dice)
    numbers.start()
    try:
        work.start()
        work.wait_for_batches(1)
        for step, victim in kills:
            work.kill_at(step, victim)
        numbers.stop()
        work.finish()
    finally:
        work.end()
    context = f"{context}; {numbers.count} records; {work.context()}"
    check_copy(bootstrap, numbers.count, context)
    check_counts(bootstrap, numbers.count, context)
