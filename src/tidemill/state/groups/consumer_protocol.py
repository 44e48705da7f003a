"""Reads a consumer's subscription and assignment, and writes assignments.

They belong to the clients of the classic protocol. If a subscription can't be read, its topics are
unknown, which is not an error. The broker itself needs them where members with the classic protocol
are in a group that it assigns (KIP-848).

Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment: version int16, topics,
user data bytes; subscriptions have owned partitions since version 1, a generation since version 2
and a rack since version 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemill.log.errors import InvalidRecordError
from tidemill.state.primitives import Reader, Writer

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of ordinary consumers. Other types (``connect``) have other metadata."""


MAX_TOPICS = 20_000
"""Topics of a subscription. The topics of a larger one count as unknown."""
MAX_PARTITIONS = 100_000
"""Partitions in an assignment, or that a member says it has."""
NEWEST_VERSION = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's subscription: the topics, what it has (topic -> partitions), and its rack."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None = None


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a member's subscription.

    Returns:
        None if the bytes are not a subscription, or if it has more than ``MAX_TOPICS`` topics.
    """
    reader = Reader(metadata)
    try:
        return None if reader.i16() < 0 else frozenset(_read_topics(reader))
    except InvalidRecordError:
        return None


def read_subscription(metadata: bytes) -> Subscription:
    """Return a member's subscription.

    Raises:
        InvalidRecordError: the bytes are not one, or it is too large.
    """
    reader = Reader(metadata)
    version = _version(reader)
    topics = tuple(_read_topics(reader))
    reader.nullable_bytes()
    owned = _read_partitions(reader) if version >= 1 else {}
    if version >= 2:
        reader.i32()
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(version, topics, owned, rack_id)


def read_assignment(assignment: bytes) -> Mapping[str, frozenset[int]]:
    """Return the partitions by topic in an assignment; none if it is empty.

    Raises:
        InvalidRecordError: the bytes are not an assignment, or it is too large.
    """
    if not assignment:
        return {}
    reader = Reader(assignment)
    _version(reader)
    return _read_partitions(reader)


def write_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    """Return an assignment as a member with a subscription of this version reads it."""
    writer = Writer().i16(max(0, min(version, NEWEST_VERSION))).i32(len(partitions))
    for topic in sorted(partitions):
        numbers = sorted(partitions[topic])
        writer.string(topic).i32(len(numbers)).i32s(numbers)
    return writer.i32(-1).done()  # no user data


def _version(reader: Reader) -> int:
    version = reader.i16()
    if version < 0:
        raise InvalidRecordError(f"invalid version {version} of the consumer protocol")
    return version


def _read_topics(reader: Reader) -> Iterable[str]:
    count = reader.count(compact=False)
    if not 0 <= count <= MAX_TOPICS:
        raise InvalidRecordError(f"a subscription to {count} topics")
    return [reader.string() for _ in range(count)]


def _read_partitions(reader: Reader) -> dict[str, frozenset[int]]:
    partitions: dict[str, frozenset[int]] = {}
    total = 0
    for _ in range(reader.count(compact=False)):
        topic = reader.string()
        count = reader.count(compact=False)
        total += max(count, 0) + 1
        if total > MAX_PARTITIONS:
            raise InvalidRecordError(f"more than {MAX_PARTITIONS} partitions")
        numbers = frozenset(reader.i32() for _ in range(count))
        partitions[topic] = partitions.get(topic, frozenset()) | numbers
    return partitions
