"""The replayer: sends reports to their topics, in order, at a chosen multiple of life's speed.

Knows a Kafka client and the reports, nothing of what is behind the address. Runs in a thread of the
caller's; its progress may be read from any other.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemill.demo.events import Report
from tidemill.errors import DeliveryError, SettingsError

_LONGEST_NAP_S = 0.1
_FLUSH_STEP_S = 0.2


def parse_speed(text: str) -> float | None:
    """``3600x`` (or ``3600``) as a factor; ``max`` as ``None``, which means without waiting.

    Raises:
        SettingsError: it is neither.
    """
    if text.strip().lower() == "max":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text.strip().lower())
    speed = float(match[1]) if match else 0.0
    if speed <= 0:
        raise SettingsError(
            f"{text!r} is not a speed",
            hint="Give a factor such as 3600x (an hour in a second), or max.",
        )
    return speed


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a replay is.

    Attributes:
        total: reports to send.
        sent: handed to the client.
        acknowledged: on the broker's disk, by its own word.
        simulated_time: time in the stretch that the replay has reached (Unix time in seconds).
        seconds: how long the replay has run, or ran.
        finished: all is acknowledged.
    """

    total: int
    sent: int
    acknowledged: int
    simulated_time: int
    seconds: float
    finished: bool


class Replay:
    """One replay.

    Args:
        reports: in the order of ``reported_at``.
        bootstrap_servers: where to send them.
        speed: how many seconds of the stretch pass in one second; ``None``: as fast as it goes.
        monotonic: a clock in seconds that never runs backwards; given by tests.
    """

    def __init__(
        self,
        reports: Sequence[Report],
        *,
        bootstrap_servers: str,
        speed: float | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not reports:
            raise ValueError("there is nothing to replay")
        self._reports = reports
        self._bootstrap_servers = bootstrap_servers
        self._speed = speed
        self._monotonic = monotonic
        self._started: float | None = None
        self._ended: float | None = None
        self._sent = 0
        self._acknowledged = 0
        self._error: KafkaError | None = None

    def progress(self) -> ReplayProgress:
        """A snapshot; callable from any thread."""
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
        """Send everything and return when all of it is acknowledged, or when ``stop`` is set.

        Raises:
            DeliveryError: the broker did not take a report.
        """
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
            if len(producer):  # stopped or failed: what is left must not hold the process up
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
                    producer.poll(_LONGEST_NAP_S)
            if stop.is_set():
                return
            self._sent += 1
            producer.poll(0)
            self._raise_error()

    def _wait_for(self, report: Report, producer: Producer, stop: threading.Event) -> None:
        """Until the report's time has come."""
        if self._speed is None:
            return
        assert self._started is not None
        due = self._started + (report.reported_at - self._reports[0].reported_at) / self._speed
        while (left := due - self._monotonic()) > 0 and not stop.is_set():
            stop.wait(min(left, _LONGEST_NAP_S))
            producer.poll(0)
            self._raise_error()

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._acknowledged += 1
        elif self._error is None:
            self._error = error

    def _on_error(self, error: KafkaError) -> None:
        # Lost connections are retried until delivery.timeout.ms; only what is final counts here.
        if error.fatal() and self._error is None:
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise DeliveryError(
                f"the broker at {self._bootstrap_servers} did not take a report:"
                f" {self._error.str()}"
            ) from KafkaException(self._error)
