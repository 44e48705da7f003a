"""A topic published with ZeroMQ, over a broker: late subscribers, gaps, kills."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.connect.direct.conftest import Running
from tidemill.direct.pubsub import LogLost, LogRecord, LogRestarted, LogSubscriber


class Log:
    """A topic, and a bridge that publishes it."""

    def __init__(self, running: Running, partitions: int = 1, **configs: str) -> None:
        self.running = running
        running.kafka.create_topics("tests", {running.topic: (partitions, configs)})
        self.producer = Producer({"bootstrap.servers": running.kafka.servers, "linger.ms": 1})
        self.addresses = ("", "")

    def start(self, **options: object) -> None:
        given: dict[str, object] = {
            "publish": "tcp://127.0.0.1:0",
            "requests": "tcp://127.0.0.1:0",
        }
        self.running.define("zeromq", **given | options)
        self.running.start()
        details = self.running.wait_for_phase("running")["details"]
        self.addresses = (details["publish"], details["requests"])

    def send(self, *values: bytes | None, key: bytes | None = b"k", **more: Any) -> None:
        for value in values:
            self.producer.produce(self.running.topic, value, key, **more)
        assert self.producer.flush(60) == 0

    def subscriber(self, **options: Any) -> LogSubscriber:
        return LogSubscriber(*self.addresses, **options)


@pytest.fixture
def log(running: Running) -> Log:
    return Log(running)


def records(
    subscriber: LogSubscriber, is_done: Callable[[list[LogRecord]], bool], timeout_s: float = 60
) -> list[LogRecord]:
    """Poll until it is done; return the records. Nothing may be lost."""
    found: list[LogRecord] = []
    deadline = time.monotonic() + timeout_s
    while not is_done(found):
        for event in subscriber.poll(0.1):
            assert isinstance(event, LogRecord), event
            found.append(event)
        assert time.monotonic() < deadline, (len(found), subscriber.positions)
    return found


def test_a_late_subscriber_gets_what_was_before_and_then_what_comes(log: Log) -> None:
    log.send(b"v", headers=[("h", b"x"), ("h", None)], timestamp=1_700_000_000_123)
    log.send(*(b"%d" % number for number in range(20_000)), None, b"", key=None)
    log.start()
    with log.subscriber() as subscriber:
        found = records(subscriber, lambda found: len(found) == 20_003)
        log.send(b"now")
        found += records(subscriber, lambda found: len(found) == 1)
        assert subscriber.is_live
    assert found[0] == (0, 0, 1_700_000_000_123, b"k", b"v", [("h", b"x"), ("h", None)])
    assert [each.offset for each in found] == list(range(20_004))
    values = [b"v", *(b"%d" % number for number in range(20_000)), None, b"", b"now"]
    assert [each.value for each in found] == values
