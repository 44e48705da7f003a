"""The records of share groups in ``__consumer_offsets``, in the format of Apache Kafka 4.3.

This module must not know a group. ``state.modern_groups.format`` has what consumer groups have,
too.

Source: Kafka's message definitions ShareGroup…Key (versions 10 to 15) and ShareGroup…Value (version
0), in ``group-coordinator/src/main/resources/common/message``.
"""

from __future__ import annotations

from tidemill.state.modern_groups.format import (
    RecordFormat,
    RecordKind,
    read_partitions,
    write_partitions,
)
from tidemill.state.primitives import Writer, versioned
from tidemill.state.share_groups.types import ShareAssignment, ShareMember

_STABLE = 0


def encode_current(current: ShareAssignment) -> bytes:
    """Encode ShareGroupCurrentMemberAssignmentValue: a member's epoch and partitions."""
    writer = Writer().i16(0).i32(current.epoch).i32(current.previous_epoch).i8(_STABLE)
    write_partitions(writer, current.partitions)
    return writer.tagged_fields({}).done()


def decode_current(data: bytes) -> ShareAssignment:
    """Return a member's epoch and partitions."""
    reader = versioned(data, "ShareGroupCurrentMemberAssignmentValue")
    epoch, previous, _state = reader.i32(), reader.i32(), reader.i8()
    return ShareAssignment(epoch, previous, read_partitions(reader))


def encode_member(member: ShareMember) -> bytes:
    """Encode ShareGroupMemberMetadataValue: what a member asked for."""
    writer = Writer().i16(0).compact_nullable_string(member.rack_id)
    writer.compact_string(member.client_id).compact_string(member.client_host)
    return writer.compact_strings(member.topic_names).tagged_fields({}).done()


def decode_member(data: bytes) -> ShareMember:
    """Return what a member asked for."""
    reader = versioned(data, "ShareGroupMemberMetadataValue")
    rack_id = reader.nullable_string(compact=True)
    client_id, client_host = reader.string(compact=True), reader.string(compact=True)
    names = tuple(reader.compact_strings())
    return ShareMember(rack_id, client_id, client_host, names)


FORMAT = RecordFormat(
    "ShareGroup",
    {
        RecordKind.MEMBER: 10,
        RecordKind.GROUP: 11,
        RecordKind.TARGET_EPOCH: 12,
        RecordKind.TARGET: 13,
        RecordKind.CURRENT: 14,
        # The partitions whose state is initialised: Apache Kafka has the state on other brokers.
        RecordKind.IGNORED: 15,
    },
    encode_member,
    decode_member,
    encode_current,
    decode_current,
)
"""The records of share groups."""
