"""The records of consumer groups in ``__consumer_offsets``, in Apache Kafka's format.

This module must not know the state of a group. ``state.modern_groups.format`` has what share groups
have, too; ``state.groups.format`` has the records of classic groups and offsets.

Source: Kafka's message definitions ConsumerGroup…Key (versions 3 to 8, and 16) and ConsumerGroup…
Value (version 0), in ``group-coordinator/src/main/resources/common/message``.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tidemill.log.errors import FormatVersionError
from tidemill.state.consumer_groups.types import (
    ClassicProtocols,
    ConsumerMember,
    MemberAssignment,
    MemberState,
    OwnedPartitions,
    ResolvedPattern,
)
from tidemill.state.modern_groups.format import (
    RecordFormat,
    RecordKind,
    read_numbers,
    write_numbers,
)
from tidemill.state.primitives import Reader, Writer, versioned

_CLASSIC_TAG = 0
_EPOCHS_TAG = 0
_PRESENT = 1
_STATES = frozenset(map(int, MemberState))


def encode_current(current: MemberAssignment) -> bytes:
    """Encode ConsumerGroupCurrentMemberAssignmentValue: a member's epoch and partitions."""
    writer = Writer().i16(0).i32(current.epoch).i32(current.previous_epoch).i8(current.state)
    for owned in (current.assigned, current.revoking):
        writer.compact_count(len(owned))
        for topic in sorted(owned):
            _write_owned(writer, topic, owned[topic])
    return writer.tagged_fields({}).done()


def decode_current(data: bytes) -> MemberAssignment:
    """Return a member's epoch and partitions."""
    reader = versioned(data, "ConsumerGroupCurrentMemberAssignmentValue")
    epoch, previous, state = reader.i32(), reader.i32(), reader.i8()
    if state not in _STATES:
        raise FormatVersionError(f"state {state} of a member is not supported")
    assigned = _read_owned(reader, epoch)
    return MemberAssignment(
        epoch, previous, MemberState(state), assigned, _read_owned(reader, epoch)
    )


def encode_member(member: ConsumerMember) -> bytes:
    """Encode ConsumerGroupMemberMetadataValue: what a member asked for."""
    writer = Writer().i16(0)
    writer.compact_nullable_string(member.instance_id).compact_nullable_string(member.rack_id)
    writer.compact_string(member.client_id).compact_string(member.client_host)
    writer.compact_strings(member.topic_names)
    writer.compact_nullable_string(member.topic_pattern).i32(member.rebalance_timeout_ms)
    writer.compact_nullable_string(member.assignor)
    classic = member.classic
    return writer.tagged_fields(
        {} if classic is None else {_CLASSIC_TAG: _encode_classic(classic)}
    ).done()


def decode_member(data: bytes) -> ConsumerMember:
    """Return what a member asked for."""
    reader = versioned(data, "ConsumerGroupMemberMetadataValue")
    instance_id = reader.nullable_string(compact=True)
    rack_id = reader.nullable_string(compact=True)
    client_id, client_host = reader.string(compact=True), reader.string(compact=True)
    names = tuple(reader.compact_strings())
    pattern = reader.nullable_string(compact=True)
    timeout = reader.i32()
    assignor = reader.nullable_string(compact=True)
    classic = reader.tagged_fields().get(_CLASSIC_TAG)
    return ConsumerMember(
        instance_id,
        rack_id,
        client_id,
        client_host,
        names,
        pattern,
        timeout,
        assignor,
        None if classic is None else _decode_classic(classic),
    )


def encode_pattern(resolved: ResolvedPattern) -> bytes:
    """Encode ConsumerGroupRegularExpressionValue: the topics that match a pattern."""
    writer = Writer().i16(0).compact_strings(sorted(resolved.topics))
    return writer.i64(resolved.version).i64(resolved.timestamp_ms).tagged_fields({}).done()


def decode_pattern(data: bytes) -> ResolvedPattern:
    """Return the topics that match a pattern."""
    reader = versioned(data, "ConsumerGroupRegularExpressionValue")
    topics = frozenset(reader.compact_strings())
    return ResolvedPattern(topics, reader.i64(), reader.i64())


def _encode_classic(classic: ClassicProtocols) -> bytes:
    writer = Writer().i8(_PRESENT).i32(classic.session_timeout_ms)
    writer.compact_count(len(classic.protocols))
    for name, metadata in classic.protocols:
        writer.compact_string(name).compact_blob(metadata).tagged_fields({})
    return writer.tagged_fields({}).done()


def _decode_classic(data: bytes) -> ClassicProtocols | None:
    reader = Reader(data)
    if reader.i8() != _PRESENT:
        return None
    timeout = reader.i32()
    protocols = []
    for _ in range(reader.count(compact=True)):
        name = reader.string(compact=True)
        protocols.append((name, reader.nullable_bytes(compact=True) or b""))
        reader.tagged_fields()
    return ClassicProtocols(timeout, tuple(protocols))


def _write_owned(writer: Writer, topic: UUID, epochs: Mapping[int, int]) -> None:
    numbers = sorted(epochs)
    writer.raw(topic.bytes)
    write_numbers(writer, numbers)
    tag = Writer()
    write_numbers(tag, [epochs[number] for number in numbers])
    writer.tagged_fields({_EPOCHS_TAG: tag.done()})


def _read_owned(reader: Reader, default_epoch: int) -> OwnedPartitions:
    """Read partitions with their epochs. Kafka before 4.3 does not write epochs."""
    owned = {}
    for _ in range(reader.count(compact=True)):
        topic = UUID(bytes=reader.raw(16))
        numbers = read_numbers(reader)
        tagged = reader.tagged_fields().get(_EPOCHS_TAG)
        epochs = [] if tagged is None else read_numbers(Reader(tagged))
        if len(epochs) != len(numbers):
            epochs = [max(default_epoch, 0)] * len(numbers)
        owned[topic] = dict(zip(numbers, epochs, strict=True))
    return owned


FORMAT = RecordFormat(
    "ConsumerGroup",
    {
        RecordKind.GROUP: 3,
        RecordKind.IGNORED: 4,  # the partition metadata of Kafka before 4.1
        RecordKind.MEMBER: 5,
        RecordKind.TARGET_EPOCH: 6,
        RecordKind.TARGET: 7,
        RecordKind.CURRENT: 8,
        RecordKind.PATTERN: 16,
    },
    encode_member,
    decode_member,
    encode_current,
    decode_current,
)
"""The records of consumer groups; patterns have functions of their own."""
