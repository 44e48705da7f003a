"""The records of share groups in ``__consumer_offsets``, in the format of Apache Kafka 4.3.

Keys begin with their version, which is the kind of the record. Values are flexible: strings and
arrays have compact lengths, and each structure ends with tagged fields.

This module must not know a group. ``state.consumer_groups.format`` has the records of other groups.

Source: Kafka's message definitions ShareGroup…Key (versions 10 to 15) and ShareGroup…Value (version
0), in ``group-coordinator/src/main/resources/common/message``.
"""

from __future__ import annotations

import enum
from typing import NamedTuple
from uuid import UUID

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.assignors.types import Partitions
from tidemill.state.primitives import Reader, Writer
from tidemill.state.share_groups.types import ShareAssignment, ShareMember

_HASH_TAG = 0
_STABLE = 0


class RecordKind(enum.IntEnum):
    """The kinds of records, with the versions of their keys."""

    MEMBER = 10
    GROUP = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    STATE_PARTITIONS = 15
    """The partitions whose state is initialised. Apache Kafka needs it, because the state is on
    other brokers."""


_NAMED = {RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT}
_KINDS = frozenset(map(int, RecordKind))


class ShareKey(NamedTuple):
    """The key of a record: its kind, the group, and the member id if it has one."""

    kind: RecordKind
    group_id: str
    name: str = ""


def encode_key(key: ShareKey) -> bytes:
    """Encode a key."""
    writer = Writer().i16(key.kind).string(key.group_id)
    return writer.string(key.name).done() if key.kind in _NAMED else writer.done()


def decode_key(data: bytes) -> ShareKey | None:
    """Decode a key; None if the record is not about a share group.

    Raises:
        InvalidRecordError: the bytes don't match their version.
    """
    reader = Reader(data)
    version = reader.i16()
    if version not in _KINDS:
        return None
    kind = RecordKind(version)
    return ShareKey(kind, reader.string(), reader.string() if kind in _NAMED else "")


def encode_group(epoch: int, topics_hash: int) -> bytes:
    """Encode ShareGroupMetadataValue: the group's epoch, and a hash of its topics."""
    tagged = {_HASH_TAG: Writer().i64(topics_hash).done()} if topics_hash else {}
    return Writer().i16(0).i32(epoch).tagged_fields(tagged).done()


def decode_group(data: bytes) -> tuple[int, int]:
    """Return a group's epoch and hash.

    Raises:
        InvalidRecordError, FormatVersionError: the value can't be read.
    """
    reader = _versioned(data, "ShareGroupMetadataValue")
    epoch = reader.i32()
    tagged = reader.tagged_fields().get(_HASH_TAG)
    return epoch, 0 if tagged is None else Reader(tagged).i64()


def encode_target_epoch(epoch: int) -> bytes:
    """Encode ShareGroupTargetAssignmentMetadataValue: the epoch of the target assignment."""
    return Writer().i16(0).i32(epoch).tagged_fields({}).done()


def decode_target_epoch(data: bytes) -> int:
    """Return the epoch of the target assignment.

    Raises:
        InvalidRecordError, FormatVersionError: the value can't be read.
    """
    return _versioned(data, "ShareGroupTargetAssignmentMetadataValue").i32()


def encode_target(partitions: Partitions) -> bytes:
    """Encode ShareGroupTargetAssignmentMemberValue: a member's part of the target assignment."""
    writer = Writer().i16(0)
    _write_partitions(writer, partitions)
    return writer.tagged_fields({}).done()


def decode_target(data: bytes) -> Partitions:
    """Return a member's part of the target assignment.

    Raises:
        InvalidRecordError, FormatVersionError: the value can't be read.
    """
    return _read_partitions(_versioned(data, "ShareGroupTargetAssignmentMemberValue"))


def encode_current(current: ShareAssignment) -> bytes:
    """Encode ShareGroupCurrentMemberAssignmentValue: a member's epoch and partitions."""
    writer = Writer().i16(0).i32(current.epoch).i32(current.previous_epoch).i8(_STABLE)
    _write_partitions(writer, current.partitions)
    return writer.tagged_fields({}).done()


def decode_current(data: bytes) -> ShareAssignment:
    """Return a member's epoch and partitions.

    Raises:
        InvalidRecordError, FormatVersionError: the value can't be read.
    """
    reader = _versioned(data, "ShareGroupCurrentMemberAssignmentValue")
    epoch, previous, _state = reader.i32(), reader.i32(), reader.i8()
    return ShareAssignment(epoch, previous, _read_partitions(reader))


def encode_member(member: ShareMember) -> bytes:
    """Encode ShareGroupMemberMetadataValue: what a member asked for."""
    writer = Writer().i16(0).compact_nullable_string(member.rack_id)
    writer.compact_string(member.client_id).compact_string(member.client_host)
    writer.compact_count(len(member.topic_names))
    for name in member.topic_names:
        writer.compact_string(name)
    return writer.tagged_fields({}).done()


def decode_member(data: bytes) -> ShareMember:
    """Return what a member asked for.

    Raises:
        InvalidRecordError, FormatVersionError: the value can't be read.
    """
    reader = _versioned(data, "ShareGroupMemberMetadataValue")
    rack_id = reader.nullable_string(compact=True)
    client_id, client_host = reader.string(compact=True), reader.string(compact=True)
    names = tuple(reader.string(compact=True) for _ in range(reader.count(compact=True)))
    return ShareMember(rack_id, client_id, client_host, names)


def _write_partitions(writer: Writer, partitions: Partitions) -> None:
    writer.compact_count(len(partitions))
    for topic in sorted(partitions):
        numbers = sorted(partitions[topic])
        writer.raw(topic.bytes).compact_count(len(numbers)).i32s(numbers).tagged_fields({})


def _read_partitions(reader: Reader) -> Partitions:
    partitions = {}
    for _ in range(reader.count(compact=True)):
        topic = UUID(bytes=reader.raw(16))
        numbers = frozenset(reader.i32() for _ in range(reader.count(compact=True)))
        partitions[topic] = numbers
        reader.tagged_fields()
    return partitions


def _versioned(data: bytes, name: str) -> Reader:
    reader = Reader(data)
    version = reader.i16()
    if version < 0:
        raise InvalidRecordError(f"invalid version {version} of {name}")
    if version > 0:
        raise FormatVersionError(f"version {version} of {name} is not supported")
    return reader
