"""Bridges that a manager in this process runs, over a broker that all tests share."""

from __future__ import annotations

import asyncio
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
from tidemill.connect.direct.manager import Manager
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
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

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

        async def run() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            self._ready.set()
            await Manager(self.kafka, [self.name]).run(self._stop)

        self._ready.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(run()))
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
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
