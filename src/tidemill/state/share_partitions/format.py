"""The records of the topic ``__share_group_state``, in the format of Apache Kafka 4.3.

A share partition has two keys: its snapshot, and what changed since. A change has all changes since
the snapshot of the same epoch, so the last value of each key is the state, and the topic can be
compacted. (Apache Kafka's changes are applied one after the other, which gives the same state.)

Knows the bytes only. Source: Kafka's message definitions ShareSnapshotKey (version 0),
ShareUpdateKey (version 1), ShareSnapshotValue and ShareUpdateValue (version 0), in
``share-coordinator/src/main/resources/common/message``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.primitives import Reader, Writer, versioned

_COMPLETE_TAG = 0
MAX_COUNT = 32_767
"""Largest delivery count that a record has space for."""


class Kind(enum.IntEnum):
    """The kinds of records, with the versions of their keys."""

    SNAPSHOT = 0
    UPDATE = 1


class State(enum.IntEnum):
    """The stored states of records. An acquired record is stored as before its acquisition."""

    AVAILABLE = 0
    ACKNOWLEDGED = 2
    ARCHIVED = 4


_STATES = frozenset(map(int, State))


class PartitionKey(NamedTuple):
    """A share partition."""

    group_id: str
    topic_id: UUID
    partition: int


class StateBatch(NamedTuple):
    """The state of a range of records, both ends inclusive."""

    first: int
    last: int
    state: State
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The value of a record.

    Attributes:
        snapshot_epoch: counts the snapshots; a change has that of the snapshot before it.
        start: all records below are finished.
        batches: the states of ranges at or above ``start``, lowest first. A range that is missing
            is available and was never delivered.
        complete: how many records at or above ``start`` are finished.
        state_epoch: grows when an admin moves the start; -1 in a change.
    """

    snapshot_epoch: int
    start: int
    batches: Sequence[StateBatch]
    complete: int
    state_epoch: int = -1


def encode_key(kind: Kind, key: PartitionKey) -> bytes:
    """Return the bytes of a key."""
    head = Writer().i16(kind).string(key.group_id).done()
    return head + key.topic_id.bytes + Writer().i32(key.partition).done()


def decode_key(data: bytes) -> tuple[Kind, PartitionKey]:
    """Return the kind of a record and its share partition."""
    reader = Reader(data)
    version = reader.i16()
    if version not in (Kind.SNAPSHOT, Kind.UPDATE):
        raise FormatVersionError(f"version {version} of a share group's state is not supported")
    group_id, topic_id = reader.string(), UUID(bytes=reader.raw(16))
    return Kind(version), PartitionKey(group_id, topic_id, reader.i32())


def encode_snapshot(stored: Stored, *, leader_epoch: int, created_ms: int, now_ms: int) -> bytes:
    """Return the value of a snapshot (ShareSnapshotValue)."""
    out = Writer().i16(0).i32(stored.snapshot_epoch).i32(stored.state_epoch).i32(leader_epoch)
    out.i64(stored.start).i64(created_ms).i64(now_ms)
    return _finish(out, stored)


def encode_update(stored: Stored, *, leader_epoch: int) -> bytes:
    """Return the value of a change (ShareUpdateValue)."""
    out = Writer().i16(0).i32(stored.snapshot_epoch).i32(leader_epoch).i64(stored.start)
    return _finish(out, stored)


def _finish(out: Writer, stored: Stored) -> bytes:
    out.compact_count(len(stored.batches))
    for batch in stored.batches:
        out.i64(batch.first).i64(batch.last).i8(batch.state)
        out.i16(min(batch.delivery_count, MAX_COUNT)).tagged_fields({})
    return out.tagged_fields({_COMPLETE_TAG: Writer().i32(stored.complete).done()}).done()


def decode_snapshot(value: bytes) -> tuple[Stored, int]:
    """Return the value of a snapshot, and when its state was created (ms since the epoch)."""
    reader = versioned(value, "ShareSnapshotValue")
    epoch, state_epoch, _leader = reader.i32(), reader.i32(), reader.i32()
    start, created_ms, _written_ms = reader.i64(), reader.i64(), reader.i64()
    batches, complete = _read_rest(reader)
    return _checked(Stored(epoch, start, batches, complete, state_epoch)), created_ms


def decode_update(value: bytes) -> Stored:
    """Return the value of a change."""
    reader = versioned(value, "ShareUpdateValue")
    epoch, _leader, start = reader.i32(), reader.i32(), reader.i64()
    return _checked(Stored(epoch, start, *_read_rest(reader)))


def _read_rest(reader: Reader) -> tuple[list[StateBatch], int]:
    batches = []
    for _ in range(reader.count(compact=True)):
        first, last, state, count = reader.i64(), reader.i64(), reader.i8(), reader.i16()
        reader.tagged_fields()
        if state not in _STATES:
            raise InvalidRecordError(f"invalid state {state} of records {first} to {last}")
        batches.append(StateBatch(first, last, State(state), count))
    tagged = reader.tagged_fields().get(_COMPLETE_TAG)
    return batches, -1 if tagged is None else Reader(tagged).i32()


def _checked(stored: Stored) -> Stored:
    end = stored.start
    for batch in stored.batches:
        if not end <= batch.first <= batch.last or batch.delivery_count < 0:
            raise InvalidRecordError(f"invalid range {batch} of a share partition")
        end = batch.last + 1
    return stored
