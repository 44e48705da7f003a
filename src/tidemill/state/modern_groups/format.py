"""The records of a modern group in ``__consumer_offsets``, in Apache Kafka's format.

A key starts with its version as int16, which says what kind of group and what kind of record it is.
Values are flexible: strings and arrays have compact lengths, and each structure ends with tagged
fields. The kinds of groups differ in the numbers of the keys, and in the values of members and of
their present assignments.

This module must not know the state of a group, or a kind of group.

Source: Kafka's message definitions ConsumerGroup… and ShareGroup… in
``group-coordinator/src/main/resources/common/message``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from tidemill.state.assignors.types import Partitions
from tidemill.state.primitives import Reader, Writer, versioned

_HASH_TAG = 0

M = TypeVar("M")
"""A member as it is stored: what it asked for."""
C = TypeVar("C")
"""A member's current assignment: its epoch and partitions."""


class RecordKind(enum.Enum):
    """The kinds of records."""

    GROUP = "group"
    TARGET_EPOCH = "target epoch"
    MEMBER = "member"
    TARGET = "target"
    CURRENT = "current"
    PATTERN = "pattern"
    """The topics that match a pattern. Only consumer groups have patterns."""
    IGNORED = "ignored"
    """Written by Apache Kafka, without a meaning here. A group that is deleted deletes it."""


_WITH_NAME = {RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.PATTERN}
"""The kinds whose keys have a second name: a member id, or a pattern."""


class RecordKey(NamedTuple):
    """The key of a record: its kind, the group, and the member id or pattern if it has one."""

    kind: RecordKind
    group_id: str
    name: str = ""


@dataclass(frozen=True)
class RecordFormat(Generic[M, C]):
    """The records of one kind of group.

    Attributes:
        name: the start of Kafka's names for the values, such as ConsumerGroup.
        versions: the versions of the keys.
        encode_member: encodes what a member asked for.
        decode_member: the opposite. Raises InvalidRecordError or FormatVersionError.
        encode_current: encodes a member's epoch and partitions.
        decode_current: the opposite. Raises InvalidRecordError or FormatVersionError.
    """

    name: str
    versions: Mapping[RecordKind, int]
    encode_member: Callable[[M], bytes]
    decode_member: Callable[[bytes], M]
    encode_current: Callable[[C], bytes]
    decode_current: Callable[[bytes], C]

    @cached_property
    def _kinds(self) -> Mapping[int, RecordKind]:
        return {version: kind for kind, version in self.versions.items()}

    def encode_key(self, key: RecordKey) -> bytes:
        """Encode a key."""
        writer = Writer().i16(self.versions[key.kind]).string(key.group_id)
        return writer.string(key.name).done() if key.kind in _WITH_NAME else writer.done()

    def decode_key(self, data: bytes) -> RecordKey | None:
        """Decode a key; None if the record is not about such a group."""
        reader = Reader(data)
        kind = self._kinds.get(reader.i16())
        if kind is None:
            return None
        return RecordKey(kind, reader.string(), reader.string() if kind in _WITH_NAME else "")

    def encode_group(self, epoch: int, topics_hash: int) -> bytes:
        """Encode …MetadataValue: the group's epoch, and a hash of the topics that it reads."""
        tagged = {_HASH_TAG: Writer().i64(topics_hash).done()} if topics_hash else {}
        return Writer().i16(0).i32(epoch).tagged_fields(tagged).done()

    def decode_group(self, data: bytes) -> tuple[int, int]:
        """Return a group's epoch and hash."""
        reader = versioned(data, f"{self.name}MetadataValue")
        epoch = reader.i32()
        tagged = reader.tagged_fields().get(_HASH_TAG)
        return epoch, 0 if tagged is None else Reader(tagged).i64()

    def encode_target_epoch(self, epoch: int) -> bytes:
        """Encode …TargetAssignmentMetadataValue: the epoch of the target assignment."""
        return Writer().i16(0).i32(epoch).tagged_fields({}).done()

    def decode_target_epoch(self, data: bytes) -> int:
        """Return the epoch of the target assignment."""
        return versioned(data, f"{self.name}TargetAssignmentMetadataValue").i32()

    def encode_target(self, partitions: Partitions) -> bytes:
        """Encode …TargetAssignmentMemberValue: a member's part of the target assignment."""
        writer = Writer().i16(0)
        write_partitions(writer, partitions)
        return writer.tagged_fields({}).done()

    def decode_target(self, data: bytes) -> Partitions:
        """Return a member's part of the target assignment."""
        return read_partitions(versioned(data, f"{self.name}TargetAssignmentMemberValue"))


def write_partitions(writer: Writer, partitions: Partitions) -> None:
    """Write topic ids with their partitions."""
    writer.compact_count(len(partitions))
    for topic in sorted(partitions):
        numbers = sorted(partitions[topic])
        writer.raw(topic.bytes)
        write_numbers(writer, numbers)
        writer.tagged_fields({})


def read_partitions(reader: Reader) -> Partitions:
    """Read topic ids with their partitions.

    Raises:
        InvalidRecordError: the bytes end too early, or a length is invalid.
    """
    partitions = {}
    for _ in range(reader.count(compact=True)):
        topic = UUID(bytes=reader.raw(16))
        partitions[topic] = frozenset(read_numbers(reader))
        reader.tagged_fields()
    return partitions


def write_numbers(writer: Writer, numbers: list[int]) -> None:
    """Write a compact array of int32."""
    writer.compact_count(len(numbers)).i32s(numbers)


def read_numbers(reader: Reader) -> list[int]:
    """Read a compact array of int32.

    Raises:
        InvalidRecordError: the bytes end too early, or the length is invalid.
    """
    return [reader.i32() for _ in range(reader.count(compact=True))]
