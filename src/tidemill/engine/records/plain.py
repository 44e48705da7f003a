"""Append plain records: encode them into one batch, and optionally only at an expected offset.

For protocols whose clients don't send encoded batches, and for writers that must not overwrite each
other's decisions (optimistic concurrency). Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.clock import Clock
from tidemill.engine.api import AppendedRecords, Durability, NewRecord
from tidemill.engine.error_log import StorageErrorLog
from tidemill.engine.errors import OffsetConflictError
from tidemill.engine.flusher import Flusher
from tidemill.engine.records.append import Appender
from tidemill.engine.records.partitions import Partitions
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.records import encode_batch
from tidemill.log.partition.partition import PartitionLog


class PlainAppender:
    """Encodes records into a batch and appends it.

    Args:
        partitions: finds the logs.
        appender: is informed about new data.
        flusher: makes the logs durable.
        clock: the time of records that carry none.
        errors: where storage errors are logged.
    """

    def __init__(
        self,
        partitions: Partitions,
        appender: Appender,
        flusher: Flusher,
        clock: Clock,
        errors: StorageErrorLog,
    ) -> None:
        self._partitions = partitions
        self._appender = appender
        self._flusher = flusher
        self._clock = clock
        self._errors = errors

    async def append(
        self,
        topic: str,
        partition: int,
        records: Sequence[NewRecord],
        *,
        expected_offset: int | None = None,
        durability: Durability = Durability.SYNCED,
    ) -> AppendedRecords:
        """Append records as one batch: all of them, or none.

        The log's end is compared and the batch is appended in one turn of the event loop. Of
        several writers that expect the same offset, one succeeds.

        Raises:
            OffsetConflictError: the log does not end at ``expected_offset``. It is raised when
                readers can see the records in between.
            InvalidRecordError: there are no records, or a record of a compacted topic has no key.
            BatchTooLargeError: the batch is larger than ``max.message.bytes``.
            InvalidTimestampError: a timestamp is too far from the broker's clock.
            TidemillError: as ``Partitions.writable``.
            StorageError: the disk refused. With a failed sync, the records' fate is unknown.
        """
        if not records:
            raise InvalidRecordError("there are no records to append")
        now_ms = self._clock.now_ms()
        log = self._partitions.writable(topic, partition)
        if expected_offset is not None and log.log_end_offset != expected_offset:
            end_offset = log.log_end_offset
            # A writer reads the other's records and retries: it must be able to see them.
            await self._durable(log, end_offset)
            raise OffsetConflictError(log.tp, expected_offset, end_offset)
        try:
            batch = encode_batch(records, timestamp_ms=now_ms)
            info = log.append(batch, now_ms=now_ms)
        except TidemillError as error:
            self._errors.report(error, log.tp)
            raise
        self._appender.written(log)
        if durability is Durability.SYNCED:
            await self._durable(log, info.last_offset + 1)
        append_time = info.log_append_time_ms
        return AppendedRecords(
            info.first_offset, info.last_offset, append_time if append_time >= 0 else None
        )

    async def _durable(self, log: PartitionLog, offset: int) -> None:
        if log.high_watermark < offset:
            countdown = self._flusher.countdown()
            self._flusher.wait(log, offset, countdown)
            await countdown.future
