"""The topics and broker configs that the catalog's topic holds, with the ways to find them.

It changes by ``replay`` only. This module must not know a command or a record that is not replayed.
"""

from __future__ import annotations

from uuid import UUID

from tidemill.state.catalog.format import (
    BROKER_CONFIG,
    CLUSTER_CONFIG,
    DELETED_TOPIC,
    TOPIC,
    Topic,
    decode_broker_config,
    decode_deletion,
    decode_key,
    decode_topic,
)
from tidemill.state.catalog.topic_rules import fold


class StoredCatalog:
    """The part of the catalog that survives a restart.

    Attributes:
        topics: topics by name. Read only.
        names: topic names by topic id. Read only.
        deleted: names by topic id of the deleted topics whose folders are perhaps still there.
        broker_configs: the dynamic configs of this broker. Read only.
        cluster_configs: the dynamic configs of all brokers. Read only.
        partitions: the number of partitions of all topics.
        version: grows with each change of a topic. It is not stored.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.names: dict[UUID, str] = {}
        self.deleted: dict[UUID, str] = {}
        self.broker_configs: dict[str, str] = {}
        self.cluster_configs: dict[str, str] = {}
        self.partitions = 0
        self.version = 0
        self._folded: dict[str, str] = {}
        """``fold(name)`` -> name"""

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic.

        Returns:
            False if the record is of another kind. Then nothing changes.
        """
        kind, name = decode_key(key)
        if kind == TOPIC:
            self._set_topic(name, None if value is None else decode_topic(name, value))
        elif kind == DELETED_TOPIC:
            topic_id, topic = decode_deletion(name, value)
            if topic is None:
                self.deleted.pop(topic_id, None)
            else:
                self.deleted[topic_id] = topic
        elif kind in (BROKER_CONFIG, CLUSTER_CONFIG):
            configs = self.broker_configs if kind == BROKER_CONFIG else self.cluster_configs
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = decode_broker_config(value)
        else:
            return False
        return True

    def name_like(self, name: str) -> str | None:
        """Return the topic whose name equals ``name`` or differs from it in '.' and '_' only."""
        return self._folded.get(fold(name))

    def _set_topic(self, name: str, topic: Topic | None) -> None:
        self.version += 1
        old = self.topics.pop(name, None)
        if old is not None:
            self.names.pop(old.topic_id, None)
            self._folded.pop(fold(name), None)
            self.partitions -= old.partitions
        if topic is not None:
            self.topics[name] = topic
            self.names[topic.topic_id] = name
            self._folded[fold(name)] = name
            self.partitions += topic.partitions
