"""The topic ``tidemill.sources``: definitions, commands and statuses, as a table that follows it.

All orders to workers go through it, so that the command line works from anywhere, with every
Kafka-compatible broker. Must not know: a database, or what a worker does with an order.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from typing import Any

from confluent_kafka import KafkaException

from tidemill.confluent.clients import REQUEST_S, Kafka
from tidemill.confluent.reading import Follower, end_offsets, read_table
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.topics import SOURCES, SOURCES_CONFIG
from tidemill.errors import UnreachableError

_CLIENT = "tidemill-sources"
_FLUSH_S = 15.0
_PLACE = (SOURCES, 0)

Values = dict[str, Any]


class Board:
    """The latest definition, commands and status of each source.

    Attributes:
        definitions: encoded definitions, by source.
        commands: by source, the payload of each command.
        statuses: by source, the last published status.
        declared: by source, the settings file that declares it. Other sources are not in it.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, bytes] = {}
        self.commands: dict[str, dict[str, Values]] = {}
        self.statuses: dict[str, Values] = {}
        self.declared: dict[str, str] = {}

    @classmethod
    def read(cls, kafka: Kafka) -> Board:
        """Return the board as it is now.

        Raises:
            UnreachableError: no broker answers.
        """
        board = cls()
        for key, value in read_table(kafka, _CLIENT, SOURCES, committed=False).items():
            board.apply(key, value)
        return board

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take over a record. Records of other programs are left out."""
        source, _, rest = key.decode(errors="replace").partition("/")
        if rest == "definition":
            _set(self.definitions, source, value)
        elif rest == "status":
            _set(self.statuses, source, _payload(value))
        elif rest == "declared":
            _set(self.declared, source, None if value is None else value.decode(errors="replace"))
        elif rest.startswith("command/"):
            commands = self.commands.setdefault(source, {})
            _set(commands, rest.removeprefix("command/"), _payload(value))

    def definition(self, source: str) -> Definition:
        """Return a source's definition.

        Raises:
            KeyError: there is none.
            DefinitionError: it is invalid.
        """
        return Definition.decode(self.definitions[source])


class BoardFollower:
    """Follows the topic. Use one thread, and ``close`` it."""

    def __init__(self, kafka: Kafka) -> None:
        create_topic(kafka)
        self.board = Board()
        self._kafka = kafka
        self._follower = Follower.of(kafka, _CLIENT, [_PLACE], "read_uncommitted")

    def poll(self, timeout_s: float) -> bool:
        """Take over new records, and return whether there were any."""
        found = False
        with contextlib.suppress(KafkaException):  # the broker can be back at the next call
            for message in self._follower.poll(timeout_s):
                self.board.apply(message.key() or b"", message.value())
                found = True
        return found

    def catch_up(self) -> None:
        """Take over all records that the topic has now.

        Raises:
            UnreachableError: no broker answers.
        """
        ends = end_offsets(self._kafka, _CLIENT, SOURCES)
        deadline = time.monotonic() + REQUEST_S
        while self._follower.behind(ends):
            if time.monotonic() > deadline:
                raise UnreachableError(f"topic {SOURCES} can't be read to its end")
            self.poll(0.1)

    def close(self) -> None:
        """Close the client."""
        self._follower.close()


class BoardWriter:
    """Writes records of the topic.

    Their keys are the source's name and ``/definition``, ``/declared``, ``/status`` or
    ``/command/`` with its name: pause, restart, delete, or ``snapshot/<table>``.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._producer: Any = kafka.producer(_CLIENT, linger_ms=5, enable_idempotence=True)

    def define(self, definition: Definition) -> None:
        """Store a definition."""
        self._put(f"{definition.name}/definition", definition.encode())

    def command(self, source: str, command: str, **payload: Any) -> str:
        """Store a command, and return its id."""
        number = uuid.uuid4().hex
        value = {"id": number, "at": time.time_ns() // 1_000_000, **payload}
        self._put(f"{source}/command/{command}", json.dumps(value).encode())
        return number

    def status(self, source: str, status: Values) -> None:
        """Publish a status."""
        self._put(f"{source}/status", json.dumps(status).encode())

    def declare(self, source: str, file: str | None) -> None:
        """Store which settings file declares a source; None: none does any more."""
        self._put(f"{source}/declared", None if file is None else file.encode())

    def forget(self, source: str, board: Board) -> None:
        """Delete all records of a source."""
        for command in board.commands.get(source, {}):
            self._put(f"{source}/command/{command}", None)
        self._put(f"{source}/status", None)
        self._put(f"{source}/declared", None)
        self._put(f"{source}/definition", None)

    def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            UnreachableError: it was not written in time.
        """
        if self._producer.flush(_FLUSH_S):
            raise UnreachableError(
                f"topic {SOURCES} can't be written: no answer from {self._kafka.servers}"
            )

    def _put(self, key: str, value: bytes | None) -> None:
        self._producer.produce(SOURCES, value, key.encode())
        self._producer.poll(0)


def create_topic(kafka: Kafka) -> None:
    """Create the topic if it is missing."""
    kafka.create_topics(_CLIENT, {SOURCES: (1, SOURCES_CONFIG)})


def _payload(value: bytes | None) -> Values | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
