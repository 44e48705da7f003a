"""The thread that reads the records of a webhook, without a broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.connect.webhooks import intake
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.intake import Intake, Position
from tidemill.connect.webhooks.lanes import Event
from tidemill.errors import TidemillError


class _Consumer:
    """A consumer whose broker went away: a commit waits until it is back."""

    def __init__(self) -> None:
        self.commits = threading.Event()
        self.is_back = threading.Event()
        self.is_closed = threading.Event()

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        pass

    def poll(self, timeout: float) -> None:
        time.sleep(0.001)

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def get_watermark_offsets(self, place: Any, **settings: Any) -> tuple[int, int]:
        return 0, 1

    def commit(self, **settings: Any) -> None:
        self.commits.set()
        assert self.is_back.wait(30)

    def close(self) -> None:
        self.is_closed.set()


class _Kafka(Kafka):
    def __init__(self, made: _Consumer) -> None:
        super().__init__("127.0.0.1:1")
        self._made = made

    def consumer(self, *_: Any, **__: Any) -> Any:
        return self._made


class _Taker:
    def is_full(self) -> bool:
        return False

    def positions(self) -> Mapping[int, Position]:
        return {0: Position(1)}

    def assigned(self, positions: Mapping[int, Position], restored: Any) -> None:
        pass

    def take(self, events: list[Event]) -> None:
        pass

    def intake_failed(self, error: TidemillError) -> None:
        raise error


def test_a_stop_does_not_wait_for_a_broker_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "STOP_S", 0.05)
    consumer = _Consumer()
    webhook = Webhook(name="shop", topic="events", url="http://127.0.0.1:1/", signed=False)
    made = Intake(webhook, "id", _Kafka(consumer), _Taker(), from_beginning=False)
    made.start()
    assert consumer.commits.wait(30)
    made.stop()
    assert not consumer.is_closed.is_set()
    consumer.is_back.set()
    assert consumer.is_closed.wait(30)
