"""Each record is written once although drivers, executors, workers and Python processes are killed.

The queries run on a standalone cluster. Executors of a driver that was killed may run for a moment
beside those of the next driver.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.crash.driver_process import DriverProcess
from tests.crash.numbers import (
    COPY,
    COUNTS,
    SOURCE,
    NumberProducer,
    check_copy,
    check_counts,
    create_topics,
)
from tests.crash.spark_driver import Job
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import poll_until
from tests.support.spark_cluster import SparkCluster
from tidemill.spark.datasource import worker_daemon

pytestmark = [pytest.mark.crash, pytest.mark.separate, pytest.mark.spark, pytest.mark.timeout(1700)]

DRIVER_KILLS = ("driver: all", "driver: python", "driver: jvm")
"""Which processes of the driver are killed first: both, or one, so that the other one notices."""
OTHER_KILLS = ("busy executor", "worker", "python")
"""A worker costs the start of two JVMs, an executor that of one, a Python process none. A driver
costs that of its own JVM and of its executors, so the next one has a single executor. Kills before
that one have two executors, of which one goes on while the other is replaced."""
RANDOM_KILLS = rounds("CRASH_SPARK_KILLS", 20, nightly=20)
"""Of drivers, workers and executors, in the long run. Every fifth kill more is one of a Python
process."""
MOST_FURTHER_KILLS = 12
"""Of executors that run a task, if no kill has hit one: tasks are short, and a kill often comes
between them."""
WORKERS = 2
"""Each has one core, so it runs an executor with one task."""


class ClusterDriver(DriverProcess):
    """A driver, and the cluster on which it runs."""

    def __init__(self, job: Job, cluster: SparkCluster, folder: Path, dice: random.Random) -> None:
        super().__init__(job, folder, dice)
        self._cluster = cluster

    def start_again(self, executors: int) -> None:
        """Start the next driver, which has so many executors."""
        self._job = replace(self._job, executors=executors)
        self.start()

    def kill_executor(self) -> bool:
        """Kill an executor. Return whether there is one."""
        return self._kill_one_of(
            "executor", [each for each in self._cluster.processes() if _is_executor(each)]
        )

    def kill_busy_executor(self) -> bool:
        """Kill an executor that runs a task. Return whether there is one."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parents = [each for task in self._tasks() for each in task.parents()]
            return self._kill_one_of(
                "busy executor", [each for each in parents if _is_executor(each)]
            )
        return False

    def kill_worker(self) -> bool:
        """Kill a worker of the cluster that has an executor. Return whether there is one."""
        for worker in self._dice.sample(self._cluster.workers, len(self._cluster.workers)):
            children = psutil.Process(worker.pid).children(recursive=True)
            if any(_is_executor(each) for each in children):
                self._cluster.kill_worker(worker)
                self._left += children
                self.notes.append("worker")
                return True
        return False

    def kill_python(self) -> bool:
        """Kill a Python process that runs a task. Return whether there is one.

        The death of an idle one would have no effect: Spark replaces it.
        """
        return self._kill_one_of("python", self._tasks())

    def _tasks(self) -> list[psutil.Process]:
        """Return the Python processes that run a task now."""
        before = _cpu_times(self._cluster)
        time.sleep(0.01)
        after = _cpu_times(self._cluster)
        return [each for each, used in after.items() if used > before.get(each, used)]


def _cpu_times(cluster: SparkCluster) -> dict[psutil.Process, float]:
    """Return the CPU seconds of each Python process that runs tasks, a child of its daemon."""
    found = {}
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            if parent is not None and _runs_tasks(process) and _runs_tasks(parent):
                times = process.cpu_times()
                found[process] = times.user + times.system
    return found


def _runs_tasks(process: psutil.Process) -> bool:
    return bool(process.name() == worker_daemon.TASKS_NAME)


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    return False


@pytest.mark.nightly  # a cluster takes long; tests/crash/test_in_plan_sink.py is in each run
def test_each_record_is_written_once_after_a_kill_of_each_kind(
    bootstrap: str, tmp_path: Path
) -> None:
    dice, seed = _random()
    kills = dice.sample(OTHER_KILLS, len(OTHER_KILLS))
    # The test of the sink in the plan kills the process of Python first, and the long run any.
    kills += ["driver: jvm"]
    check_kills(bootstrap, tmp_path, kills, dice, f"seed {seed}", next_executors=1)


@pytest.mark.nightly
def test_each_record_is_written_once_after_many_random_kills(
    bootstrap: str, tmp_path: Path
) -> None:
    dice, seed = _random()
    likely = [*DRIVER_KILLS, *["executor"] * 6, *["worker"] * 3]
    kills = [dice.choice(likely) for _ in range(RANDOM_KILLS)]
    kills += ["python"] * (RANDOM_KILLS // 4)
    dice.shuffle(kills)
    check_kills(bootstrap, tmp_path, kills, dice, f"seed {seed}")


def _random() -> tuple[random.Random, int]:
    seed = chosen_seed(5)
    return random.Random(seed), seed


def _has_hit_a_task(folder: Path) -> bool:
    """Return whether Spark has lost a task by a kill."""
    return "Lost task" in (folder / "jvm.log").read_text(errors="replace")


def check_kills(
    bootstrap: str,
    folder: Path,
    kills: Sequence[str],
    dice: random.Random,
    context: str,
    next_executors: int = WORKERS,
) -> None:
    """Kill what ``kills`` names while records are written, then check all that was written.

    Args:
        next_executors: How many executors the drivers after the first one have.
    """
    create_topics(bootstrap)
    numbers = NumberProducer(bootstrap)
    with SparkCluster(folder / "cluster", workers=WORKERS) as cluster:
        job = Job.in_folder(folder, cluster.url, bootstrap, SOURCE, COPY, COUNTS)
        work = ClusterDriver(job, cluster, folder, dice)
        numbers.start()
        try:
            work.start()
            work.wait_for_batches(1)
            for kill in kills:
                time.sleep(dice.random() * 0.3)  # anywhere in a batch
                if kill in DRIVER_KILLS:
                    work.kill_driver(kill.removeprefix("driver: "))
                    work.start_again(next_executors)
                else:
                    victims = {
                        "executor": work.kill_executor,
                        "busy executor": work.kill_busy_executor,
                        "worker": work.kill_worker,
                        "python": work.kill_python,
                    }
                    poll_until(victims[kill], 300, f"one to kill: {kill}")
                work.wait_for_batches(1)
            for _ in range(MOST_FURTHER_KILLS):
                if _has_hit_a_task(folder):
                    break
                time.sleep(dice.random() * 0.3)
                poll_until(work.kill_busy_executor, 300, "one to kill: executor that runs a task")
                work.wait_for_batches(1)
            numbers.stop()
            work.finish()
        finally:
            work.end()
    context = f"{context}; {numbers.count} records; {work.context()}"
    assert _has_hit_a_task(folder), f"no kill hit a task; {context}"
    check_copy(bootstrap, numbers.count, context)
    check_counts(bootstrap, numbers.count, context)
