"""Send reports to their topics, in order, at a multiple of real time.

The replay runs in a thread of the caller, and any thread can read its progress. This module uses a
Kafka client; it must not know the broker.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemill.demo.events import Report
from tidemill.errors import SettingsError
from tidemill.spark.errors import DeliveryError

_MAX_WAIT_S = 0.1
_FLUSH_STEP_S = 0.2


def parse_speed(text: str) -> float | None:
    """Return the factor of a speed such as ``3600x`` or ``3600``; ``None`` for ``max``.

    Raises:
        SettingsError: the text is not a speed.
    """
    if text.strip().lower() == "max":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text.strip().lower())
    speed = float(match[1]) if match else 0.0
    if speed <= 0:
        raise SettingsError(
            f"invalid speed {text!r}",
            hint="Use a factor such as 3600x (an hour in a second), or max.",
        )
    return speed


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a replay. ``simulated_time`` is that of the stretch, in Unix seconds."""

    total: int
    sent: int
    acknowledged: int
    simulated_time: int
    seconds: float
    finished: bool


class Replay:
    """A replay of reports, which are in the order of ``reported_at``.

    ``speed`` is how many seconds of the stretch pass in one; ``None``: as fast as possible.
    ``before`` is called with the time of each report, in Unix seconds, before it is sent.
    """

    def __init__(
        self,
        reports: Sequence[Report],
        *,
        bootstrap_servers: str,
        speed: float | None,
        before: Callable[[int, threading.Event], None] = lambda moment, stop: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not reports:
            raise ValueError("there is nothing to replay")
        self._reports = reports
        self._bootstrap_servers = bootstrap_servers
        self._speed = speed
        self._before = before
        self._monotonic = monotonic
        self._started: float | None = None
        self._ended: float | None = None
        self._sent = 0
        self._acknowledged = 0
        self._error: KafkaError | None = None

    def progress(self) -> ReplayProgress:
        """Return the progress. Any thread can call this."""
        started, ended = self._started, self._ended
        now = self._monotonic() if ended is None else ended
        sent = self._sent
        return ReplayProgress(
            total=len(self._reports),
            sent=sent,
            acknowledged=self._acknowledged,
            simulated_time=self._reports[max(0, sent - 1)].reported_at,
            seconds=0.0 if started is None else now - started,
            finished=self._acknowledged == len(self._reports),
        )

    def run(self, stop: threading.Event) -> None:
        """Send all reports. Return when they are acknowledged, or when ``stop`` is set."""
        producer = self._producer()
        self._started = self._monotonic()
        try:
            self._send_all(producer, stop)
            while len(producer) and not stop.is_set():
                producer.flush(_FLUSH_STEP_S)
                self._raise_error()
            self._raise_error()
        finally:
            self._ended = self._monotonic()
            if len(producer):  # stopped or failed: the rest must not delay the end of the process
                producer.purge()
                producer.flush(1)

    def _producer(self) -> Producer:
        # Idempotence keeps the order of reports through retries: the watermark's bound needs it.
        return Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "client.id": "tidemill-demo-replay",
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": 30_000,
                "error_cb": self._on_error,
                "log_level": 2,
            }
        )

    def _send_all(self, producer: Producer, stop: threading.Event) -> None:
        for report in self._reports:
            self._wait_for(report, producer, stop)
            self._before(report.reported_at, stop)
            while not stop.is_set():
                try:
                    producer.produce(
                        report.topic,
                        value=report.value,
                        key=report.key,
                        timestamp=report.reported_at * 1000,
                        on_delivery=self._on_delivery,
                    )
                    break
                except BufferError:  # the client's queue is full: the broker sets the pace
                    producer.poll(_MAX_WAIT_S)
            if stop.is_set():
                return
            self._sent += 1
            producer.poll(0)
            self._raise_error()

    def _wait_for(self, report: Report, producer: Producer, stop: threading.Event) -> None:
        """Wait for the time of a report."""
        if self._speed is None:
            return
        assert self._started is not None
        due = self._started + (report.reported_at - self._reports[0].reported_at) / self._speed
        while (left := due - self._monotonic()) > 0 and not stop.is_set():
            stop.wait(min(left, _MAX_WAIT_S))
            producer.poll(0)
            self._raise_error()

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._acknowledged += 1
        elif self._error is None:
            self._error = error

    def _on_error(self, error: KafkaError) -> None:
        # The client retries until delivery.timeout.ms, so only fatal errors count here.
        if error.fatal() and self._error is None:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise DeliveryError(
                f"the broker at {self._bootstrap_servers} did not take a report:"
                f" {self._error.str()}"
            ) from KafkaException(self._error)
