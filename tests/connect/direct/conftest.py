"""Bridges that a manager in this process runs, over a broker that all tests share."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.connect.base.board import Board, BoardWriter, create_topic
from tidemill.connect.base.definitions import parse
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import DefinitionError
from tidemill.connect.direct.manager import manager
from tidemill.connect.direct.topics import BRIDGES

_NUMBERS = itertools.count(1)
Values = dict[str, Any]


class Running:
    """A bridge, and a manager in a thread that runs it."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.name = f"bridge{next(_NUMBERS)}"
        self.topic = f"metrics-{self.name}"
        create_topic(kafka, BRIDGES)
        self.board = BoardWriter(kafka, BRIDGES)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def define(self, kind: str = "statsd", **options: Any) -> None:
        """Store the definition, and wait for nothing."""
        given: Values = {
            "name": self.name,
            "kind": kind,
            "topic": self.topic,
            "managed": False,
            "options": options,
        }
        self.board.define(parse(Definition, given, DefinitionError, ""))
        self.board.flush()

    def order(self, command: str, **payload: Any) -> None:
        self.board.command(self.name, command, **payload)
        self.board.flush()

    def start(self) -> None:
        """Start a manager in a thread."""

        made = manager(self.kafka, [self.name])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=made.run, args=(self._stop,))
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None

    def status(self) -> Values:
        return Board.read(self.kafka, BRIDGES).statuses.get(self.name, {})

    def wait_for_phase(self, phase: str) -> Values:
        self.wait(lambda: self.status().get("phase") == phase, f"the bridge is {phase}")
        return self.status()

    def documents(self, topic: str | None = None) -> list[Values]:
        """Return the JSON values of a topic, by default the bridge's own."""
        found = read_to_end(self.kafka, "tests", topic or self.topic)
        return [json.loads(value or b"null") for _, value in found]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        try:
            poll_until(lambda: bool(condition()), 60, what, 0.05)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.status()}") from None


@pytest.fixture
def running(kafka: Kafka) -> Iterator[Running]:
    made = Running(kafka)
    yield made
    made.stop()


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        yield made


def place(address: str) -> tuple[str, int]:
    """Return host and port of an address."""
    parts = urlsplit(address)
    return str(parts.hostname), int(parts.port or 0)
