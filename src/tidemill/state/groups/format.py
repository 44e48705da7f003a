"""The records of ``__consumer_offsets``, in Apache Kafka's format, so that its tools read them.

A record is about a committed offset or about a group. Each key and value starts with its version
as int16, and the version of the key tells the two kinds apart. Committed offsets are written as
key 1 and value 3 (value 1 if an old client sends an expiry time), groups as key 2 and value 3.
This module must not know the state of a group or a topic.

Source: Kafka's message definitions OffsetCommitKey (versions 0-1), OffsetCommitValue (0-4),
GroupMetadataKey (2) and GroupMetadataValue (0-4).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.internal_topics import OFFSETS_TOPIC
from tidemill.state.primitives import Reader, Writer
from tidemill.state.types import CommittedOffset

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2

_NO_EXPIRY = -1


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The partition and group of a committed offset."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The group that a record is about."""

    group_id: str


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a completed generation. Timeouts are in milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A group with a completed generation, or an empty one (no members)."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    """When the group entered its state; -1 in old records."""
    members: tuple[StoredMember, ...]


def encode_offset_key(key: OffsetKey) -> bytes:
    """Encode OffsetCommitKey version 1."""
    return Writer().i16(1).string(key.group_id).string(key.topic).i32(key.partition).done()


def encode_group_key(key: GroupKey) -> bytes:
    """Encode GroupMetadataKey version 2."""
    return Writer().i16(GROUP_KEY_VERSION).string(key.group_id).done()


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key of either kind.

    Returns:
        None for a kind that is not supported (a version above 2, such as KIP-848 groups use).
    """
    reader = Reader(data)
    version = reader.i16()
    if version in OFFSET_KEY_VERSIONS:
        return OffsetKey(reader.string(), reader.string(), reader.i32())
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    if version < 0:
        raise InvalidRecordError(f"invalid version {version} of a key in {OFFSETS_TOPIC}")
    return None


def encode_offset_value(value: CommittedOffset) -> bytes:
    """Encode OffsetCommitValue version 3, or 1 (without leader epoch) if it has an expiry time."""
    writer = Writer()
    if value.expire_timestamp_ms is None:
        writer.i16(3).i64(value.offset).i32(value.leader_epoch)
        return writer.string(value.metadata).i64(value.commit_timestamp_ms).done()
    writer.i16(1).i64(value.offset).string(value.metadata)
    return writer.i64(value.commit_timestamp_ms).i64(value.expire_timestamp_ms).done()


def decode_offset_value(data: bytes) -> CommittedOffset:
    """Decode OffsetCommitValue, versions 0 to 4."""
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise FormatVersionError(f"version {version} of OffsetCommitValue is not supported")
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.string(compact=version >= 4)
    commit_timestamp = reader.i64()
    expire = reader.i64() if version == 1 else _NO_EXPIRY
    if version >= 4:
        reader.tagged_fields()
    return CommittedOffset(
        offset, leader_epoch, metadata, commit_timestamp, None if expire == _NO_EXPIRY else expire
    )


def encode_group_value(value: GroupValue) -> bytes:
    """Encode GroupMetadataValue version 3."""
    writer = Writer().i16(3).string(value.protocol_type).i32(value.generation)
    writer.string(value.protocol).string(value.leader).i64(value.state_timestamp_ms)
    writer.i32(len(value.members))
    for member in value.members:
        writer.string(member.member_id).string(member.instance_id)
        writer.string(member.client_id).string(member.client_host)
        writer.i32(member.rebalance_timeout_ms).i32(member.session_timeout_ms)
        writer.blob(member.subscription).blob(member.assignment)
    return writer.done()


def decode_group_value(data: bytes) -> GroupValue:
    """Decode GroupMetadataValue, versions 0 to 4."""
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise FormatVersionError(f"version {version} of GroupMetadataValue is not supported")
    compact = version >= 4
    protocol_type = reader.string(compact=compact)
    generation = reader.i32()
    protocol = reader.nullable_string(compact=compact)
    leader = reader.nullable_string(compact=compact)
    state_timestamp = reader.i64() if version >= 2 else -1
    count = reader.count(compact=compact)
    members = tuple(_decode_member(reader, version) for _ in range(count))
    if compact:
        reader.tagged_fields()
    return GroupValue(protocol_type, generation, protocol, leader, state_timestamp, members)


def _decode_member(reader: Reader, version: int) -> StoredMember:
    compact = version >= 4
    member_id = reader.string(compact=compact)
    instance_id = reader.nullable_string(compact=compact) if version >= 3 else None
    client_id = reader.string(compact=compact)
    client_host = reader.string(compact=compact)
    rebalance_timeout = reader.i32() if version >= 1 else -1
    session_timeout = reader.i32()
    subscription = reader.nullable_bytes(compact=compact) or b""
    assignment = reader.nullable_bytes(compact=compact) or b""
    if compact:
        reader.tagged_fields()
    if rebalance_timeout < 0:
        rebalance_timeout = session_timeout  # version 0 has one timeout for both
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout,
        session_timeout,
        subscription,
        assignment,
    )
