"""Append to a partition: batches of clients, batches of the broker, and transaction markers.

Decides whether batches can be appended, and starts new segments. Native code (``append.c``) finds
the place of batches, stamps, writes and records them, and calls ``prepare``, ``roll`` and ``write``
where it needs more than an open file. ``append_run`` does that for the batches that clients sent
together, to many partitions. ``sync`` decides when they are durable. Only one thread appends. Knows
no waiting and no protocol.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.aborted_index import AbortedIndex, AbortedTransaction
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import StorageError
from tidemill.log.format.batch import BatchHeader, Buffer, parse_header
from tidemill.log.format.crc import crc32c
from tidemill.log.format.markers import Marker, encode_marker
from tidemill.log.format.validate import (
    LOG_APPEND_TIME,
    Checked,
    check_client_batch,
    trusted_batches,
    with_append_time,
)
from tidemill.log.names import TXN_INDEX
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.lazy_producers import LazyProducers
from tidemill.log.partition.recovery_point import RecoveryPoint
from tidemill.log.partition.refused import RefusedBatches
from tidemill.log.partition.sync import SyncState, sync_name
from tidemill.log.steps import run_steps
from tidemill.native import extension


def append_run(
    run: list[Any], targets: dict[Any, list[int]], results: list[Any], now_ms: int
) -> list[int]:
    """Append checked batches to many logs with native code, each log's with one write.

    Args:
        run: for each batch its target, its bytes, and the facts about it (see ``engine.runs``).
        targets: for each target, whose ``log`` is the partition's, the places of its batches.
        results: gets the base offset, -1 and the start of the log for each batch that is appended.

    Returns:
        For each target, how many of its batches were appended. The next one failed: its result is
        the error. Or it needs ``Appender.append``, because its producer has a new epoch, for
        example: then its result is not set.
    """
    return extension.append_run(run, targets, results, now_ms)


class AppendInfo(NamedTuple):
    """The offsets of appended batches. With ``duplicate`` they were appended earlier."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False


class Appender:
    """Writes to the end of a segment chain.

    Attributes:
        refused: batches that were refused with a retriable error.
    """

    __slots__ = ("_chain", "_head", "_point", "_producers", "_sync", "refused")

    def __init__(
        self, chain: SegmentChain, producers: LazyProducers, sync: SyncState, point: RecoveryPoint
    ) -> None:
        self._chain = chain
        self._head = chain.head
        self._producers = producers
        self._sync = sync
        self._point = point
        self.refused = RefusedBatches()
        self._head.refused = self.refused.first

    def use_config(self, config: LogConfig) -> None:
        """Let the configs of the topic count, which can be replaced at any time."""
        head = self._head
        head.config = config
        head.segment_bytes = config.segment_bytes
        head.index_bytes = config.segment_index_bytes
        head.index_interval = config.index_interval_bytes
        self._vary_age(config)

    def _vary_age(self, config: LogConfig) -> None:
        """Let segments of partitions close at different ages (``segment.jitter.ms``)."""
        limit = config.max_segment_ms
        if config.segment_jitter_ms:
            seed = crc32c(f"{self._chain.tp}/{self._chain.active.base_offset}".encode())
            limit -= min(seed % (config.segment_jitter_ms + 1), limit)
        self._head.segment_ms = limit

    def append(
        self, records: Buffer | Checked, now_ms: int, from_client: bool, from_zero: bool
    ) -> AppendInfo:
        """Append batches; see ``PartitionLog.append``."""
        chain = self._chain
        if chain.failure is not None:
            raise chain.failure.with_traceback(None)
        checked = self._checked(records, now_ms, from_client)
        append_time = -1
        if from_client and self._head.config.message_timestamp_type == LOG_APPEND_TIME:
            append_time = now_ms
            checked = with_append_time(checked, now_ms)
        data, headers, _ = checked
        if headers[0].producer_id >= 0 or len(headers) > 1:
            repeated = self._check_producers(headers, from_client, from_zero)
            if repeated is not None:
                last = repeated + headers[0].last_offset_delta
                return AppendInfo(repeated, last, append_time, duplicate=True)
        first = offset = self._head.end_offset
        self._put(data, headers, now_ms)
        for header in headers:
            if header.producer_id >= 0:
                self._producers.states.update(header, offset, now_ms)
                if self.refused.first:
                    self.refused.forget(header.producer_id)
            offset += header.last_offset_delta + 1
        return AppendInfo(first, offset - 1, append_time)

    def _put(self, data: Buffer, headers: list[BatchHeader], now_ms: int) -> None:
        batches = [(each.size, each.last_offset_delta + 1, each.max_timestamp) for each in headers]
        extension.append(self, self._head, data, batches, now_ms)

    def _checked(self, records: Buffer | Checked, now_ms: int, from_client: bool) -> Checked:
        if isinstance(records, Checked):
            return records
        if not from_client:
            return trusted_batches(records)
        return run_steps(check_client_batch(records, self._head.config, now_ms))

    def _check_producers(
        self, headers: list[BatchHeader], from_client: bool, from_zero: bool
    ) -> int | None:
        """Return the first offset of the earlier append if a batch is a duplicate, else None."""
        if not from_client:
            for header in headers:
                if header.producer_id >= 0:
                    self._producers.states.check_trusted(header)
            return None
        (header,) = headers
        states = self._producers.states
        if self.refused.first and states.get(header.producer_id) is None:
            self.refused.check(header)
        return states.check(header, from_zero=from_zero)

    def append_marker(self, marker: Marker, now_ms: int) -> AppendInfo | None:
        """Append a transaction marker; see ``PartitionLog.append_marker``."""
        chain = self._chain
        if chain.failure is not None:
            raise chain.failure.with_traceback(None)
        if not self._producers.has_open_transactions:
            return None
        states = self._producers.states
        if not states.check_marker(marker):
            return None
        stamped = self._head.config.message_timestamp_type == LOG_APPEND_TIME
        batch = encode_marker(marker, timestamp_ms=now_ms, log_append_time=stamped)
        header = parse_header(batch)
        offset = self._head.end_offset
        extension.make_room(self, self._head, header.size, 1, now_ms, now_ms)
        segment, index = chain.active, None
        if not marker.commit:
            index = self._write_aborted(segment, states.aborted_by(marker, offset))
        try:
            self._put(batch, [header], now_ms)
        except Exception:
            if index is not None:
                self._retract_aborted(segment, index)
            raise
        if index is not None:
            index.accept()
            if segment.aborted is None:
                segment.aborted = index
                chain.aborted_changed()
        states.end(marker, offset, now_ms)
        return AppendInfo(offset, offset, now_ms if stamped else -1)

    def _write_aborted(self, segment: Segment, entry: AbortedTransaction) -> AbortedIndex:
        index = segment.aborted or AbortedIndex(named=False)
        index.write(self._chain.env, segment.path(TXN_INDEX), entry)
        return index

    def _retract_aborted(self, segment: Segment, index: AbortedIndex) -> None:
        # Another batch will get the marker's offset, so the entry must not stay.
        try:
            index.retract(self._chain.env, segment.path(TXN_INDEX))
        except StorageError as error:
            self._chain.go_offline(error)

    # --- what native code calls ------------------------------------------------------------------

    def prepare(self) -> None:
        """Load what decides whether batches go into the active segment.

        Raises:
            CorruptLogError, StorageError: the partition is offline, or the segment can't be read.
        """
        chain = self._chain
        if chain.failure is not None:
            raise chain.failure.with_traceback(None)
        if chain.head.is_offline:
            self.lose(None)  # there was no memory for that
        chain.active.open_table()
        chain.active.read_first_timestamp()

    def write(self, buffers: tuple[Buffer, ...]) -> None:
        """Write batches to the active segment's file, completely or not at all.

        Raises:
            DiskFullError, StorageError: see ``LogFile.append``. The partition is offline if the
                write could not be undone.
        """
        file = self._chain.active.file
        try:
            file.append(*buffers)
        except StorageError as error:
            if file.broken:
                self._chain.go_offline(error)
            raise

    def lose(self, cause: Exception | None) -> None:
        """Go offline: batches were written, but only a part of what belongs to them is recorded.

        Raises:
            StorageError: always.
        """
        chain = self._chain
        error = StorageError(
            f"{chain.tp} is offline until the broker is restarted: batches that were written to "
            f"{chain.active.file.path} could not be recorded in memory ({cause!r})"
        )
        chain.go_offline(error)
        chain.active.file.broken = True
        with suppress(StorageError, MemoryError):  # the next checkpoint tries it again
            chain.cut_back()
        raise error from cause

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and start a new one; return the active segment.

        An empty active segment stays. The next sync includes the closed one and its indexes. Where
        the journal does not say what was promised, the closed segment and its folder entry are
        synced here: a power cut could keep the new segment and lose the end of the old one, and
        recovery could not tell that from damage. That can take long while the disk is busy.
        Everything that can fail for lack of space is done before the chain changes.

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError, StorageError: the segment can't be created. Nothing has changed.
        """
        chain = self._chain
        old = chain.active
        if not old.size:
            return old
        old.write_index(seal=True)
        self._point.write_snapshot()
        if not self._is_proven_by_journal:
            self._sync_segment(old)
        elif old is chain.segments[0]:
            # Recovery drops what follows a lost segment, but it must find the first one.
            sync_name(chain.env, old)
        new = Segment.create(chain.env, chain.folder, chain.head.end_offset, now_ms)
        old.close_index()
        chain.closed_bytes += old.size
        self._sync.add_closed(old)
        chain.add(new)
        self._vary_age(self._head.config)
        self._point.pending = chain.head.end_offset
        return new

    @property
    def _is_proven_by_journal(self) -> bool:
        """Whether recovery knows from the journal what was promised, in closed segments too.

        Of a compacted partition, it restores only the last segment.
        """
        chain = self._chain
        return chain.env.copies.is_open and chain.head.topic_id != b"" and not chain.sparse

    def _sync_segment(self, segment: Segment) -> None:
        if segment.size > segment.synced_size:
            segment.file.datasync()
            segment.synced_size = segment.size
        sync_name(self._chain.env, segment)
