"""A state machine's own log: records are appended, synced, and only then replayed.

State machine replication with one replica: recovery is the same replay, from the start of the
log. Records may be part of a producer's transaction; then its marker decides whether they count.
Knows logs and the flusher, and nothing of what the records mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidemill.broker.flusher import Flusher
from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.log.batch import NO_PRODUCER_ID, BatchHeader, iter_headers
from tidemill.log.partition import AppendInfo, PartitionLog
from tidemill.log.records import NewRecord, decode_records, encode_batch
from tidemill.log.transactions import Marker, decode_marker
from tidemill.state.outcome import StateRecord
from tidemill.state.types import NO_PRODUCER, ProducerIdentity

READ_BYTES = 1 << 20
BATCH_BYTES = 1 << 18
"""More records than that go into several batches. A record that is larger has one for itself."""


Done = Callable[[Exception | None], None]


class JournalRecord(NamedTuple):
    """One record of a journal."""

    key: bytes
    value: bytes | None
    log_offset: int
    producer_id: int = NO_PRODUCER_ID
    """Whose transaction it belongs to, where that has not ended; else -1."""


class Journal:
    """Appends state records to one internal partition.

    Args:
        log: the internal partition.
        flusher: what makes it durable.
        clock: gives the records their timestamps.
    """

    def __init__(self, log: PartitionLog, flusher: Flusher, clock: Clock) -> None:
        self.log = log
        self._flusher = flusher
        self._clock = clock

    def recover(self) -> list[JournalRecord]:
        """The records that count, in the order of the log: of each key the last one that is not
        part of an aborted or open transaction; and those of open transactions, the last of each
        producer and key since the key was last deleted. What compaction may remove is not among
        them.

        Raises:
            CorruptLogError: the log is damaged.
        """
        settled: dict[bytes, JournalRecord] = {}
        pending: dict[int, dict[bytes, JournalRecord]] = {}
        for entry in self._entries():
            if isinstance(entry, Marker):
                ended = pending.pop(entry.producer_id, {})
                for record in ended.values() if entry.commit else ():
                    before = settled.get(record.key)
                    if before is None or before.log_offset < record.log_offset:
                        settled[record.key] = record._replace(producer_id=NO_PRODUCER_ID)
            elif entry.producer_id == NO_PRODUCER_ID:
                settled[entry.key] = entry
                if entry.value is None:
                    for each in pending.values():
                        each.pop(entry.key, None)
            else:
                pending.setdefault(entry.producer_id, {})[entry.key] = entry
        records = list(settled.values())
        for each in pending.values():
            records += each.values()
        return sorted(records, key=lambda record: record.log_offset)

    def latest(self) -> dict[bytes, bytes | None]:
        """The last value of each key, for a journal without transactions.

        Raises:
            CorruptLogError: the log is damaged.
        """
        return {
            record.key: record.value
            for record in self.recover()
            if record.producer_id == NO_PRODUCER_ID
        }

    def _entries(self) -> Iterator[JournalRecord | Marker]:
        """All that the log holds, oldest first.

        Raises:
            CorruptLogError: the log is damaged.
        """
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            piece = self.log.read(offset, READ_BYTES, limit_offset=self.log.log_end_offset)
            if piece is None:
                return
            data = memoryview(piece.load())
            for position, header in iter_headers(data):
                batch = data[position : position + header.size]
                if header.last_offset >= offset:
                    yield from _entries_of(batch, header, offset)
                    offset = header.last_offset + 1

    def submit(
        self,
        records: Sequence[StateRecord],
        done: Done,
        producer: ProducerIdentity = NO_PRODUCER,
    ) -> int:
        """Append ``records``, all or none; call ``done`` when they are on disk, or with the error.

        Calls come in the order of submission, so ``done`` may replay into the state. Where they
        take several batches, a power cut before ``done`` may leave the first of them.

        Args:
            producer: whose transaction they are part of, or nobody's.

        Returns:
            Offset of the first record, the others follow it; -1 where nothing was appended (then
            ``done`` has been called already).
        """
        if not records:
            done(None)
            return -1
        try:
            info = self.append(records, producer)
        except TidemillError as error:
            done(error)
            return -1
        self._flusher.call_when_durable(self.log, info.last_offset + 1, done)
        return info.first_offset

    def append(
        self, records: Sequence[StateRecord], producer: ProducerIdentity = NO_PRODUCER
    ) -> AppendInfo:
        """Append ``records``, all or none, for which nobody waits yet; they reach the disk with
        the next sync.

        Raises:
            DiskFullError, StorageError: the disk refuses.
            BatchTooLargeError: one record is larger than ``validate.BUILT_BYTES``.
            InvalidProducerEpochError, InvalidTxnStateError: the log refuses the producer.
        """
        now_ms = self._clock.now_ms()
        batches = bytearray()
        for part in _parts(records):
            batches += encode_batch(
                part,
                timestamp_ms=now_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transactional=producer != NO_PRODUCER,
            )
        info = self.log.append(batches, now_ms=now_ms, from_client=False)
        self._flusher.written(self.log)
        return info

    def append_marker(self, marker: Marker, done: Done) -> bool:
        """End a producer's transaction; call ``done`` when that is on disk, or with the error.

        Calls come in order with those of ``submit``.

        Returns:
            Whether a marker was appended: not where the producer has no open transaction in this
            log, nor where the log refuses. In the first case ``done`` comes when all that was
            appended before is on disk, so also an earlier marker.
        """
        try:
            info = self.log.append_marker(marker, now_ms=self._clock.now_ms())
        except TidemillError as error:
            done(error)
            return False
        if info is None:
            self.when_settled(done)
            return False
        self._flusher.written(self.log)
        self._flusher.call_when_durable(self.log, info.last_offset + 1, done)
        return True

    def when_settled(self, done: Done) -> None:
        """Call ``done`` once all that was submitted before is durable and its ``done`` called."""
        self._flusher.call_when_durable(self.log, self.log.log_end_offset, done)


def _parts(records: Sequence[StateRecord]) -> Iterator[list[NewRecord]]:
    part: list[NewRecord] = []
    size = 0
    for record in records:
        size += len(record.key) + len(record.value or b"")
        if part and size > BATCH_BYTES:
            yield part
            part, size = [], len(record.key) + len(record.value or b"")
        part.append(NewRecord(record.key, record.value))
    yield part


def _entries_of(
    batch: memoryview, header: BatchHeader, first_offset: int
) -> Iterator[JournalRecord | Marker]:
    """What one batch holds from ``first_offset`` on."""
    if header.is_control:
        marker = decode_marker(batch)
        if marker is not None:
            yield marker
        return
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    for record in decode_records(batch):
        if record.offset >= first_offset and record.key is not None:
            value = None if record.value is None else bytes(record.value)
            yield JournalRecord(bytes(record.key), value, record.offset, producer_id)
