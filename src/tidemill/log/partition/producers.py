"""The state of a partition's producers: epochs, sequences, their last batches, transactions.

``check`` decides whether a batch can be appended, ``update`` and ``end`` record what was appended.
Opens no files, but encodes snapshots in the format of Apache Kafka (``ProducerStateManager``,
version 1). There are up to five rows per producer, oldest first; Kafka's reader keeps the last row.

Sources: KIP-98 (sequences, transactions); KIP-360 (an unknown producer can start with any
sequence); KIP-890 (if each transaction has its own epoch, it must start with sequence 0; a marker
can have a newer epoch); Apache Kafka 4.3's ``ProducerAppendInfo``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tidemill.log.format.batch import NO_SEQUENCE, SEQUENCES, BatchHeader
from tidemill.log.format.crc import crc32c
from tidemill.log.format.markers import Marker
from tidemill.log.partition.transactions import OpenTransaction, UnstableTransactions
from tidemill.native import extension

WINDOW = extension.WINDOW
"""Batches per producer that are recognised as duplicates. Clients have at most five in flight."""

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


extension.prepare_producers(StoredBatch)


class ProducerEntry(extension.ProducerFields):
    """One producer.

    Attributes:
        batches: the last ``WINDOW`` batches of its epoch, oldest first.
        known_sequences: number of sequences without a gap, up to the last one of its epoch, that
            are known to be in the log. After a snapshot is loaded, only ``batches`` count.
        last_timestamp_ms: the broker's time of the last append. Producers expire by it, because the
            records' own time can be years ago when history is replayed.
        last_offset: last offset of its last data batch, or -1 if it is unknown.
        coordinator_epoch: the coordinator epoch of its last marker, or -1.
        control_offset: offset of the last control batch of its epoch, or -1 if it is unknown.
        txn_first_offset: first offset of its open transaction, or -1.
    """

    __slots__ = ("control_offset", "coordinator_epoch", "producer_id")

    batches: list[StoredBatch]

    def __init__(self, producer_id: int, epoch: int, last_timestamp_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.batches = []
        self.known_sequences = 0
        self.last_offset = self.coordinator_epoch = self.control_offset = -1
        self.txn_first_offset = -1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or -1."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def begin(self, epoch: int) -> None:
        """Start a newer epoch, and drop the batches of the old one."""
        self.epoch = epoch
        self.batches.clear()
        self.known_sequences = 0
        self.control_offset = -1


class ProducerStates:
    """All producers of one partition.

    Attributes:
        unstable: transactions that hold back the last stable offset.
    """

    __slots__ = ("_entries", "unstable")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self.unstable = UnstableTransactions()

    def __len__(self) -> int:
        return len(self._entries)

    def show_in(self, head: extension.Head) -> None:
        """Show the producers, and the transactions that end with a sync, to native code."""
        head.producers = self._entries
        head.ended, head.settle = self.unstable.ended, self.unstable.settle

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer, or None if it is unknown."""
        return self._entries.get(producer_id)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions without a marker, oldest first."""
        return [
            OpenTransaction(producer_id, self._entries[producer_id].epoch, first_offset)
            for producer_id, first_offset in self.unstable.open.items()
        ]

    def check(self, header: BatchHeader, *, from_zero: bool = False) -> int | None:
        """Check that a client's batch can be appended now.

        Args:
            from_zero: the producer has a new epoch for each transaction (KIP-890). If it is unknown
                here, a sequence other than 0 means that batches before this one are missing.

        Returns:
            None if the batch can be appended. If it is a duplicate, the first offset of the earlier
            append.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            OutOfOrderSequenceError: sequences before this batch are missing.
            DuplicateSequenceError: it repeats a batch that is older than the last ``WINDOW`` ones.
            InvalidTxnStateError: the producer has an open transaction that this is not part of.
            InvalidRecordError: the batch has a producer id, but no sequence or epoch.
        """
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecordError(
                f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}: an idempotent producer needs both"
            )
        entry = self._entries.get(header.producer_id)
        if entry is None:
            if from_zero and header.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id} is unknown here, but starts its transaction "
                    f"with sequence {header.base_sequence}, not 0"
                )
            return None
        _check_epoch(entry, header.producer_epoch)
        if header.producer_epoch > entry.epoch or not entry.batches:
            # Without batches, a marker has started this epoch when it ended the last transaction.
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
        """Check that a batch which the broker built for a producer can be appended now.

        Such a batch needs no sequence.

        Raises:
            InvalidProducerEpochError: a newer epoch is known.
            InvalidTxnStateError: the producer has an open transaction that this is not part of.
        """
        entry = self._entries.get(header.producer_id)
        if entry is not None:
            _check_epoch(entry, header.producer_epoch)
            _check_transaction(entry, header)

    def check_marker(self, marker: Marker) -> bool:
        """Check that a marker can be appended now; return False if it would end no transaction.

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
                f"{marker.coordinator_epoch}, but epoch {entry.coordinator_epoch} is known"
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
        # Sequences wrap: "before" is the shorter way round. Clients take this error for a success,
        # so it is raised only if the sequences are known to be in the log.
        before = (entry.batches[0].first_sequence - header.last_sequence) % SEQUENCES
        distance = (last - header.base_sequence) % SEQUENCES
        if 0 < before < SEQUENCES // 2 and distance < entry.known_sequences:
            raise DuplicateSequenceError(
                f"producer {entry.producer_id} repeats sequence {header.base_sequence}, which is "
                f"older than its last {WINDOW} batches"
            )
        raise OutOfOrderSequenceError(
            f"producer {entry.producer_id} sent sequence {header.base_sequence} after {last}"
        )

    def update(self, header: BatchHeader, first_offset: int, now_ms: int) -> None:
        """Record a data batch that was appended, or that is read while the log is replayed."""
        entry = self._at_epoch(header.producer_id, header.producer_epoch, now_ms)
        delta = header.last_offset_delta
        entry.last_offset = first_offset + delta
        # Compaction keeps empty batches for their sequences. Their transactions have ended.
        if header.is_transactional and entry.txn_first_offset < 0 and header.record_count:
            entry.txn_first_offset = first_offset
            self.unstable.begin(header.producer_id, first_offset)
        if header.base_sequence == NO_SEQUENCE:
            return
        entry.add(header.base_sequence, entry.last_offset, delta, now_ms)

    def end(self, marker: Marker, offset: int, now_ms: int) -> AbortedTransaction | None:
        """Record a marker that was appended, or that is read while the log is replayed.

        Returns:
            The entry for the index of aborted transactions; None if the marker has committed a
            transaction or ended none.
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
        """Record the epoch of a replayed control batch that is not a marker, or was emptied."""
        entry = self._at_epoch(header.producer_id, header.producer_epoch, now_ms)
        entry.control_offset = header.last_offset

    def aborted_by(self, marker: Marker, offset: int) -> AbortedTransaction:
        """Return the index entry for a checked abort marker at ``offset``."""
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
        """Remove producers without an append for ``expiry_ms``; return how many were removed.

        Producers with an open transaction stay.
        """
        gone = [
            entry.producer_id
            for entry in self._entries.values()
            if now_ms - entry.last_timestamp_ms >= expiry_ms and entry.txn_first_offset < 0
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        return len(gone)

    def encode(self) -> bytes:
        """Return a snapshot."""
        rows = bytearray()
        count = 0
        for entry in self._entries.values():
            # A producer without batches gets a row too: a marker has started its epoch.
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
        """Return the producers of a snapshot.

        Raises:
            ValueError: the snapshot is cut, damaged or of another version.
        """
        if len(data) < _HEAD.size:
            raise ValueError(f"a snapshot of {len(data)} bytes is cut")
        version, crc, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise ValueError(f"unknown snapshot version {version}")
        if crc32c(memoryview(data)[_CRC_START:]) != crc:
            raise ValueError("wrong CRC of the snapshot")
        if len(data) != _HEAD.size + count * _ROW.size:
            raise ValueError(f"a snapshot with {count} rows can't have {len(data)} bytes")
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
                entry.add((sequence - delta) % SEQUENCES, offset, delta, timestamp)
        open_ones = [entry for entry in states if entry.txn_first_offset >= 0]
        for entry in sorted(open_ones, key=lambda each: each.txn_first_offset):
            states.unstable.begin(entry.producer_id, entry.txn_first_offset)
        return states


def _check_epoch(entry: ProducerEntry, epoch: int) -> None:
    if epoch < entry.epoch:
        raise InvalidProducerEpochError(
            f"producer {entry.producer_id} has epoch {epoch}, but epoch {entry.epoch} is known"
        )


def _check_transaction(entry: ProducerEntry, header: BatchHeader) -> None:
    if entry.txn_first_offset >= 0 and not header.is_transactional:
        raise InvalidTxnStateError(
            f"producer {entry.producer_id} has a transaction open since offset "
            f"{entry.txn_first_offset} and can't write outside of it"
        )
