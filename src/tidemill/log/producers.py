"""What a partition knows of its producers: epochs, sequences, the five-batch window, transactions.

Knows no files but their format: snapshots are in that of Apache Kafka (``ProducerStateManager``,
version 1), with up to five rows per producer, oldest first; Kafka's own reader keeps the last.

Sources: KIP-98 (sequences, transactions), KIP-360 (an unknown producer may start with any
sequence), KIP-890 (it may not where each transaction has an epoch of its own; a marker with a newer
epoch); Apache Kafka 4.3's ``ProducerAppendInfo``.
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
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tidemill.log.aborted import AbortedTransaction
from tidemill.log.batch import NO_SEQUENCE, SEQUENCES, BatchHeader
from tidemill.log.transactions import Marker, OpenTransaction, UnstableTransactions

WINDOW = 5
"""Batches per producer whose repetition is recognised: clients have at most five in flight."""

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
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer.

    Attributes:
        batches: the last ``WINDOW`` of its epoch, oldest first.
        had: how many sequences of its epoch, in a row up to its last, are known to be in the log.
            Behind a snapshot that is what the window tells.
        last_timestamp_ms: broker's time of the last append: what expiry counts from. Not the
            records' time, which may lie years back when history is replayed.
        last_offset: of its last data batch, or -1 where that is not known.
        coordinator_epoch: of its last marker, or -1.
        control_offset: of the last control batch of its epoch, or -1 where that is not known.
        txn_first_offset: where its open transaction begins, or -1.
    """

    __slots__ = (
        "batches",
        "control_offset",
        "coordinator_epoch",
        "epoch",
        "had",
        "last_offset",
        "last_timestamp_ms",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int, last_timestamp_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.batches: list[StoredBatch] = []
        self.had = 0
        self.last_offset = -1
        self.coordinator_epoch = -1
        self.control_offset = -1
        self.txn_first_offset = -1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def add(self, batch: StoredBatch) -> None:
        """The next batch of its epoch."""
        follows = self.batches and batch.first_sequence == (self.last_sequence + 1) % SEQUENCES
        self.had = (self.had if follows else 0) + batch.offset_delta + 1
        self.last_offset = batch.last_offset
        self.batches.append(batch)
        del self.batches[:-WINDOW]

    def begin(self, epoch: int) -> None:
        """A newer epoch: nothing of the one before counts."""
        self.epoch = epoch
        self.batches.clear()
        self.had = 0
        self.control_offset = -1


class ProducerStates:
    """All producers of one partition.

    Attributes:
        unstable: their transactions that hold back the last stable offset.
    """

    __slots__ = ("_entries", "unstable")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self.unstable = UnstableTransactions()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """The producer, if it is known."""
        return self._entries.get(producer_id)

    def open_transactions(self) -> list[OpenTransaction]:
        """Transactions without a marker, oldest first."""
        return [
            OpenTransaction(producer_id, self._entries[producer_id].epoch, first_offset)
            for producer_id, first_offset in self.unstable.open.items()
        ]

    def check(self, header: BatchHeader, *, from_zero: bool = False) -> int | None:
        """Whether a client's batch may be appended now.

        Args:
            from_zero: the producer has a new epoch for each transaction (KIP-890): where nothing is
                known of it, another sequence than 0 means that batches are missing before it.

        Returns:
            None if it may; the first offset of its earlier append if it is a repetition.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            OutOfOrderSequenceError: sequences are missing before it.
            DuplicateSequenceError: it repeats a batch from before the window.
            InvalidTxnStateError: the producer has an open transaction, and this is not part of it.
            InvalidRecordError: it has a producer id but no sequence or epoch.
        """
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecordError(
                f"producer {header.producer_id} sends epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}: an idempotent producer needs both"
            )
        entry = self._entries.get(header.producer_id)
        if entry is None:
            if from_zero and header.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id} is not known here and starts its transaction "
                    f"with sequence {header.base_sequence}, not 0"
                )
            return None
        _check_epoch(entry, header.producer_epoch)
        if header.producer_epoch > entry.epoch or not entry.batches:
            # Without batches, its epoch was begun by the marker that ended the one before.
            if header.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} with "
                    f"sequence {header.base_sequence}, not 0"
                )
        else:
            repeated = self._check_sequence(entry, header)
            if repeated is not None:
                return repeated
        _check_transaction(entry, header)
        return None

    def check_trusted(self, header: BatchHeader) -> None:
        """Whether a batch that the broker built for a producer may be appended now; it needs no
        sequence.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            InvalidTxnStateError: the producer has an open transaction, and this is not part of it.
        """
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            _check_epoch(entry, header.producer_epoch)
            _check_transaction(entry, header)

    def check_marker(self, marker: Marker) -> bool:
        """Whether a marker may be appended now; False where it would end nothing.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            TransactionCoordinatorFencedError: a newer coordinator epoch is known.
        """
        entry = self._entries.get(marker.producer_id)
        if entry is None or entry.txn_first_offset < 0:
            return False
        _check_epoch(entry, marker.epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"the marker of producer {marker.producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, the partition knows {entry.coordinator_epoch}"
            )
        return True

    @staticmethod
    def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> int | None:
        last = entry.batches[-1].last_sequence
        if header.base_sequence == (last + 1) % SEQUENCES:
            return None
        for batch in reversed(entry.batches):
            if (
                batch.last_sequence == header.last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch.first_offset
        # Sequences wrap: "before" is the shorter way round. And only what is known to be here has
        # been sent before: clients take this answer for a success.
        before = (entry.batches[0].first_sequence - header.last_sequence) % SEQUENCES
        if 0 < before < SEQUENCES // 2 and (last - header.base_sequence) % SEQUENCES < entry.had:
            raise DuplicateSequenceError(
                f"producer {entry.producer_id} repeats sequence {header.base_sequence}, which is "
                f"older than its last {WINDOW} batches"
            )
        raise OutOfOrderSequenceError(
            f"producer {entry.producer_id} sends sequence {header.base_sequence} after {last}"
        )

    def update(self, header: BatchHeader, first_offset: int, now_ms: int) -> None:
        """Remember an appended data batch, live or while the log is read again."""
        entry = self._at_epoch(header.producer_id, header.producer_epoch, now_ms)
        delta = header.last_offset_delta
        entry.last_offset = first_offset + delta
        # Compaction leaves empty batches, for their sequences; their transactions have ended.
        if header.is_transactional and entry.txn_first_offset < 0 and header.record_count:
            entry.txn_first_offset = first_offset
            self.unstable.begin(header.producer_id, first_offset)
        if header.base_sequence == NO_SEQUENCE:
            return
        entry.add(StoredBatch(header.last_sequence, first_offset + delta, delta, now_ms))

    def end(self, marker: Marker, offset: int, now_ms: int) -> AbortedTransaction | None:
        """Remember an appended marker, live or while the log is read again.

        Returns:
            What belongs into the index of aborted transactions, or None where it ended none or
            committed it.
        """
        entry = self._at_epoch(marker.producer_id, marker.epoch, now_ms)
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        entry.control_offset = offset
        if entry.txn_first_offset < 0:
            return None
        aborted = None if marker.commit else self.aborted_by(marker, offset)
        self.unstable.end(marker.producer_id, offset)
        entry.txn_first_offset = -1
        return aborted

    def see_control(self, header: BatchHeader, now_ms: int) -> None:
        """A control batch that is no marker (any more) is read again: its epoch counts."""
        entry = self._at_epoch(header.producer_id, header.producer_epoch, now_ms)
        entry.control_offset = header.last_offset

    def aborted_by(self, marker: Marker, offset: int) -> AbortedTransaction:
        """What an abort marker at ``offset`` would bring into the index; it has been checked."""
        first_offset = self.unstable.open[marker.producer_id]
        others = (at for each, at in self.unstable.open.items() if each != marker.producer_id)
        return AbortedTransaction(
            marker.producer_id, first_offset, offset, next(others, offset + 1)
        )

    def _at_epoch(self, producer_id: int, epoch: int, now_ms: int) -> ProducerEntry:
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, epoch, now_ms)
        elif epoch > entry.epoch:
            entry.begin(epoch)
        entry.last_timestamp_ms = now_ms
        return entry

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
            # An entry whose epoch was begun by a marker has it to keep.
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
                entry.add(StoredBatch(sequence, offset, delta, timestamp))
        open_ones = [entry for entry in states if entry.txn_first_offset >= 0]
        for entry in sorted(open_ones, key=lambda each: each.txn_first_offset):
            states.unstable.begin(entry.producer_id, entry.txn_first_offset)
        return states


def _check_epoch(entry: ProducerEntry, epoch: int) -> None:
    if epoch < entry.epoch:
        raise InvalidProducerEpochError(
            f"producer {entry.producer_id} has epoch {epoch}, the partition knows {entry.epoch}"
        )


def _check_transaction(entry: ProducerEntry, header: BatchHeader) -> None:
    if entry.txn_first_offset >= 0 and not header.is_transactional:
        raise InvalidTxnStateError(
            f"producer {entry.producer_id} has a transaction open since offset "
            f"{entry.txn_first_offset}: it can't write outside of it"
        )
