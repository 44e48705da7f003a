"""Webhooks that a manager in this process delivers, over a broker that all tests share."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.connect.base import manager as managing
from tidemill.connect.base.board import Board, BoardWriter, create_topic
from tidemill.connect.webhooks.definition import Webhook, parse
from tidemill.connect.webhooks.manager import manager
from tidemill.connect.webhooks.topics import WEBHOOKS, attempts_topic

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_NUMBERS = itertools.count(1)


class RunningWorker:
    """A manager in a thread of this process."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self._stop = threading.Event()
        made = manager(kafka, [name])
        self._thread = threading.Thread(target=made.run, args=(self._stop,))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Shop:
    """A topic, and a webhook that delivers it."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.name = f"hook{next(_NUMBERS)}"
        self.topic = f"events-{self.name}"
        self._running: RunningWorker | None = None
        kafka.create_topics("tests", {self.topic: (2, {})})
        create_topic(kafka, WEBHOOKS)
        self.board = BoardWriter(kafka, WEBHOOKS)
        self._producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 1})

    def define(self, url: str, **more: Any) -> Webhook:
        """Store the definition. Retries are quick."""
        given: dict[str, Any] = {
            "name": self.name,
            "topic": self.topic,
            "url": url,
            "secrets": ["${env:WEBHOOK_SECRET}"],
            "start_at": "beginning",
            "allow_private": True,
            "managed": False,
            "retries_s": [0.05] * 50,
            **more,
        }
        webhook = parse(given)
        self.board.define(webhook)
        self.board.flush()
        return webhook

    def send(self, value: object, key: str | None = None, **more: Any) -> None:
        """Write a record, and wait until it is on disk."""
        self.send_all([(key, value)], **more)

    def send_all(self, records: list[tuple[str | None, object]], **more: Any) -> None:
        for key, value in records:
            raw = value if isinstance(value, bytes) or value is None else json.dumps(value)
            self._producer.produce(self.topic, raw, key, **more)
        assert self._producer.flush(60) == 0

    def order(self, command: str, **payload: Any) -> str:
        number = self.board.command(self.name, command, **payload)
        self.board.flush()
        return number

    def worker(self) -> RunningWorker:
        """Return a worker that is not started."""
        return RunningWorker(self.kafka, self.name)

    def start(self) -> None:
        self._running = self.worker()
        self._running.start()

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def attempts(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the recorded attempts and events with these values."""
        found = [
            json.loads(value or b"")
            for _, value in read_to_end(self.kafka, "tests", attempts_topic(self.name))
        ]
        return [
            each for each in found if all(each.get(key) == value for key, value in wanted.items())
        ]

    def status(self) -> dict[str, Any]:
        return Board.read(self.kafka, WEBHOOKS).statuses.get(self.name, {})

    def commands(self) -> Collection[str]:
        """Return the names of commands that are not carried out yet."""
        return Board.read(self.kafka, WEBHOOKS).commands.get(self.name, {}).keys()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        try:
            poll_until(lambda: bool(condition()), 60, what, 0.02)
        except TimeoutError as error:
            failed = [each for each in self.attempts() if each.get("error")]
            raise AssertionError(f"{error}: {self.status()}, failed: {failed[-5:]}") from None


@pytest.fixture
def shop(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.setattr(managing, "STATUS_S", 0.05)
    monkeypatch.setattr(managing, "LOOK_S", 0.02)
    made = Shop(kafka)
    yield made
    made.stop()
