"""Celery and Dramatiq on the broker, unchanged: results, retries, and workers that are killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from celery import Celery as CeleryApp
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from tests.interop import amqp_tasks
from tests.support.broker_process import BrokerProcess
from tests.support.processes import ServerProcess, poll_until, skip_if_missing
from tests.support.redis import redis_server

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker of this module."""
    with BrokerProcess(tmp_path_factory.mktemp("workers")) as broker:
        yield broker
        assert "Traceback" not in broker.log(10_000_000), broker.log(10_000_000)


class Celery:
    """The Celery app in this process, and its workers in others."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}//"
        self.output = folder / "tasks.txt"
        self.folder = folder
        self.workers: list[ServerProcess] = []
        self.queue = f"celery-{next(_numbers)}"  # a killed worker's tasks come back
        amqp_tasks.app.conf.update(broker_url=self.url, task_default_queue=self.queue)
        amqp_tasks.app.amqp.queues.clear()
        amqp_tasks.app.amqp.queues.add(self.queue, max_priority=9)

    def start_worker(self, prefetch: int = 1, results: str = "rpc://") -> ServerProcess:
        """Start a worker with one process, which prefetches so many tasks."""
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
                "TIDEMILL_TEST_RESULTS": results,
                "TIDEMILL_TEST_PREFETCH": str(prefetch),
                "TIDEMILL_TEST_QUEUE": self.queue,
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
def redis(tmp_path: Path) -> Iterator[str]:
    """The URL of a Redis server."""
    with contextlib.ExitStack() as stack:
        with skip_if_missing():
            url = stack.enter_context(redis_server(tmp_path / "redis.log"))
        yield url


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


# With a prefetch of 1, Celery itself pauses for up to 10 s now and then, with RabbitMQ too.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefetch", "seconds"), [pytest.param(1, 30, marks=pytest.mark.nightly), (4, 6)]
)
def test_celery_tasks_with_a_countdown_do_not_hold_up_others(
    celery: Celery, prefetch: int, seconds: int
) -> None:
    """Celery raises the prefetch count for each task that waits for its time."""
    celery.start_worker(prefetch)
    assert amqp_tasks.noted.delay("ready").get(timeout=120) == "ready"
    eta = datetime.now(UTC) + timedelta(seconds=seconds)
    later = [amqp_tasks.noted.apply_async([f"later {n}"], countdown=seconds) for n in range(4)]
    later += [amqp_tasks.noted.apply_async([f"eta {n}"], eta=eta) for n in range(4)]
    for n in range(3):
        assert amqp_tasks.noted.delay(f"now {n}").get(timeout=120) == f"now {n}"
    assert celery.lines() == ["ready", "now 0", "now 1", "now 2"]
    assert [each.get(timeout=120)[:3] for each in later] == ["lat"] * 4 + ["eta"] * 4
    assert len(celery.lines()) == 12


@pytest.mark.nightly
def test_celery_revokes_a_task_that_waits(celery: Celery) -> None:
    celery.start_worker()
    revoked = amqp_tasks.noted.apply_async(["revoked"], countdown=3)
    kept = amqp_tasks.noted.apply_async(["kept"], countdown=4)
    revoked.revoke()
    assert kept.get(timeout=120) == "kept"
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=120)
    assert celery.lines() == ["kept"]


@pytest.mark.nightly
def test_celery_chains_groups_and_priorities(celery: Celery) -> None:
    queued = [amqp_tasks.noted.apply_async([str(n)], priority=n) for n in (1, 9, 5, 0, 3)]
    celery.start_worker()
    assert [each.get(timeout=120) for each in queued] == ["1", "9", "5", "0", "3"]
    assert celery.lines() == ["9", "5", "3", "1", "0"]
    tasks = group(amqp_tasks.add.s(n, n) for n in range(5))
    assert tasks.apply_async().get(timeout=120) == [0, 2, 4, 6, 8]
    chained = chain(amqp_tasks.add.s(1, 2), amqp_tasks.add.s(3), amqp_tasks.add.s(4))
    assert chained.apply_async().get(timeout=120) == 10


@pytest.mark.slow
def test_celery_chords_count_their_tasks_in_redis(celery: Celery, redis: str) -> None:
    results = redis.replace("unix://", "redis+socket://").replace("db=", "virtual_host=")
    app = CeleryApp("chords", broker=celery.url, backend=results)
    app.conf.update(task_default_queue=celery.queue, task_queue_max_priority=9)
    # With a prefetch of 1, Celery itself pauses for 10 s now and then, with RabbitMQ too.
    celery.start_worker(prefetch=50, results=results)
    tasks = "tests.interop.amqp_tasks"
    header = [app.signature(f"{tasks}.add", (n, n)) for n in range(20)]
    for callback in (f"{tasks}.total", f"{tasks}.noted"):
        found = chord(header, app=app)(app.signature(callback))
        expected = 380 if callback.endswith("total") else [2 * n for n in range(20)]
        assert found.get(timeout=120) == expected
    assert celery.lines() == ["total", str([2 * n for n in range(20)])]


def test_celery_says_that_results_over_the_broker_have_no_chords(celery: Celery) -> None:
    """RabbitMQ has none either: rpc:// can't count the results that have arrived."""
    header = [amqp_tasks.add.s(n, n) for n in range(3)]
    with pytest.raises(NotImplementedError, match="does not support chords"):
        chord(header)(amqp_tasks.total.s())


@pytest.mark.crash
def test_celery_runs_the_task_of_a_killed_worker_again(celery: Celery) -> None:
    first = celery.start_worker()
    amqp_tasks.slow.delay("s", 1.0)
    poll_until(lambda: celery.lines() == ["s begins"], 90, "the task begins", 0.05)
    first.kill()
    celery.start_worker()
    poll_until(lambda: celery.lines()[-1] == "s ends", 90, "the task runs again", 0.05)
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
        poll_until(lambda: attempts.count("flaky") == 3, 90, "the actor is retried", 0.05)
        assert attempts.count("fine") == 1
    finally:
        worker.stop()
        queue.close()


@pytest.mark.nightly
def test_celery_works_with_the_oldest_kombu_that_is_supported(tmp_path: Path) -> None:
    oldest = ["celery==5.3.0", "kombu==5.3.0", "amqp==5.1.1"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path)]
    subprocess.run([*install, *oldest], check=True, timeout=600)
    tests = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "celery and not oldest"]
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        tests, env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
