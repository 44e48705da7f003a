"""The log of a state machine: records are appended, synced, and only then replayed.

This is state machine replication with one replica. Recovery is the same replay, from the start of
the log. A record can be part of a producer's transaction; then the transaction's marker decides
whether it counts. Knows logs and the flusher, and nothing of what the records mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.engine.flusher import Flusher, settle
from tidemill.errors import TidemillError
from tidemill.log.errors import (
    CorruptLogError,
    FormatVersionError,
    InvalidRecordError,
    StorageError,
)
from tidemill.log.format.batch import NO_PRODUCER_ID, BatchHeader, iter_headers
from tidemill.log.format.markers import Marker, decode_marker
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.partition.append import AppendInfo
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.outcome import StateRecord
from tidemill.state.types import NO_PRODUCER, ProducerIdentity

READ_BYTES = 1 << 20
BATCH_BYTES = 1 << 18
"""Larger outcomes are split into several batches. A larger record gets a batch of its own."""

Done = Callable[[Exception | None], None]


class StateLogRecord(NamedTuple):
    """One record of a state machine."""

    key: bytes
    value: bytes | None
    log_offset: int
    producer_id: int = NO_PRODUCER_ID
    """The producer of the open transaction that it is part of; -1 if it counts already."""


class StateLog:
    """Appends state records to one internal partition.

    Args:
        clock: gives the records their timestamps.
    """

    def __init__(self, log: PartitionLog, flusher: Flusher, clock: Clock) -> None:
        self.log = log
        self._flusher = flusher
        self._clock = clock

    def recover(self) -> list[StateLogRecord]:
        """Return the records that matter, in the order of the log.

        Of each key this is the last record that is not part of an aborted or open transaction. Of
        open transactions it is the last record of each producer and key since the key was last
        deleted. Records that compaction can remove are left out.

        Raises:
            CorruptLogError: the log is damaged.
        """
        settled: dict[bytes, StateLogRecord] = {}
        pending: dict[int, dict[bytes, StateLogRecord]] = {}
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

    @contextmanager
    def naming_place(self) -> Iterator[None]:
        """Add the folder to the error of a record that can't be replayed."""
        folder = self.log.chain.folder
        try:
            yield
        except InvalidRecordError as error:
            raise CorruptLogError(
                f"{folder} has a record that can't be read: {error}",
                path=folder,
                position=0,
                hint="Restore the folder from a backup.",
            ) from error
        except FormatVersionError as error:
            raise FormatVersionError(f"{folder}: {error}", hint=error.hint) from error

    def latest(self) -> dict[bytes, bytes | None]:
        """Return the last value of each key, for a log without transactions."""
        return {
            record.key: record.value
            for record in self.recover()
            if record.producer_id == NO_PRODUCER_ID
        }

    def _entries(self) -> Iterator[StateLogRecord | Marker]:
        """Yield all records and markers of the log, oldest first."""
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
        """Append ``records``, all or none. Call ``done`` when they are on disk, or with the error.

        Calls of ``done`` come in the order of submission, so it can replay into the state. If the
        records take several batches, a power cut before ``done`` can leave the first of them.

        Args:
            producer: the records are part of this producer's transaction; by default of none.

        Returns:
            The offset of the first record. The others follow it. -1 where nothing was appended;
            then ``done`` has been called already.
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

    async def write(self, records: Sequence[StateRecord], ended: Done, failure: str) -> None:
        """Submit ``records``, and wait until they are on disk.

        Args:
            ended: called before this returns, and also if its caller is gone: see ``submit``.
            failure: what to say of an error that is not one of the broker's own.

        Raises:
            TidemillError: the records could not be written.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            ended(error)
            if error is not None and not isinstance(error, TidemillError):
                error = StorageError(f"{failure}: {error}")
            settle(written, error)

        self.submit(records, done)
        await written

    def append(
        self, records: Sequence[StateRecord], producer: ProducerIdentity = NO_PRODUCER
    ) -> AppendInfo:
        """Append ``records``, all or none, without waiting. The next sync makes them durable.

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
        """End a producer's transaction. Call ``done`` when that is on disk, or with the error.

        Calls of ``done`` come in order with those of ``submit``.

        Returns:
            Whether a marker was appended. It is not where the producer has no open transaction in
            this log; then ``done`` comes when everything appended before is on disk, which includes
            an earlier marker. Neither is it where the log refuses.
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
        """Call ``done`` once everything submitted before is durable and its ``done`` was called."""
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
) -> Iterator[StateLogRecord | Marker]:
    """Yield the records or the marker of one batch from ``first_offset`` on."""
    if header.is_control:
        marker = decode_marker(batch)
        if marker is not None:
            yield marker
        return
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    for record in decode_records(batch):
        if record.offset >= first_offset and record.key is not None:
            value = None if record.value is None else bytes(record.value)
            yield StateLogRecord(bytes(record.key), value, record.offset, producer_id)
