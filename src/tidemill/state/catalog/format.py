"""The records of ``__tidemill_catalog``, as JSON: topics, deletions, broker configs, producer ids.

A key is an object ``{"kind": ..., "name": ...}``. A value is an object with a version ``v``: a
change of its meaning increases the version, and a reader rejects a version that it does not know.
This module must not know the state of the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.internal_topics import CATALOG_TOPIC
from tidemill.state.outcome import StateRecord

VERSION = 1
TOPIC = "topic"
DELETED_TOPIC = "deleted-topic"
BROKER_CONFIG = "broker-config"
CLUSTER_CONFIG = "cluster-config"
"""A dynamic config of all brokers."""
PRODUCER_IDS = "producer-ids"
GROUP_CONFIG = "group-config"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is stored."""

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def encode_key(kind: str, name: str = "") -> bytes:
    """Return the key of a topic, a broker config or the producer ids."""
    return orjson.dumps({"kind": kind, "name": name}, option=orjson.OPT_SORT_KEYS)


def decode_key(key: bytes) -> tuple[str, str]:
    """Return (kind, name)."""
    data = _object(key)
    kind, name = data.get("kind"), data.get("name")
    if not isinstance(kind, str) or not isinstance(name, str):
        raise InvalidRecordError(f"a key in {CATALOG_TOPIC} lacks kind or name: {key[:80]!r}")
    return kind, name


def encode_topic(topic: Topic) -> StateRecord:
    """Return the record that creates or changes a topic."""
    value = {
        "v": VERSION,
        "topic_id": str(topic.topic_id),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
    }
    return StateRecord(encode_key(TOPIC, topic.name), _dump(value))


def decode_topic(name: str, value: bytes) -> Topic:
    """Return the topic in a record's value."""
    data = _versioned(value)
    topic_id, partitions, configs = data["topic_id"], data["partitions"], data["configs"]
    try:
        identity = UUID(str(topic_id))
    except ValueError as error:
        raise InvalidRecordError(f"topic {name!r} has an invalid UUID {topic_id!r}") from error
    if not isinstance(partitions, int) or partitions < 1 or not isinstance(configs, dict):
        raise InvalidRecordError(f"topic {name!r} in {CATALOG_TOPIC} is malformed: {data!r}")
    return Topic(name, identity, partitions, {str(k): str(v) for k, v in configs.items()})


def encode_deletion(topic_id: UUID, name: str) -> StateRecord:
    """Return the record that a topic was deleted whose folders are perhaps still there."""
    return StateRecord(
        encode_key(DELETED_TOPIC, str(topic_id)), _dump({"v": VERSION, "topic": name})
    )


def encode_deletion_done(topic_id: UUID) -> StateRecord:
    """Return the record that the folders of a deleted topic are gone."""
    return StateRecord(encode_key(DELETED_TOPIC, str(topic_id)), None)


def decode_deletion(key_name: str, value: bytes | None) -> tuple[UUID, str | None]:
    """Return id and name of a deleted topic, given the name in its record's key.

    The topic's name is None if its folders are gone.
    """
    try:
        topic_id = UUID(key_name)
    except ValueError as error:
        raise InvalidRecordError(f"a deleted topic has an invalid UUID {key_name!r}") from error
    return topic_id, None if value is None else str(_versioned(value)["topic"])


def encode_broker_config(name: str, value: str | None, *, all_brokers: bool = False) -> StateRecord:
    """Return the record that sets a dynamic broker config, or removes it (None)."""
    data = None if value is None else _dump({"v": VERSION, "value": value})
    return StateRecord(encode_key(CLUSTER_CONFIG if all_brokers else BROKER_CONFIG, name), data)


def decode_broker_config(value: bytes) -> str:
    """Return the config's value in a record's value."""
    return str(_versioned(value)["value"])


def encode_producer_ids(next_id: int) -> StateRecord:
    """Return the record that claims all producer ids below ``next_id``."""
    return StateRecord(encode_key(PRODUCER_IDS), _dump({"v": VERSION, "next": next_id}))


def decode_producer_ids(value: bytes) -> int:
    """Return the end of the claimed ids in a record's value."""
    next_id = _versioned(value)["next"]
    if not isinstance(next_id, int):
        raise InvalidRecordError(f"invalid producer ids {next_id!r} in {CATALOG_TOPIC}")
    return next_id


def encode_group_configs(group_id: str, configs: Mapping[str, str]) -> StateRecord:
    """Return the record that sets a group's configs, or removes them if there are none."""
    data = _dump({"v": VERSION, "configs": dict(configs)}) if configs else None
    return StateRecord(encode_key(GROUP_CONFIG, group_id), data)


def decode_group_configs(value: bytes) -> dict[str, str]:
    """Return a group's configs in a record's value."""
    configs = _versioned(value)["configs"]
    if not isinstance(configs, dict):
        raise InvalidRecordError(f"invalid configs of a group in {CATALOG_TOPIC}: {configs!r}")
    return {str(name): str(each) for name, each in configs.items()}


class _Fields(dict[str, object]):
    def __missing__(self, key: str) -> object:
        raise InvalidRecordError(f"a value in {CATALOG_TOPIC} lacks {key!r}")


def _dump(value: dict[str, object]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _object(data: bytes) -> _Fields:
    try:
        decoded = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRecordError(f"a record of {CATALOG_TOPIC} is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise InvalidRecordError(f"a record of {CATALOG_TOPIC} is not an object")
    return _Fields(decoded)


def _versioned(data: bytes) -> _Fields:
    fields = _object(data)
    if fields["v"] != VERSION:
        raise FormatVersionError(
            f"a record of {CATALOG_TOPIC} has version {fields['v']}, not {VERSION}",
            hint="A newer version of tidemill wrote this data folder: start that version.",
        )
    return fields
