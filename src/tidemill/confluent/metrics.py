"""Publishes the metrics of a worker in the topic ``tidemill.metrics``, and reads those of all.

One record for each process, which replaces the one before. Workers publish as soon as the topic
exists, and what reads it creates it: the gateway does so at the first scrape. A worker never fails
or waits because of its metrics: while no broker answers, they are not published.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Self

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_table
from tidemill.errors import TidemillError
from tidemill.metrics.process import add_process
from tidemill.metrics.published import Published, decode, encode, without_replaced
from tidemill.metrics.registry import Registry
from tidemill.workers.spec import WORKER_VARIABLE

TOPIC = "tidemill.metrics"
CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "3600000",
    "segment.ms": "600000",
}
"""Records of processes that ended without a word are deleted after an hour."""
PERIOD_S = 10.0
STOP_S = 1.0
"""How long the end of a process waits until its metrics are taken back."""
_CLIENT = "tidemill-metrics"

log = structlog.get_logger("tidemill.metrics")


class MetricsPublisher:
    """Publishes the metrics of this process from a thread, as a context manager.

    Args:
        worker: the kind of worker, with its name if there are several.
        registry: the metrics. Its collectors are called in the publisher's thread, so they read
            what other threads replace and do not change.
    """

    def __init__(self, kafka: Kafka, worker: str, registry: Registry) -> None:
        self._kafka = kafka
        self._worker = worker
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._registry = registry
        self._stopping = threading.Event()
        self._is_publishing = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        add_process(registry)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        if self._is_publishing:  # else nothing is to be taken back, whatever the thread waits for
            self._thread.join(STOP_S)

    def _run(self) -> None:
        reported = ""
        while not self._stopping.is_set():
            try:
                self._publish_until_stopped()
            except TidemillError as error:
                if str(error) != reported:  # not each ten seconds while a broker is away
                    reported = str(error)
                    log.info(
                        "metrics.not_published",
                        worker=self._worker,
                        error=reported,
                        hint=error.hint or f"Let the worker's user write topic {TOPIC}.",
                    )
                self._stopping.wait(PERIOD_S)
            except Exception as error:  # a bug: the worker works without metrics
                log.error("metrics.publishing_failed", worker=self._worker, exc_info=error)
                return

    def _publish_until_stopped(self) -> None:
        admin = self._kafka.admin(_CLIENT)
        while not self._kafka.partitions(_CLIENT, TOPIC, admin):
            if self._stopping.wait(PERIOD_S):
                return
        producer = self._kafka.producer(
            _CLIENT,
            linger_ms=5,
            compression_type="lz4",
            message_timeout_ms=30_000,
            allow_auto_create_topics=False,
        )
        key, supervised = f"{self._worker}@{self._process}", os.environ.get(WORKER_VARIABLE, "")
        self._is_publishing = True
        while True:
            now_ms = time.time_ns() // 1_000_000
            value = encode(self._registry, self._worker, self._process, now_ms, supervised)
            with contextlib.suppress(BufferError):  # newer ones follow
                producer.produce(TOPIC, value, key)
            producer.poll(0)
            if self._stopping.wait(PERIOD_S):
                break
        with contextlib.suppress(BufferError):
            producer.produce(TOPIC, None, key)
        producer.flush(STOP_S)


def create_topic(kafka: Kafka) -> None:
    """Create the topic if it is missing: workers begin to publish within ``PERIOD_S``.

    Raises:
        UnreachableError: no broker answers.
        TidemillError: the user must not create it.
    """
    kafka.create_topics(_CLIENT, {TOPIC: (1, CONFIG)})


def read_metrics(kafka: Kafka) -> list[Published]:
    """Return the metrics that processes have published, by their keys, without replaced ones.

    Raises:
        UnreachableError: no broker answers.
    """
    table = read_table(kafka, _CLIENT, TOPIC, committed=False)
    found = (decode(value) for _, value in sorted(table.items()))
    return without_replaced([each for each in found if each is not None])
