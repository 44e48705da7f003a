"""Each record is written once although drivers, executors, workers and Python processes are killed.

The queries run on a standalone cluster. Executors of a driver that was killed may run for a moment
beside those of the next driver.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.spark_driver import KEYS, Job
from tests.support import environment
from tests.support.apache_kafka import ApacheKafka, KafkaNotFoundError
from tests.support.broker_process import BrokerProcess
from tests.support.committed import read_to_end, values
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import ServerProcess, poll_until
from tests.support.spark_cluster import SparkCluster
from tidemill.spark.datasource import worker_daemon

pytestmark = [pytest.mark.crash, pytest.mark.separate, pytest.mark.spark, pytest.mark.timeout(1700)]

DRIVER_KILLS = ("driver: all", "driver: python", "driver: jvm")
"""Which processes of the driver are killed first: both, or one, so that the other one notices."""
KILLS = (*DRIVER_KILLS, *["executor"] * 2, *["busy executor"] * 3, "worker", "python")
"""A driver costs the start of three JVMs, a worker that of two, an executor that of one, a Python
process none."""
RANDOM_KILLS = rounds("CRASH_SPARK_KILLS", 20, nightly=20)
"""Of drivers, workers and executors, in the long run. Every fifth kill more is one of a Python
process."""
MOST_FURTHER_KILLS = 12
"""Of executors that run a task, if no kill has hit one: tasks are short, and a kill often comes
between them."""
PARTITIONS = 2
WORKERS = 2
"""Each has one core, so it runs an executor with one task."""
_WAIT_S = 600.0


@pytest.fixture(params=["tidemill", pytest.param("kafka", marks=pytest.mark.apache_kafka)])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a broker: tidemill, or Apache Kafka with APACHE_KAFKA_TESTS=1."""
    if request.param == "tidemill":
        with BrokerProcess(tmp_path / "broker") as broker:
            yield broker.bootstrap
        return
    if not os.environ.get("APACHE_KAFKA_TESTS"):
        pytest.skip("only with APACHE_KAFKA_TESTS=1 in the environment")
    try:
        kafka = ApacheKafka(tmp_path / "kafka")
    except KafkaNotFoundError as error:
        pytest.skip(str(error))
    with kafka:
        yield kafka.bootstrap


class NumberProducer(threading.Thread):
    """Writes 0, 1, 2, ... to the source's partitions in turn, until ``stop`` is called."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._topic = topic
        self._stopped = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )

    def run(self) -> None:
        while not self._stopped.wait(0.02):
            for _ in range(10):
                self._producer.produce(
                    self._topic, b"%d" % self.count, partition=self.count % PARTITIONS
                )
                self.count += 1
            self._producer.poll(0)

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert self._producer.flush(60) == 0


class DriverProcess:
    """The driver's process with its JVM, and the cluster on which it runs."""

    def __init__(self, job: Job, cluster: SparkCluster, folder: Path, dice: random.Random) -> None:
        self._job, self._cluster, self._folder, self._dice = job, cluster, folder, dice
        self._driver: ServerProcess | None = None
        self._left: list[psutil.Process] = []
        self.notes: list[str] = []

    @property
    def driver(self) -> ServerProcess:
        assert self._driver is not None, "not started"
        return self._driver

    def start(self) -> None:
        path = self._folder / "job.json"
        self._job.save(path)
        command = [sys.executable, "-m", "tests.crash.spark_driver", str(path)]
        env = environment.without_settings()
        self._driver = ServerProcess("driver", command, self._folder / "driver.log", env=env)

    def events(self) -> list[str]:
        path = Path(self._job.events)
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_batches(self, wanted: int) -> None:
        """Wait until each query has finished this many more batches."""
        begun = len(self.events())

        def finished() -> bool:
            new = self.events()[begun:]
            return all(
                sum(line.startswith(f"batch {name} ") for line in new) >= wanted
                for name in ("copy", "counts")
            )

        self.driver.wait_until(finished, _WAIT_S)

    def kill_driver(self, which: str) -> None:
        """Kill the driver: ``all`` of it, or ``python`` or ``jvm`` first and the rest later."""
        driver = psutil.Process(self.driver.pid)
        family = [driver, *driver.children(recursive=True)]
        jvms = [each for each in driver.children() if _is_jvm(each)]
        first = {"all": family, "python": [driver], "jvm": jvms}[which]
        for process in first:
            _kill(process)
        self.notes.append(f"driver: {which}")
        if which != "all":
            psutil.wait_procs(family, timeout=self._dice.random() * 0.5)
            for process in [driver, *jvms]:
                _kill(process)
        self.driver.kill()
        self._left += family

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

    def _kill_one_of(self, kind: str, found: Sequence[psutil.Process]) -> bool:
        if not found:
            return False
        _kill(self._dice.choice(found))
        self.notes.append(kind)
        return True

    def finish(self) -> None:
        """Let the queries read what is left, and wait until the driver ends."""
        Path(self._job.stop).touch()
        assert self.driver.wait(_WAIT_S) == 0, self.context()
        _, alive = psutil.wait_procs(self._left, timeout=60)
        assert not alive, f"left behind: {alive}"

    def end(self) -> None:
        """Kill every process that is left."""
        for process in self._left:
            _kill(process)
        if self._driver is None or self._driver.exit_code is not None:
            return
        family = psutil.Process(self.driver.pid).children(recursive=True)
        self.driver.kill()
        for process in family:
            _kill(process)

    def context(self) -> str:
        lines = self.events()[-15:]
        log = self.driver.output(3000)
        return f"{self.notes}\n" + "\n".join(lines) + f"\n{log}"


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


def _is_jvm(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.name() == "java")
    return False


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def test_each_record_is_written_once_after_a_kill_of_each_kind(
    bootstrap: str, tmp_path: Path
) -> None:
    dice, seed = _random()
    kills = list(KILLS)
    dice.shuffle(kills)
    check_kills(bootstrap, tmp_path, kills, dice, f"seed {seed}")


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
    bootstrap: str, folder: Path, kills: Sequence[str], dice: random.Random, context: str
) -> None:
    """Kill what ``kills`` names while records are written, then check all that was written."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("numbers", "copy", "counts")]
    for future in admin.create_topics(topics).values():
        future.result(60)
    numbers = NumberProducer(bootstrap, "numbers")
    with SparkCluster(folder / "cluster", workers=WORKERS) as cluster:
        job = Job(
            bootstrap,
            *("numbers", "copy", "counts"),
            str(folder),
            str(folder / "events"),
            str(folder / "stop"),
            cluster.url,
        )
        work = DriverProcess(job, cluster, folder, dice)
        numbers.start()
        try:
            work.start()
            work.wait_for_batches(1)
            for kill in kills:
                time.sleep(dice.random() * 0.3)  # anywhere in a batch
                if kill in DRIVER_KILLS:
                    work.kill_driver(kill.removeprefix("driver: "))
                    work.start()
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


def check_copy(bootstrap: str, count: int, context: str) -> None:
    """Check that each record is in the copy once, in the source's order."""
    for partition in range(PARTITIONS):
        found = [int(value or b"-1") for value in values(bootstrap, "copy", partition)]
        expected = list(range(partition, count, PARTITIONS))
        lost = sorted(set(expected) - set(found))
        assert not lost, f"lost {lost[:10]} and more, {len(lost)} in all; {context}"
        assert len(found) == len(set(found)), f"written twice; {context}"
        assert found == expected, f"out of order; {context}"


def check_counts(bootstrap: str, count: int, context: str) -> None:
    """Check that each count of a key is written once, and that the last one is correct."""
    counts: dict[int, list[int]] = {}
    for partition in range(PARTITIONS):
        for message in read_to_end(bootstrap, "counts", partition):
            key, value = int(message.key() or b"-1"), int(message.value() or b"-1")
            counts.setdefault(key, []).append(value)
    expected = {key: len(range(key, count, KEYS)) for key in range(KEYS)}
    assert {key: found[-1] for key, found in counts.items()} == expected, context
    for key, found in counts.items():
        assert found == sorted(set(found)), f"key {key} has {found}; {context}"
