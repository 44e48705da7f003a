"""Celery and Dramatiq programs that ``test_amqp_workers`` starts as workers.

``TIDEMILL_TEST_AMQP`` is the broker's URL, ``TIDEMILL_TEST_RESULTS`` that of Celery's results,
``TIDEMILL_TEST_FILE`` the file to which tasks write.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

URL = os.environ.get("TIDEMILL_TEST_AMQP", "amqp://guest:guest@127.0.0.1:5672//")
OUTPUT = Path(os.environ.get("TIDEMILL_TEST_FILE", "tasks.txt"))

RESULTS = os.environ.get("TIDEMILL_TEST_RESULTS", "rpc://")

app = Celery("amqp_tasks", broker=URL, backend=RESULTS)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=int(os.environ.get("TIDEMILL_TEST_PREFETCH", "1")),
    task_queue_max_priority=9,
    task_default_queue=os.environ.get("TIDEMILL_TEST_QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
)


def note(text: str) -> None:
    """Append a line, in one write."""
    with OUTPUT.open("a") as file:
        file.write(text + "\n")


@app.task  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Return a sum."""
    return a + b


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def flaky(self: object, name: str) -> str:
    """Fail twice, then succeed."""
    retries = self.request.retries  # type: ignore[attr-defined]
    note(f"{name} {retries}")
    if retries < 2:
        raise self.retry(countdown=0.1)  # type: ignore[attr-defined]
    return name


@app.task  # type: ignore[untyped-decorator]
def total(numbers: list[int]) -> int:
    """Return the sum of the results of a chord."""
    note("total")
    return sum(numbers)


@app.task  # type: ignore[untyped-decorator]
def noted(name: object) -> object:
    """Note that it ran."""
    note(str(name))
    return name


@app.task  # type: ignore[untyped-decorator]
def slow(name: str, seconds: float) -> None:
    """Note when it begins and ends."""
    note(f"{name} begins")
    time.sleep(seconds)
    note(f"{name} ends")
