"""The records of ``__transaction_state``, in Apache Kafka's format, so that its tools read them.

``TransactionValue`` is all that is stored for a transactional id. Each key and value starts with
its version as int16. Values are written in version 1, as Kafka does with transaction.version 2.
One tagged field is tidemill's own (``LAST_EPOCH_TAG``); Kafka ignores tags that it does not know.
This module must not know the rules of transactions.

Source: Kafka's message definitions TransactionLogKey (version 0) and TransactionLogValue (0-1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.log.names import TopicPartition
from tidemill.state.internal_topics import TRANSACTIONS_TOPIC
from tidemill.state.outcome import StateRecord
from tidemill.state.primitives import Reader, Writer
from tidemill.state.transactions.types import TransactionState
from tidemill.state.types import ProducerIdentity, TransactionVersion

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1

LAST_EPOCH_TAG = 1000
"""The producer's epoch before the last increase (int16). Kafka has it in memory only: there a
retried InitProducerId fences its own producer if the coordinator restarted in between."""

_KEY_VERSION = 0
_VALUE_VERSION = 1
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2

_STATES = {
    0: TransactionState.EMPTY,
    1: TransactionState.ONGOING,
    2: TransactionState.PREPARE_COMMIT,
    3: TransactionState.PREPARE_ABORT,
    4: TransactionState.COMPLETE_COMMIT,
    5: TransactionState.COMPLETE_ABORT,
}
"""Dead (6) and PrepareEpochFence (7) are never stored, also in Kafka."""
_STATE_IDS = {state: number for number, state in _STATES.items()}

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """All that is stored for a transactional id. Times are in milliseconds since the epoch."""

    producer: ProducerIdentity
    """The current identity; while a transaction is being ended, the identity of its markers."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    """The partitions of the transaction that is open or being ended."""
    updated_ms: int
    start_ms: int = NO_TIME
    """When the last transaction began; -1 before the first one."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before this record."""
    next_producer_id: int = NO_PRODUCER_ID
    """While a transaction is being ended: the new producer id (epoch 0) that follows, or -1."""
    version: TransactionVersion = TransactionVersion.V1
    """The protocol of the last transaction."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last increase, if the same producer uses the new one; else -1."""


def encode_key(transactional_id: str) -> bytes:
    """Encode TransactionLogKey version 0."""
    return Writer().i16(_KEY_VERSION).string(transactional_id).done()


def decode_key(data: bytes) -> str | None:
    """Return the transactional id, or None for a kind of record that is not supported."""
    reader = Reader(data)
    version = reader.i16()
    if version < 0:
        raise InvalidRecordError(f"invalid version {version} of a key in {TRANSACTIONS_TOPIC}")
    return reader.string() if version == _KEY_VERSION else None


def encode_record(transactional_id: str, value: TransactionValue) -> StateRecord:
    """Return the record that sets the value of a transactional id."""
    return StateRecord(encode_key(transactional_id), encode_value(value))


def encode_value(value: TransactionValue) -> bytes:
    """Encode TransactionLogValue version 1."""
    writer = Writer().i16(_VALUE_VERSION)
    writer.i64(value.producer.producer_id).i16(value.producer.epoch)
    writer.i32(value.timeout_ms).i8(_STATE_IDS[value.state])
    if value.state is TransactionState.EMPTY:
        writer.uvarint(0)  # null
    else:
        _write_partitions(writer, value.partitions)
    writer.i64(value.updated_ms).i64(value.start_ms)
    return writer.tagged_fields(_tags(value)).done()


def _write_partitions(writer: Writer, partitions: Iterable[TopicPartition]) -> None:
    topics = [
        (topic, [tp.partition for tp in group])
        for topic, group in groupby(sorted(partitions), key=lambda tp: tp.topic)
    ]
    writer.compact_count(len(topics))
    for topic, numbers in topics:
        writer.compact_string(topic).compact_count(len(numbers)).i32s(numbers).tagged_fields({})


def _tags(value: TransactionValue) -> dict[int, bytes]:
    tags = {}
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID_TAG] = _I64.pack(value.previous_producer_id)
    if value.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID_TAG] = _I64.pack(value.next_producer_id)
    if value.version is not TransactionVersion.V1:  # Kafka calls clients of V1 "version 0"
        tags[_CLIENT_VERSION_TAG] = _I16.pack(value.version)
    if value.last_epoch != NO_EPOCH:
        tags[LAST_EPOCH_TAG] = _I16.pack(value.last_epoch)
    return tags


def decode_value(data: bytes) -> TransactionValue:
    """Decode TransactionLogValue, versions 0 and 1."""
    reader = Reader(data)
    version = reader.i16()
    if not 0 <= version <= 1:
        raise FormatVersionError(f"version {version} of TransactionLogValue is not supported")
    compact = version >= 1
    producer = ProducerIdentity(reader.i64(), reader.i16())
    timeout = reader.i32()
    number = reader.i8()
    state = _STATES.get(number)
    if state is None:
        raise InvalidRecordError(f"invalid transaction state {number}")
    partitions = _read_partitions(reader, compact=compact)
    updated, start = reader.i64(), reader.i64()
    tags = reader.tagged_fields() if compact else {}
    client_version = _int(_I16, tags, _CLIENT_VERSION_TAG, 0)
    return TransactionValue(
        producer,
        timeout,
        state,
        partitions,
        updated,
        start,
        previous_producer_id=_int(_I64, tags, _PREVIOUS_ID_TAG, NO_PRODUCER_ID),
        next_producer_id=_int(_I64, tags, _NEXT_ID_TAG, NO_PRODUCER_ID),
        version=TransactionVersion.V2 if client_version >= 2 else TransactionVersion.V1,
        last_epoch=_int(_I16, tags, LAST_EPOCH_TAG, NO_EPOCH),
    )


def _read_partitions(reader: Reader, *, compact: bool) -> frozenset[TopicPartition]:
    partitions: list[TopicPartition] = []
    for _ in range(reader.count(compact=compact)):
        topic = reader.string(compact=compact)
        numbers = [reader.i32() for _ in range(reader.count(compact=compact))]
        partitions += [TopicPartition(topic, number) for number in numbers]
        if compact:
            reader.tagged_fields()
    return frozenset(partitions)


def _int(kind: struct.Struct, tags: dict[int, bytes], tag: int, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != kind.size:
        raise InvalidRecordError(f"tagged field {tag} has {len(data)} bytes, not {kind.size}")
    return int(kind.unpack(data)[0])
