"""Celery and Dramatiq on the broker, unchanged: results, retries, and workers that are killed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from tests.interop import amqp_tasks
from tests.support.broker_process import BrokerProcess
from tests.support.processes import ServerProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker of this module."""
    with BrokerProcess(tmp_path_factory.mktemp("workers")) as broker:
        yield broker
        assert "Traceback" not in broker.log(10_000_000), broker.log(10_000_000)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # another process does it: it can only be polled


class Celery:
    """The Celery app in this process, and its workers in others."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}//"
        self.output = folder / "tasks.txt"
        self.folder = folder
        self.workers: list[ServerProcess] = []
        amqp_tasks.app.conf.broker_url = self.url

    def start_worker(self) -> ServerProcess:
        """Start a worker with one process."""
        name = f"w{len(self.workers)}"
        worker = ServerProcess(
            "celery",
            [
                *(sys.executable, "-m", "celery", "-A", "tests.interop.amqp_tasks", "worker"),
                *("--pool", "solo", "-n", name, "--without-heartbeat", "--without-gossip"),
                *("--loglevel", "INFO"),
            ],
            self.folder / f"{name}.log",
            env={
                **os.environ,
                "TIDEMILL_TEST_AMQP": self.url,
                "TIDEMILL_TEST_FILE": str(self.output),
            },
            cwd=ROOT,
        )
        self.workers.append(worker)
        worker.wait_until(lambda: "ready." in worker.output(100_000), 60)
        return worker

    def lines(self) -> list[str]:
        """Return what tasks have noted."""
        return self.output.read_text().splitlines() if self.output.exists() else []


@pytest.fixture
def celery(broker: BrokerProcess, tmp_path: Path) -> Iterator[Celery]:
    """Celery on the broker; its workers are killed at the end."""
    celery = Celery(broker, tmp_path)
    yield celery
    for worker in celery.workers:
        worker.kill()


@pytest.mark.slow
def test_celery_results_and_retries(celery: Celery) -> None:
    celery.start_worker()
    results = [amqp_tasks.add.delay(number, 1) for number in range(10)]
    assert [result.get(timeout=120) for result in results] == list(range(1, 11))
    assert amqp_tasks.flaky.delay("f").get(timeout=120) == "f"
    assert celery.lines() == ["f 0", "f 1", "f 2"]


@pytest.mark.crash
def test_celery_runs_the_task_of_a_killed_worker_again(celery: Celery) -> None:
    first = celery.start_worker()
    amqp_tasks.slow.delay("s", 1.0)
    wait_until(lambda: celery.lines() == ["s begins"], "the task did not begin")
    first.kill()
    celery.start_worker()
    wait_until(lambda: celery.lines()[-1] == "s ends", "the task did not run again")
    assert celery.lines() == ["s begins", "s begins", "s ends"]


def test_dramatiq_actors_run_and_are_retried(broker: BrokerProcess) -> None:
    queue = RabbitmqBroker(url=f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F")
    attempts: list[Any] = []

    @dramatiq.actor(broker=queue, max_retries=3, min_backoff=50, max_backoff=100)
    def work(name: str) -> None:
        attempts.append(name)
        if name == "flaky" and attempts.count("flaky") < 3:
            raise ValueError("try again")

    worker = dramatiq.Worker(queue, worker_threads=1, worker_timeout=100)
    worker.start()
    try:
        work.send("fine")
        work.send("flaky")
        wait_until(lambda: attempts.count("flaky") == 3, "the actor was not retried")
        assert attempts.count("fine") == 1
    finally:
        worker.stop()
        queue.close()
