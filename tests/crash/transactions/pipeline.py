"""Starts and kills workers, feeds them with input, and reads the steps that they record.

Worker processes come from a fork server that has imported the clients: a new one works after
milliseconds. Knows processes and files only; ``checker`` knows the invariants.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tests.crash.transactions.clients import Job
from tests.crash.transactions.worker import FENCED, run
from tests.support.processes import poll_until

PACE_S = 0.005
"""Pause between two input records: workers are always busy, and can keep up."""

_STEPS = ("begin", "sent", "offsets", "commit", "aborted")


def fork_server() -> ForkServerContext:
    """Return the fork server that starts worker processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["confluent_kafka", "kafka", "aiokafka", "tests.crash.transactions.worker"]
    )
    return context


class Worker:
    """One member of the group, and its present process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.kills = 0
        self.fenced = 0
        self._context = fork_server()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._read = 0
        self._lines: list[str] = []
        Path(job.events).touch()

    @property
    def alive(self) -> bool:
        """Whether its process runs or is stopped."""
        return self._process is not None and self._process.is_alive()

    @property
    def lines(self) -> list[str]:
        """The steps that its processes recorded, oldest first."""
        with open(self.job.events, "rb") as file:
            file.seek(self._read)
            new, _, _ = file.read().rpartition(b"\n")
        if new:
            self._read += len(new) + 1
            self._lines += new.decode().split("\n")
        return self._lines

    def count(self, *steps: str) -> int:
        """Return how often it recorded one of these steps."""
        return sum(line.split(" ", 1)[0] in steps for line in self.lines)

    def start(self) -> None:
        """Start its process, which must not run."""
        assert not self.alive
        self._process = self._context.Process(target=run, args=(self.job,), daemon=True)
        self._process.start()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.join(30)
            assert not self._process.is_alive(), "a worker outlives SIGKILL"
            self._process = None

    def revive(self) -> None:
        """Restart it if its client gave up.

        Raises:
            AssertionError: the process ended with another exit code.
        """
        if self._process is not None and not self._process.is_alive():
            code = self._process.exitcode
            assert code == FENCED, f"a worker ended with {code}: {self.tail()}"
            self.fenced += 1
            self._process = None
            self.start()

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def tell_where(self) -> None:
        """Let it write the stacks of its threads to its output, if it runs."""
        if self._process is not None and self._process.is_alive():
            os.kill(int(self._process.pid or 0), signal.SIGUSR1)
            time.sleep(1)

    def ended(self) -> bool:
        """Return whether its client gave up."""
        return self._process is not None and self._process.exitcode == FENCED

    def tail(self) -> str:
        """Return its last steps and output, for the failure report."""
        with suppress(FileNotFoundError):
            lines = Path(self.job.output).read_text(errors="replace").splitlines()
            told = [line[:500] for line in lines if "Connection refused" not in line][-80:]
            return "\n".join([f"{self.job.transactional_id}: {self.lines[-12:]}", *told])
        return f"{self.job.transactional_id}: {self.lines[-12:]}"


class Feeder:
    """Writes numbered records to the input while the broker is restarted."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """Value by partition and offset."""

    def start(self) -> None:
        """Write records until ``stop`` is called."""
        self._thread.start()

    def send(self, count: int) -> None:
        """Write this many records and wait until they are acknowledged."""
        start = len(self.acknowledged)
        for number in range(start, start + count):
            self._send(number)
        assert self._producer.flush(60) == 0
        assert len(self.acknowledged) == start + count

    def stop(self) -> None:
        """Stop, and wait until all records are acknowledged."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
        assert self._producer.flush(60) == 0, "input without an outcome"

    def _feed(self) -> None:
        number = 0
        while not self._stop.wait(PACE_S):
            self._send(number)
            number += 1
            self._producer.poll(0)

    def _send(self, number: int) -> None:
        partition = number % self._partitions
        self._producer.produce(
            self._topic,
            b"%d" % number,
            key=b"%d" % (number % 10),
            partition=partition,
            on_delivery=self._delivered,
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value = message.value()
        assert isinstance(value, bytes)
        self.acknowledged[message.partition() or 0, message.offset() or 0] = value


class Pipeline:
    """Some workers of one group.

    Args:
        folder: for the steps and the output of the workers.
        job: of each of them; transactional id and instance id get a number appended.
    """

    def __init__(self, folder: Path, job: Job, workers: int) -> None:
        self.workers = [
            Worker(
                replace(
                    job,
                    transactional_id=f"{job.transactional_id}-{number}",
                    instance=None if job.instance is None else f"{job.instance}-{number}",
                    events=str(folder / f"{job.transactional_id}-{number}.events"),
                    output=str(folder / f"{job.transactional_id}-{number}.log"),
                )
            )
            for number in range(workers)
        ]

    def __enter__(self) -> Pipeline:
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()

    def steps(self) -> int:
        """Return the number of steps of all workers."""
        return sum(worker.count(*_STEPS) for worker in self.workers)

    def count(self, *steps: str) -> int:
        """Return how often any worker recorded one of these steps."""
        return sum(worker.count(*steps) for worker in self.workers)

    def await_steps(self, number: int, timeout: float = 600) -> None:
        """Wait for this many more steps, and restart workers that gave up.

        Raises:
            TimeoutError: the steps did not come in time.
        """
        wanted = self.steps() + number

        def reached() -> bool:
            for worker in self.workers:
                worker.revive()
            return self.steps() >= wanted

        poll_until(reached, timeout, f"{number} more steps", interval=0.003)

    def await_each(self, timeout: float) -> Iterator[float]:
        """Yield until the deadline, and restart workers that gave up.

        Raises:
            TimeoutError: the deadline is reached.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for worker in self.workers:
                worker.revive()
            yield deadline - time.monotonic()
            time.sleep(0.05)
        raise TimeoutError(f"not within {timeout} s")

    def report(self) -> str:
        """Return the last steps of all workers, and where those that run are."""
        for worker in self.workers:
            worker.tell_where()
        return "\n".join(worker.tail() for worker in self.workers)
