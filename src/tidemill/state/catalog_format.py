"""Records of ``__tidemill_catalog``: topics, broker configs and claimed producer ids, as JSON.

Key: an object ``{"kind": ..., "name": ...}``; value: an object with a version ``v``. A change
of meaning raises it, and a reader refuses what it does not know. Knows no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from tidemill.errors import FormatVersionError, InvalidRecordError
from tidemill.state.outcome import StateRecord

CATALOG_TOPIC = "__tidemill_catalog"
"""Name of the internal topic: compacted, one partition."""

VERSION = 1
TOPIC = "topic"
BROKER_CONFIG = "broker-config"
PRODUCER_IDS = "producer-ids"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is stored."""

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def encode_key(kind: str, name: str = "") -> bytes:
    """The key of one thing of a kind."""
    return orjson.dumps({"kind": kind, "name": name}, option=orjson.OPT_SORT_KEYS)


def decode_key(key: bytes) -> tuple[str, str]:
    """(kind, name).

    Raises:
        InvalidRecordError: the bytes are no such key.
    """
    data = _object(key)
    kind, name = data.get("kind"), data.get("name")
    if not isinstance(kind, str) or not isinstance(name, str):
        raise InvalidRecordError(f"a key in {CATALOG_TOPIC} lacks kind or name: {key[:80]!r}")
    return kind, name


def encode_topic(topic: Topic) -> StateRecord:
    """The record that creates or changes a topic."""
    value = {
        "v": VERSION,
        "topic_id": str(topic.topic_id),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
    }
    return StateRecord(encode_key(TOPIC, topic.name), _dump(value))


def decode_topic(name: str, value: bytes) -> Topic:
    """Raises InvalidRecordError or FormatVersionError where the value can't be read."""
    data = _versioned(value)
    topic_id, partitions, configs = data["topic_id"], data["partitions"], data["configs"]
    try:
        identity = UUID(str(topic_id))
    except ValueError as error:
        raise InvalidRecordError(f"the id of topic {name!r} is no UUID: {topic_id!r}") from error
    if not isinstance(partitions, int) or partitions < 1 or not isinstance(configs, dict):
        raise InvalidRecordError(f"topic {name!r} in {CATALOG_TOPIC} is malformed: {data!r}")
    return Topic(name, identity, partitions, {str(k): str(v) for k, v in configs.items()})


def encode_broker_config(name: str, value: str | None) -> StateRecord:
    """The record that sets a dynamic broker config, or (None) removes it."""
    data = None if value is None else _dump({"v": VERSION, "value": value})
    return StateRecord(encode_key(BROKER_CONFIG, name), data)


def decode_broker_config(value: bytes) -> str:
    """Raises InvalidRecordError or FormatVersionError where the value can't be read."""
    return str(_versioned(value)["value"])


def encode_producer_ids(next_id: int) -> StateRecord:
    """The record that claims all producer ids below ``next_id``."""
    return StateRecord(encode_key(PRODUCER_IDS), _dump({"v": VERSION, "next": next_id}))


def decode_producer_ids(value: bytes) -> int:
    """Raises InvalidRecordError or FormatVersionError where the value can't be read."""
    next_id = _versioned(value)["next"]
    if not isinstance(next_id, int):
        raise InvalidRecordError(f"claimed producer ids in {CATALOG_TOPIC} are not a number")
    return next_id


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
            f"a record of {CATALOG_TOPIC} has version {fields['v']}, known is {VERSION}",
            hint="The data folder was written by a newer tidemill; start that one.",
        )
    return fields
