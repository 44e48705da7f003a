"""A topic with definitions, commands and statuses of workers, as a table that follows it.

All orders to workers go through it, so that the command line works from anywhere, with every
Kafka-compatible broker. Must not know: a connector, or what a worker does with an order.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any, Protocol, Self

from confluent_kafka import KafkaException

from tidemill.confluent.clients import Kafka, flush_while_reachable
from tidemill.confluent.reading import Follower, end_offsets, read_table
from tidemill.errors import UnreachableError

BOARD_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact", "segment.ms": "3600000"}
_FLUSH_S = 15.0
_CLAIMS = 16

Values = dict[str, Any]


class StoredDefinition(Protocol):
    """A definition that a topic stores."""

    @property
    def name(self) -> str:
        """Its name, which is part of the record's key."""
        ...

    def encode(self) -> bytes:
        """Return the record's value."""
        ...


class Board:
    """The latest definition, commands and status of each thing that a topic defines.

    Attributes:
        definitions: encoded definitions, by name.
        commands: by name, the payload of each command.
        statuses: by name, the last published status.
        declared: by name, the settings file that declares it. Others are not in it.
        claims: by name, the last claims of workers that want it for themselves, in order.
        ordered: names that got a command after their last claim, also if it was carried out since.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, bytes] = {}
        self.commands: dict[str, dict[str, Values]] = {}
        self.statuses: dict[str, Values] = {}
        self.declared: dict[str, str] = {}
        self.claims: dict[str, list[str]] = {}
        self.ordered: set[str] = set()

    @classmethod
    def read(cls, kafka: Kafka, topic: str) -> Self:
        """Return the board as it is now.

        Raises:
            UnreachableError: no broker answers.
        """
        board = cls()
        for key, value in read_table(kafka, _client(topic), topic, committed=False).items():
            board.apply(key, value)
        return board

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take over a record. Records of other programs are left out."""
        name, _, rest = key.decode(errors="replace").partition("/")
        if rest == "definition":
            _set(self.definitions, name, value)
        elif rest == "status":
            _set(self.statuses, name, _payload(value))
        elif rest == "declared":
            _set(self.declared, name, None if value is None else value.decode(errors="replace"))
        elif rest == "claim" and value is None:
            self.claims.pop(name, None)
        elif rest == "claim" and value is not None:
            last = self.claims.get(name, [])[1 - _CLAIMS :]
            self.claims[name] = [*last, value.decode(errors="replace")]
            self.ordered.discard(name)
        elif rest.startswith("command/"):
            commands = self.commands.setdefault(name, {})
            _set(commands, rest.removeprefix("command/"), _payload(value))
            if value is not None:
                self.ordered.add(name)


class BoardFollower:
    """Follows the topic. Use one thread, and ``close`` it."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        create_topic(kafka, topic)
        self.board = Board()
        self._kafka = kafka
        self._topic = topic
        self._follower = Follower.of(kafka, _client(topic), [(topic, 0)], "read_uncommitted")

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
            TidemillError: the topic can't be read.
            UnreachableError: no broker answers.
        """
        ends = end_offsets(self._kafka, _client(self._topic), self._topic)
        try:
            for message in self._follower.to_end(ends):
                self.board.apply(message.key() or b"", message.value())
        except KafkaException as error:
            raise self._kafka.translate(error.args[0], f"read topic {self._topic}") from error

    def close(self) -> None:
        """Close the client."""
        self._follower.close()


class BoardWriter:
    """Writes records of the topic.

    Their keys are a name and ``/definition``, ``/declared``, ``/status``, ``/claim``, or
    ``/command/`` with the name of the command.
    """

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self._producer: Any = kafka.producer(_client(topic), linger_ms=5, enable_idempotence=True)

    def define(self, definition: StoredDefinition) -> None:
        """Store a definition."""
        self._put(f"{definition.name}/definition", definition.encode())

    def done(self, name: str, command: str) -> None:
        """Delete a command that was carried out."""
        self._put(f"{name}/command/{command}", None)

    def command(self, name: str, command: str, **payload: Any) -> str:
        """Store a command, and return its id."""
        number = uuid.uuid4().hex
        value = {"id": number, "at": time.time_ns() // 1_000_000, **payload}
        self._put(f"{name}/command/{command}", json.dumps(value).encode())
        return number

    def status(self, name: str, status: Values) -> None:
        """Publish a status."""
        self._put(f"{name}/status", json.dumps(status).encode())

    def declare(self, name: str, file: str | None) -> None:
        """Store which settings file declares it; None: none does any more."""
        self._put(f"{name}/declared", None if file is None else file.encode())

    def claim(self, name: str, claim: str) -> None:
        """Store that a worker wants a definition for itself. The last claim counts."""
        self._put(f"{name}/claim", claim.encode())

    def forget(self, name: str, board: Board) -> None:
        """Delete all records of a name."""
        if name in board.claims:
            self._put(f"{name}/claim", None)
        for command in board.commands.get(name, {}):
            self._put(f"{name}/command/{command}", None)
        self._put(f"{name}/status", None)
        self._put(f"{name}/declared", None)
        self._put(f"{name}/definition", None)

    def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            UnreachableError: it was not written in time.
        """
        if self._producer.flush(_FLUSH_S):
            raise self._unreachable()

    def close(self) -> None:
        """Wait until everything is written, as long as a broker answers.

        Raises:
            UnreachableError: no broker answers, or it was not written in time.
        """
        if not flush_while_reachable(self._producer, self._topic, _FLUSH_S):
            raise self._unreachable()

    def _unreachable(self) -> UnreachableError:
        return UnreachableError(
            f"topic {self._topic} can't be written: no answer from {self._kafka.servers}"
        )

    def _put(self, key: str, value: bytes | None) -> None:
        self._producer.produce(self._topic, value, key.encode())
        self._producer.poll(0)


def create_topic(kafka: Kafka, topic: str) -> None:
    """Create the topic if it is missing."""
    kafka.create_topics(_client(topic), {topic: (1, BOARD_CONFIG)})


def _client(topic: str) -> str:
    return topic.replace(".", "-")


def _payload(value: bytes | None) -> Values | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
