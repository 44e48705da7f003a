"""Records in and out: produce, fetch with long polls, offsets for timestamps, prefix deletion.

Knows logs, the flusher and who waits. Topics and their configs are somebody else's
(``topics.py``); so are protocols.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence, Set

from tidemill.broker.api import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Acks,
    FetchQuery,
    Isolation,
    LogDir,
    OffsetAt,
    PartitionRead,
    PartitionSize,
    PartitionWrite,
    ProducerIdentity,
    ProducerInfo,
    ReadResult,
    TransactionVersion,
    WriteResult,
)
from tidemill.broker.committed import aborted_in
from tidemill.broker.complaints import Complaints
from tidemill.broker.flusher import Countdown, Flusher
from tidemill.broker.waiters import Waiters
from tidemill.clock import Clock
from tidemill.errors import (
    BrokerStoppingError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    StorageError,
    TidemillError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from tidemill.log.batch import HEADER_SIZE, TRANSACTIONAL_BIT, Buffer, parse_header
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.log.slice import Slice
from tidemill.log.store import LogStore
from tidemill.state.catalog import is_internal

Admission = tuple[PartitionLog, int] | None
"""What has to be durable before a write is acknowledged: all below the offset in the log."""
Admit = Callable[
    [str, ProducerIdentity, TopicPartition, TransactionVersion, Sequence[TopicPartition]], Admission
]

_ATTRIBUTES = 22
"""Position of the byte in a batch's header that says whether it is part of a transaction."""


def _is_transactional(records: Buffer) -> bool:
    return len(records) >= HEADER_SIZE and bool(records[_ATTRIBUTES] & TRANSACTIONAL_BIT)


class DataPlane:
    """Appends and reads.

    Args:
        admit: asked before a transaction's batch is appended (see
            ``TransactionCoordination.admit``); None where there are no transactions.
        unborn: partitions that are not to be seen yet; changes while topics are created.
        fetch_bytes: no fetch returns more, but for a first batch that is larger by itself.
    """

    def __init__(
        self,
        store: LogStore,
        flusher: Flusher,
        waiters: Waiters,
        clock: Clock,
        *,
        fetch_bytes: int,
        unborn: Set[TopicPartition] = frozenset(),
        admit: Admit | None = None,
    ) -> None:
        self._store = store
        self._admit = admit
        self._unborn = unborn
        self._flusher = flusher
        self._waiters = waiters
        self._clock = clock
        self._fetch_bytes = fetch_bytes
        self._complaints = Complaints(clock)
        self._stopping = False
        self._failure: StorageError | None = None

    def stop(self, failure: StorageError | None = None) -> None:
        """Refuse appends and end all long polls; after a storage failure, refuse reads too."""
        self._stopping = True
        self._failure = failure
        self._waiters.wake_all()

    # --- append ----------------------------------------------------------------------------------

    def produce(
        self,
        writes: Sequence[PartitionWrite],
        acks: Acks,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V1,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        """Append at once; with ``Acks.DURABLE`` the answer comes after fdatasync."""
        results: list[WriteResult] = []
        countdown: Countdown | None = None
        now_ms = self._clock.now_ms()
        joining: list[TopicPartition] = []
        if version is TransactionVersion.V2 and transactional_id is not None and len(writes) > 1:
            joining = self._joining(writes)
        for write in writes:
            admission: Admission = None
            records = write.records
            log: PartitionLog | None = None
            from_zero = False
            try:
                log = self._writable(write.topic, write.partition)
                if _is_transactional(records):
                    admission = self._admission(records, log.tp, transactional_id, version, joining)
                    from_zero = version is TransactionVersion.V2
                info = log.append(records, now_ms=now_ms, from_zero=from_zero)
            except TidemillError as error:
                if log is not None:
                    log.remember_refusal(records, error, now_ms)
                self._complaints.hear(error, f"{write.topic}-{write.partition}")
                results.append(WriteResult(error=error))
                continue
            results.append(
                WriteResult(info.first_offset, info.log_append_time_ms, log.log_start_offset)
            )
            self._appended(log)
            if acks != Acks.DURABLE:
                continue
            if log.high_watermark <= info.last_offset:
                countdown = countdown or self._flusher.countdown()
                self._flusher.wait(log, info.last_offset + 1, countdown)
            if admission is not None:
                countdown = countdown or self._flusher.countdown()
                self._flusher.wait(*admission, countdown)
        if countdown is None:
            return results
        return self._when_durable(countdown, results)

    def _admission(
        self,
        records: Buffer,
        tp: TopicPartition,
        transactional_id: str | None,
        version: TransactionVersion,
        joining: Sequence[TopicPartition],
    ) -> Admission:
        """May this batch of a transaction be appended?"""
        if transactional_id is None or self._admit is None:
            raise InvalidRecordError(
                f"{tp}: a batch of a transaction needs the transactional id with it"
            )
        header = parse_header(records)
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        return self._admit(transactional_id, producer, tp, version, joining)

    def _joining(self, writes: Sequence[PartitionWrite]) -> list[TopicPartition]:
        """What a request makes part of a transaction: one record tells of all, not one of each."""
        found = (
            TopicPartition(write.topic, write.partition)
            for write in writes
            if _is_transactional(write.records) and not is_internal(write.topic)
        )
        return [tp for tp in found if tp in self._store.partitions and tp not in self._unborn]

    async def _when_durable(
        self, countdown: Countdown, results: list[WriteResult]
    ) -> list[WriteResult]:
        try:
            await countdown.future
        except TidemillError as error:
            # Which of the partitions failed is not known any more: after a failed sync none of
            # this request may be called durable.
            return [result if result.error else WriteResult(error=error) for result in results]
        return results

    def _appended(self, log: PartitionLog) -> None:
        self._flusher.written(log)
        unsynced = log.log_end_offset - log.high_watermark
        if unsynced >= log.config.flush_messages or self._waiters.wait_for_sync(log):
            self._flusher.request(log)

    def _writable(self, topic: str, partition: int) -> PartitionLog:
        if self._stopping:
            raise self._failure or BrokerStoppingError("the broker is stopping")
        log = self.log(topic, partition)
        if is_internal(topic):
            raise InvalidTopicError(f"topic {topic!r} is internal: clients can't write to it")
        return log

    def log(self, topic: str, partition: int) -> PartitionLog:
        """The partition's log.

        Raises:
            UnknownTopicOrPartitionError: there is none.
            StorageError: it is damaged, and was taken offline when the broker started.
        """
        tp = TopicPartition(topic, partition)
        log = self._store.partitions.get(tp)
        if log is not None and tp not in self._unborn:
            return log
        damage = self._store.offline.get(tp)
        if damage is not None:
            raise damage
        raise UnknownTopicOrPartitionError(f"there is no partition {tp}")

    # --- read ------------------------------------------------------------------------------------

    async def fetch(self, query: FetchQuery) -> list[ReadResult]:
        """Read, and where fewer than ``min_bytes`` are there, wait for more."""
        partitions = [TopicPartition(p.topic, p.partition) for p in query.partitions]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.max_wait_ms / 1000
        while True:
            results, slices = self._plan(query)
            total = sum(piece.size for piece in slices if piece is not None)
            left = deadline - loop.time()
            enough = total >= query.min_bytes or any(r.error is not None for r in results)
            if enough or left <= 0 or self._stopping:
                await self._load(partitions, results, slices)
                if query.isolation == Isolation.READ_COMMITTED:
                    self._name_aborted(query, results, slices)
                return results
            woken = self._waiters.register(partitions, _stable_offsets(query, results))
            try:
                self._hurry(partitions)
                await asyncio.wait([woken], timeout=left)
            finally:
                self._waiters.unregister(woken, partitions)

    def _plan(self, query: FetchQuery) -> tuple[list[ReadResult], list[Slice | None]]:
        """Which stored bytes would answer the query now. Reads indexes at most."""
        results: list[ReadResult] = []
        slices: list[Slice | None] = []
        room = min(query.max_bytes, self._fetch_bytes)
        first = True
        for part in query.partitions:
            result = ReadResult()
            piece: Slice | None = None
            results.append(result)
            try:
                log = self._readable(part)
                result.high_watermark = log.high_watermark
                result.last_stable_offset = log.last_stable_offset
                result.log_start_offset = log.log_start_offset
                if room > 0 or first:
                    limit = (
                        log.last_stable_offset
                        if query.isolation == Isolation.READ_COMMITTED
                        else log.high_watermark
                    )
                    piece = _read_below(log, part.offset, min(part.max_bytes, room), limit, first)
            except TidemillError as error:
                self._complaints.hear(error, f"{part.topic}-{part.partition}")
                result.error = error
            if piece is not None and piece.size:
                room -= piece.size
                first = False
            slices.append(piece)
        return results, slices

    def _readable(self, part: PartitionRead) -> PartitionLog:
        if self._failure is not None:
            raise self._failure
        log = self.log(part.topic, part.partition)
        check_leader_epoch(log, part.leader_epoch)
        return log

    def _hurry(self, partitions: list[TopicPartition]) -> None:
        """Readers wait: what is written but not synced yet, and would be theirs, is wanted now."""
        for tp in partitions:
            log = self._store.partitions.get(tp)
            if log is None or log.high_watermark == log.log_end_offset:
                continue
            if self._waiters.wait_for_sync(log):
                self._flusher.request(log)

    async def _load(
        self,
        partitions: list[TopicPartition],
        results: list[ReadResult],
        slices: list[Slice | None],
    ) -> None:
        """Fetch the bytes: from the page cache at once, from a cold disk on a thread."""
        for tp, result, piece in zip(partitions, results, slices, strict=True):
            if piece is None or not piece.size:
                continue
            try:
                data = piece.load_nowait()
                if data is None:
                    data = await asyncio.get_running_loop().run_in_executor(None, piece.load)
                result.records = data
            except TidemillError as error:
                self._complaints.hear(error, tp)
                result.error = error

    def _name_aborted(
        self, query: FetchQuery, results: list[ReadResult], slices: list[Slice | None]
    ) -> None:
        """Add the aborted transactions that the bytes touch: their readers drop them."""
        for part, result, piece in zip(query.partitions, results, slices, strict=True):
            if piece is None or not len(result.records):
                continue
            try:
                log = self.log(part.topic, part.partition)
                if log.holds(piece.segment):
                    result.aborted = aborted_in(log, part.offset, result.records)
                else:
                    # Deleted or compacted while it was read, and its index with it: whose records
                    # to drop is not known any more. The reader asks again.
                    result.records = b""
            except TidemillError as error:
                self._complaints.hear(error, f"{part.topic}-{part.partition}")
                result.records = b""
                result.error = error

    # --- offsets ---------------------------------------------------------------------------------

    async def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        isolation: Isolation,
        leader_epoch: int = -1,
    ) -> OffsetAt:
        """The first offset at or after a timestamp, or a special one.

        Raises:
            UnknownTopicOrPartitionError: no such partition.
            InvalidRequestError: an unknown special timestamp.
        """
        log = self.log(topic, partition)
        check_leader_epoch(log, leader_epoch)
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            return OffsetAt(log.log_start_offset, -1, log.leader_epoch)
        if timestamp_ms == LATEST_TIERED:
            return OffsetAt(-1, -1, -1)
        if timestamp_ms < MAX_TIMESTAMP:
            raise InvalidRequestError(f"timestamp {timestamp_ms} has no meaning for ListOffsets")
        # What this client wrote with acks=1 just now must be seen: sync it first.
        await self._synced(log)
        committed = isolation == Isolation.READ_COMMITTED
        limit = log.last_stable_offset if committed else log.high_watermark
        if timestamp_ms == LATEST:
            return OffsetAt(limit, -1, log.leader_epoch)
        await asyncio.sleep(0)  # it decodes a batch, and clients ask for thousands of partitions
        found = (
            log.offset_of_max_timestamp()
            if timestamp_ms == MAX_TIMESTAMP
            else log.offset_for_timestamp(timestamp_ms)
        )
        if found is None or found[0] >= limit:
            return OffsetAt(-1, -1, -1)
        return OffsetAt(found[0], found[1], log.leader_epoch)

    async def _synced(self, log: PartitionLog) -> None:
        if log.high_watermark < log.log_end_offset:
            countdown = self._flusher.countdown()
            self._flusher.wait(log, log.log_end_offset, countdown)
            await countdown.future

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete the prefix below ``before_offset`` (-1: the high watermark); the new start.

        Raises:
            OffsetOutOfRangeError: the offset is above the high watermark.
            InvalidTopicError: the topic is internal.
        """
        log = self._writable(topic, partition)
        await self._synced(log)
        target = log.high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= log.high_watermark:
            raise OffsetOutOfRangeError(
                f"{log.tp}: can't delete before offset {target}: "
                f"the high watermark is {log.high_watermark}"
            )
        start = log.delete_records_before(target)
        write = self._store.checkpoint_writes()
        await asyncio.get_running_loop().run_in_executor(None, write)
        return start

    def end_offset_for_epoch(
        self, topic: str, partition: int, epoch: int, current_epoch: int
    ) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch at or below ``epoch`` (KIP-101, KIP-320)."""
        log = self.log(topic, partition)
        check_leader_epoch(log, current_epoch)
        if epoch < 0 or epoch > log.leader_epoch:
            return (-1, -1)
        return (log.leader_epoch, log.high_watermark)

    # --- describe --------------------------------------------------------------------------------

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        """Idempotent producers that are remembered on the partition (KIP-664)."""
        return [
            ProducerInfo(
                p.producer_id,
                p.epoch,
                p.last_sequence,
                p.last_timestamp_ms,
                p.coordinator_epoch,
                p.txn_first_offset,
            )
            for p in self.log(topic, partition).producers
        ]

    def log_dir(self, wanted: set[tuple[str, int]] | None) -> LogDir:
        """Sizes of the partitions (all, where ``wanted`` is None) and of the file system."""
        disk = os.statvfs(self._store.path)
        return LogDir(
            path=self._store.path,
            total_bytes=disk.f_frsize * disk.f_blocks,
            usable_bytes=disk.f_frsize * disk.f_bavail,
            partitions=tuple(
                PartitionSize(tp.topic, tp.partition, log.size_bytes)
                for tp, log in self._store.partitions.items()
                if wanted is None or tuple(tp) in wanted
            ),
        )


def check_leader_epoch(log: PartitionLog, epoch: int) -> None:
    """Apply KIP-320's fencing; -1 means that the client does not say.

    Raises:
        FencedLeaderEpochError: the client's epoch is older.
        UnknownLeaderEpochError: the client's epoch is newer.
    """
    if epoch == -1 or epoch == log.leader_epoch:
        return
    if epoch < log.leader_epoch:
        raise FencedLeaderEpochError(f"{log.tp}: leader epoch {epoch} is older than the current")
    raise UnknownLeaderEpochError(f"{log.tp}: leader epoch {epoch} is not known here")


def _stable_offsets(query: FetchQuery, results: list[ReadResult]) -> list[int] | None:
    """Up to where a reader of committed records has seen each partition; None for others."""
    if query.isolation != Isolation.READ_COMMITTED:
        return None
    return [result.last_stable_offset for result in results]


def _read_below(
    log: PartitionLog, offset: int, max_bytes: int, limit: int, min_one: bool
) -> Slice | None:
    if limit <= offset <= log.log_end_offset:
        return None
    return log.read(offset, max_bytes, limit_offset=limit, min_one=min_one)
