"""What a partition knows of its idempotent producers: epochs, sequences, the five-batch window.

Knows no files but their format: snapshots are in that of Apache Kafka (``ProducerStateManager``,
version 1), with up to five rows per producer, oldest first; Kafka's own reader keeps the last.

Sources: KIP-98 (sequences), KIP-360 (an unknown producer may start with any sequence).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceError,
)
from tidemill.log.batch import NO_SEQUENCE, BatchHeader

WINDOW = 5
"""Batches per producer whose repetition is recognised: clients have at most five in flight."""

_SEQUENCES = 1 << 31
_VERSION = 1
_HEAD = struct.Struct(">hIi")
_ROW = struct.Struct(">qhiqiqiq")
_CRC_START = 6


class StoredBatch(NamedTuple):
    """One appended batch of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer.

    Attributes:
        batches: the last ``WINDOW`` of its epoch, oldest first.
        last_timestamp_ms: broker's time of the last append: what expiry counts from. Not the
            records' time, which may lie years back when history is replayed.
        coordinator_epoch, txn_first_offset: room for transactions; -1 without.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int, last_timestamp_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.batches: list[StoredBatch] = []
        self.coordinator_epoch = -1
        self.txn_first_offset = -1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """The producer, if it is known."""
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> int | None:
        """Whether a batch may be appended now.

        Returns:
            None if it may; the first offset of its earlier append if it is a repetition.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            OutOfOrderSequenceError: sequences are missing before it.
            DuplicateSequenceError: it repeats a batch from before the window.
            InvalidRecordError: it has a producer id but no sequence or epoch.
        """
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecordError(
                f"producer {header.producer_id} sends epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}: an idempotent producer needs both"
            )
        entry = self._entries.get(header.producer_id)
        if entry is None or not entry.batches:
            return None
        if header.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"the partition knows {entry.epoch}"
            )
        if header.producer_epoch > entry.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} with "
                    f"sequence {header.base_sequence}, not 0"
                )
            return None
        return self._check_sequence(entry, header)

    @staticmethod
    def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> int | None:
        last = entry.batches[-1].last_sequence
        if header.base_sequence == (last + 1) % _SEQUENCES:
            return None
        for batch in reversed(entry.batches):
            if (
                batch.last_sequence == header.last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch.first_offset
        # Sequences wrap: "before" is the shorter way round.
        behind = (entry.batches[0].first_sequence - header.last_sequence) % _SEQUENCES
        if 0 < behind < _SEQUENCES // 2 and len(entry.batches) == WINDOW:
            raise DuplicateSequenceError(
                f"producer {entry.producer_id} repeats sequence {header.base_sequence}, which is "
                f"older than its last {WINDOW} batches"
            )
        raise OutOfOrderSequenceError(
            f"producer {entry.producer_id} sends sequence {header.base_sequence} after {last}"
        )

    def update(self, header: BatchHeader, first_offset: int, now_ms: int) -> None:
        """Remember an appended batch, live or while the log is read again."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerEntry(header.producer_id, header.producer_epoch, now_ms)
            self._entries[header.producer_id] = entry
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_timestamp_ms = now_ms
        if header.base_sequence == NO_SEQUENCE:
            return  # a control batch: it has an epoch, and no sequence
        delta = header.last_offset_delta
        entry.batches.append(StoredBatch(header.last_sequence, first_offset + delta, delta, now_ms))
        if len(entry.batches) > WINDOW:
            del entry.batches[0]

    def expire(self, now_ms: int, expiry_ms: int) -> int:
        """Forget producers that have been silent for ``expiry_ms``; returns how many."""
        gone = [
            entry.producer_id
            for entry in self._entries.values()
            if now_ms - entry.last_timestamp_ms >= expiry_ms and entry.txn_first_offset < 0
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        return len(gone)

    def encode(self) -> bytes:
        """A snapshot."""
        rows = bytearray()
        count = 0
        for entry in self._entries.values():
            # An entry whose only batch was a control batch still has its epoch to keep.
            for batch in entry.batches or [StoredBatch(-1, -1, 0, entry.last_timestamp_ms)]:
                rows += _ROW.pack(
                    entry.producer_id,
                    entry.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    batch.timestamp,
                    entry.coordinator_epoch,
                    entry.txn_first_offset,
                )
                count += 1
        data = bytearray(_HEAD.pack(_VERSION, 0, count)) + rows
        data[2:6] = crc32c(memoryview(data)[_CRC_START:]).to_bytes(4, "big")
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> ProducerStates:
        """The producers of a snapshot.

        Raises:
            ValueError: it is torn, damaged or of another version.
        """
        if len(data) < _HEAD.size:
            raise ValueError(f"a snapshot of {len(data)} bytes is torn")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"snapshot version {version} is not known")
        if crc32c(memoryview(data)[_CRC_START:]) != crc:
            raise ValueError("the snapshot's CRC is wrong")
        if len(data) != _HEAD.size + count * _ROW.size:
            raise ValueError(f"a snapshot of {len(data)} bytes can't hold {count} rows")
        states = cls()
        for row in _ROW.iter_unpack(data[_HEAD.size :]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator, txn = row
            entry = states._entries.get(producer_id)
            if entry is None:
                entry = states._entries[producer_id] = ProducerEntry(producer_id, epoch, timestamp)
            entry.epoch = epoch
            entry.last_timestamp_ms = timestamp
            entry.coordinator_epoch = coordinator
            entry.txn_first_offset = txn
            if sequence >= 0:
                entry.batches.append(StoredBatch(sequence, offset, delta, timestamp))
                del entry.batches[:-WINDOW]
        return states
