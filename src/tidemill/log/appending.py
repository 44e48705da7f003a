"""Appending to a partition's log: batches of clients and of the broker, and transaction markers.

Decides where batches go and when a segment is full; when they count as written is ``partition``'s.
One thread appends. Knows no waiting and no protocol.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import InvalidRecordError, StorageError
from tidemill.log import maintenance
from tidemill.log.aborted import AbortedIndex, AbortedTransaction
from tidemill.log.batch import BatchHeader, Buffer, parse_header, stamp
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment
from tidemill.log.names import TXN_INDEX, TopicPartition
from tidemill.log.producers import ProducerStates
from tidemill.log.producing import ProducingLog
from tidemill.log.recovery_point import RecoveryPoint
from tidemill.log.rolling import must_roll
from tidemill.log.segment import Segment
from tidemill.log.transactions import Marker, encode_marker
from tidemill.log.validate import LOG_APPEND_TIME, check_client_batches, trusted_batches


class AppendInfo(NamedTuple):
    """Where batches went. With ``duplicate`` they had been appended before."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False


class AppendingLog(ProducingLog):
    """The side of a partition's log that is written to.

    Attributes:
        config: the topic's; may be replaced at any time.
        leader_epoch: stamped into batches.
        changed: its files are not as the last clean stop left them.
    """

    __slots__ = ("_point", "_unsynced", "changed", "config", "leader_epoch")

    def __init__(
        self,
        env: Environment,
        tp: TopicPartition,
        folder: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        producers: ProducerStates | None,
        snapshot_offset: int,
    ) -> None:
        super().__init__(
            env, tp, folder, segments, log_start_offset, log_end_offset, producers, snapshot_offset
        )
        self.config = config
        self.leader_epoch = 0
        self.changed = False
        self._unsynced: list[Segment] = []
        self._point = RecoveryPoint(recovery_point, log_end_offset)

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    def append(
        self, records: Buffer, *, now_ms: int, from_client: bool = True, from_zero: bool = False
    ) -> AppendInfo:
        """Append one batch or more: all of them or none.

        Args:
            records: whole batches, which may be written to; offsets are stamped in place.
            now_ms: the broker's time.
            from_client: prove them first. False for batches that the broker built itself.
            from_zero: see ``ProducerStates.check``.

        Raises:
            TidemillError: as ``validate.check_client_batches``, ``ProducerStates.check`` and
                ``RefusedBatches.check``.
            DiskFullError: no space; nothing of it is readable.
            StorageError: the partition is offline.
        """
        if self.failure is not None:
            raise self.failure
        config = self.config
        checked = (
            check_client_batches(records, config, now_ms)
            if from_client
            else trusted_batches(records)
        )
        data, headers, append_time = checked
        repeated = self._check_producers(headers, from_client, from_zero)
        if repeated is not None:
            last = repeated + headers[0].last_offset_delta
            return AppendInfo(repeated, last, append_time, duplicate=True)
        first = offset = self.log_end_offset
        batches = []
        position = 0
        latest = -1
        for header in headers:
            stamp(data, position, offset, self.leader_epoch)
            offset += header.last_offset_delta + 1
            size = header.batch_length + 12
            position += size
            batches.append((size, offset - 1, header.max_timestamp))
            if header.max_timestamp > latest:
                latest = header.max_timestamp
        segment = self._segment_for(position, offset - 1, latest, now_ms)
        self._write(segment, data, batches)
        offset = first
        for header in headers:
            if header.producer_id >= 0:
                self.producers.update(header, offset, now_ms)
                if self.refused:
                    self.refused.forget(header.producer_id)
            offset += header.last_offset_delta + 1
        return AppendInfo(first, offset - 1, append_time)

    def _check_producers(
        self, headers: list[BatchHeader], from_client: bool, from_zero: bool
    ) -> int | None:
        if not from_client:
            for header in headers:
                if header.producer_id >= 0:
                    self.producers.check_trusted(header)
            return None
        if len(headers) == 1:
            header = headers[0]
            if header.producer_id < 0:
                return None
            if self.refused and self.producers.get(header.producer_id) is None:
                self.refused.check(header)
            return self.producers.check(header, from_zero=from_zero)
        if any(header.producer_id >= 0 for header in headers):
            raise InvalidRecordError("an idempotent producer sends one batch per request")
        return None

    def append_marker(self, marker: Marker, *, now_ms: int) -> AppendInfo | None:
        """End a producer's transaction.

        The last stable offset stays until the marker is synced.

        Args:
            now_ms: the broker's time.

        Returns:
            None where the producer has no open transaction here: nothing was appended.

        Raises:
            InvalidProducerEpochError, TransactionCoordinatorFencedError: see
                ``ProducerStates.check_marker``.
            DiskFullError: no space; the transaction is as it was.
            StorageError: the partition is offline.
        """
        if self.failure is not None:
            raise self.failure
        if not self.has_open_transactions:
            return None
        producers = self.producers
        if not producers.check_marker(marker):
            return None
        stamped = self.config.message_timestamp_type == LOG_APPEND_TIME
        batch = encode_marker(marker, timestamp_ms=now_ms, log_append_time=stamped)
        offset = self.log_end_offset
        stamp(batch, 0, offset, self.leader_epoch)
        size = parse_header(batch).size
        segment = self._segment_for(size, offset, now_ms, now_ms)
        index = None
        if not marker.commit:
            index = self._write_aborted(segment, producers.aborted_by(marker, offset))
        try:
            self._write(segment, batch, [(size, offset, now_ms)])
        except StorageError:
            if index is not None:
                self._retract_aborted(segment, index)
            raise
        if index is not None:
            index.accept()
            if segment.aborted is None:
                segment.aborted = index
                self._aborting = None
        producers.end(marker, offset, now_ms)
        return AppendInfo(offset, offset, now_ms if stamped else -1)

    def _write_aborted(self, segment: Segment, entry: AbortedTransaction) -> AbortedIndex:
        index = segment.aborted or AbortedIndex(named=False)
        index.write(self._env, segment.path(TXN_INDEX), entry)
        return index

    def _retract_aborted(self, segment: Segment, index: AbortedIndex) -> None:
        # Another batch will get the marker's offset: the entry must never be believed.
        try:
            index.retract(self._env, segment.path(TXN_INDEX))
        except StorageError as error:
            self.go_offline(error)

    def _segment_for(self, size: int, last_offset: int, latest: int, now_ms: int) -> Segment:
        """The active segment, after a roll where it has no room for so much."""
        segment = self.segments[-1]
        if segment.size and must_roll(
            segment, size, last_offset, latest, now_ms, self.config, self.tp
        ):
            segment = self.roll(now_ms)
        return segment

    def _write(self, segment: Segment, data: Buffer, batches: list[tuple[int, int, int]]) -> None:
        try:
            segment.append(data, batches, self.config.index_interval_bytes)
        except StorageError as error:
            if segment.file.broken:
                self.go_offline(error)
            raise
        self.log_end_offset = batches[-1][1] + 1
        self._point.bytes_since += len(data)
        self.changed = True

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and start one at the log's end; returns the active one.

        What the closed segment holds, and its name, is synced here, its indexes with the next sync.
        Otherwise a power cut could keep the new segment and tear or lose the one before, which no
        recovery can tell from damage. The order: all that can fail for lack of space comes before
        the chain is changed.

        Raises:
            SyncFailedError: the broker must stop.
            DiskFullError, StorageError: it can't be created; nothing has changed.
        """
        old = self.segments[-1]
        if not old.size:
            return old
        old.write_index(seal=True)
        maintenance.write_snapshot(self)
        self._make_durable(old)
        new = Segment.create(self._env, self.folder, self.log_end_offset, now_ms)
        old.close_index()
        self._unsynced.append(old)
        self.segments.append(new)
        self._point.pending = self.log_end_offset
        self.changed = True
        return new

    def _make_durable(self, segment: Segment) -> None:
        if segment.size > segment.synced_size:
            segment.file.datasync()
            segment.synced_size = segment.size
        if not segment.named:
            try:
                self._env.fs.sync_dir(self.folder)
            except OSError as error:
                raise self._env.pool.fail_sync(error, self.folder) from error
            segment.named = True

    def go_offline(self, error: StorageError) -> None:
        """Refuse everything from now on: what the file holds is not certain."""
        if self.failure is None:
            self.failure = error
            self._env.offline[self.tp] = error
            if self._env.on_offline is not None:
                self._env.on_offline(self.tp, error)
