"""The catalog as it will be when all records that its commands returned are written.

Commands may follow each other before their records are replayed. They are checked against this
view, so that two of them can't create the same topic. This module must not know any command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.errors import TopicExistsError, UnknownTopicOrPartitionError
from tidemill.state.catalog.format import (
    BROKER_CONFIG,
    CLUSTER_CONFIG,
    TOPIC,
    Topic,
    decode_broker_config,
    decode_key,
    decode_topic,
    encode_key,
)
from tidemill.state.catalog.stored import StoredCatalog
from tidemill.state.catalog.topic_rules import collision, fold
from tidemill.state.outcome import StateRecord


class Upcoming:
    """The stored catalog, changed by the records that are in flight."""

    def __init__(self, stored: StoredCatalog) -> None:
        self._stored = stored
        self._in_flight: dict[bytes, list[StateRecord]] = {}
        """Records that were returned and not replayed yet, by key."""

    # --- records in flight -----------------------------------------------------------------------

    def expect(self, records: Iterable[StateRecord]) -> list[StateRecord]:
        """Return the records of a command, which are in flight from now on."""
        returned = list(records)
        for record in returned:
            self._in_flight.setdefault(record.key, []).append(record)
        return returned

    def remove(self, key: bytes, value: bytes | None) -> None:
        """Remove a record that was replayed, or that could not be written."""
        pending = self._in_flight.get(key, [])
        for position, record in enumerate(pending):
            if record.value == value:
                del pending[position]
                break
        if not pending:
            self._in_flight.pop(key, None)

    # --- topics ----------------------------------------------------------------------------------

    def find(self, name: str) -> Topic | None:
        """Return the topic, or None if it does not exist or is being deleted."""
        pending = self._in_flight.get(encode_key(TOPIC, name)) if self._in_flight else None
        if not pending:
            return self._stored.topics.get(name)
        value = pending[-1].value
        return None if value is None else decode_topic(name, value)

    def topic(self, name: str) -> Topic:
        """Return the topic."""
        topic = self.find(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return topic

    def partitions(self) -> int:
        """Return the number of partitions of all topics."""
        total = self._stored.partitions
        for name in self._topics_in_flight():
            for topic, sign in ((self.find(name), 1), (self._stored.topics.get(name), -1)):
                total += sign * topic.partitions if topic is not None else 0
        return total

    def check_free(self, name: str) -> None:
        """Check that a topic with this name can be created."""
        if self.find(name) is not None:
            raise TopicExistsError(f"topic {name!r} already exists")
        others = {each for each in self._topics_in_flight() if fold(each) == fold(name)}
        others.add(self._stored.name_like(name) or name)
        for other in sorted(others):
            if self.find(other) is not None:
                raise collision(name, other)

    def _topics_in_flight(self) -> set[str]:
        keys = [decode_key(key) for key in self._in_flight]
        return {name for kind, name in keys if kind == TOPIC}

    # --- broker configs --------------------------------------------------------------------------

    def broker_configs(self) -> dict[str, str]:
        """Return the dynamic configs of this broker."""
        return self._configs(BROKER_CONFIG, self._stored.broker_configs)

    def cluster_configs(self) -> dict[str, str]:
        """Return the dynamic configs of all brokers."""
        return self._configs(CLUSTER_CONFIG, self._stored.cluster_configs)

    def _configs(self, wanted: str, stored: Mapping[str, str]) -> dict[str, str]:
        configs = dict(stored)
        for key, pending in self._in_flight.items():
            kind, name = decode_key(key)
            if kind != wanted:
                continue
            value = pending[-1].value
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = decode_broker_config(value)
        return configs
