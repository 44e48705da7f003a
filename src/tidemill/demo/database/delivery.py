"""Follow the topics of the captured tables: which rows and which edits have arrived there.

Only committed records are read, as the pipeline does. So when an edit has arrived here, each batch
of the pipeline that starts later sees it. This module must not know databases or Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson
from confluent_kafka import KafkaException, Message

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower
from tidemill.demo.database.registry import CHANGED_AT, KEYS, Edit, Registry
from tidemill.demo.database.tables import seconds
from tidemill.errors import TidemillError

NEVER = float("inf")


class DeliveryError(TidemillError):
    """The topic of a captured table can't be read."""


class Delivery:
    """The captured tables as their topics have them. One thread uses it.

    Attributes:
        rows: the rows of each table by key, with times in Unix seconds.
        delivered: the number of edits that have arrived.
    """

    def __init__(
        self, bootstrap_servers: str, topics: Mapping[str, str], registry: Registry
    ) -> None:
        self._tables = {topic: table for table, topic in topics.items()}
        self._missing = {table: set(registry.first_rows(table)) for table in topics}
        self._expected = {
            table: deque(edit for edit in registry.edits if edit.table == table) for table in topics
        }
        self.rows: dict[str, dict[str, dict[str, Any]]] = {table: {} for table in topics}
        self.delivered = 0
        self._follower = Follower.of(
            Kafka(bootstrap_servers),
            "tidemill-demo-tables",
            [(topic, 0) for topic in self._tables],
            fetch_wait_max_ms=50,
        )

    @property
    def is_loaded(self) -> bool:
        """Whether all first rows have arrived."""
        return not any(self._missing.values())

    @property
    def undelivered(self) -> float:
        """The time of the first edit that has not arrived; ``NEVER`` if all have."""
        return min((queue[0].time for queue in self._expected.values() if queue), default=NEVER)

    def poll(self, timeout_s: float) -> None:
        """Read the new records. Wait up to ``timeout_s`` for the first one."""
        try:
            for message in self._follower.poll(timeout_s):
                self._take(message)
        except KafkaException as error:
            raise DeliveryError(f"the tables can't be read: {error.args[0].str()}") from error

    def close(self) -> None:
        """Close the client."""
        self._follower.close()

    def _take(self, message: Message) -> None:
        value = message.value()
        if value is None:  # the tombstone behind a delete
            return
        table = self._tables[str(message.topic())]
        try:
            self._apply(table, orjson.loads(message.key() or b""), orjson.loads(value))
        except (ValueError, KeyError, TypeError) as failure:
            raise DeliveryError(
                f"{message.topic()} offset {message.offset()} is not a change of {table}:"
                f" {failure!r}"
            ) from failure

    def _apply(self, table: str, key: Mapping[str, Any], change: Mapping[str, Any]) -> None:
        name = str(key[KEYS[table]])
        row = change["after"]
        if row is None:
            self.rows[table].pop(name, None)
            time = None
        else:
            time = seconds(row[CHANGED_AT])
            self.rows[table][name] = {**row, CHANGED_AT: time}
            self._missing[table].discard(name)
        expected = self._expected[table]
        if expected and _is_of(expected[0], name, time):
            expected.popleft()
            self.delivered += 1


def _is_of(edit: Edit, key: str, time: int | None) -> bool:
    """Whether a record is the last one of an edit. ``time`` is that of its row; None: deleted."""
    if edit.kind == "delete":
        return time is None and key == edit.key
    return time == edit.time and key == edit.new_key
