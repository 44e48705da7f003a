"""Bridges that a manager in this process runs, over a broker that all tests share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.connect.base.board import Board, BoardWriter, create_topic
from tidemill.connect.base.definitions import parse
from tidemill.connect.direct.contract import Bridge, Counts, Place
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import BridgeError, DefinitionError
from tidemill.connect.direct.manager import manager
from tidemill.connect.direct.registry import make_bridge
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


class Direct:
    """A bridge in a thread of this process, without a manager. As a keeper, it starts it again."""

    def __init__(self, kafka: Kafka, kind: str, topic: str = "") -> None:
        self.kafka = kafka
        self.kind = kind
        self.topic = topic or f"direct-{next(_NUMBERS)}"
        self.bridge: Bridge | None = None
        self._options: Values = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_running = threading.Event()

    def start(self, **options: Any) -> Mapping[str, Any]:
        """Start it, and return its details."""
        self._options = options
        self._is_running.clear()
        self._thread = threading.Thread(target=asyncio.run, args=(self._keep(),))
        self._thread.start()
        assert self._is_running.wait(60)
        assert self.bridge is not None
        return self.bridge.details()

    async def _keep(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        place = Place(self.topic, self.topic, 1, self.kafka)
        given: Values = {"name": self.topic, "kind": self.kind, "topic": self.topic}
        definition = parse(Definition, given | {"options": self._options}, DefinitionError, "")
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                self.bridge = make_bridge(definition, place)
                try:
                    await self.bridge.run(self._is_running.set)
                except BridgeError:
                    await asyncio.sleep(0.05)

    @property
    def counts(self) -> Counts:
        assert self.bridge is not None
        return self.bridge.counts()

    def stop(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            assert self._loop is not None
            assert self._task is not None
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(60)
            assert not self._thread.is_alive()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        poll_until(lambda: bool(condition()), 60, what, 0.02)


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
