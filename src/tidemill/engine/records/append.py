"""Append encoded record batches to partitions, and wait for the disk where the writer asks for it.

Every batch is checked before it is appended (see ``checks``). If that takes long, the append
happens in a later turn of the event loop. Knows logs, the flusher and the long polls to wake. Asks
the transaction coordinator, through a callback, before a batch of a transaction is appended. Knows
no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from tidemill.clock import Clock
from tidemill.engine.api import (
    Durability,
    PartitionWrite,
    PendingWrites,
    ProducerIdentity,
    TransactionVersion,
    WriteResult,
)
from tidemill.engine.error_log import StorageErrorLog
from tidemill.engine.flusher import Awaited, Flusher
from tidemill.engine.records.checks import Checks, Outcome, WriteOrder
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import HEADER_SIZE, TRANSACTIONAL_BIT, Buffer
from tidemill.log.format.validate import Checked
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.internal_topics import is_internal

Admission = tuple[PartitionLog, int] | None
"""A log and the offset below which it must be durable before a write is acknowledged."""
Admit = Callable[
    [str, ProducerIdentity, TopicPartition, TransactionVersion, Sequence[TopicPartition]], Admission
]

_ATTRIBUTES = 22
"""Position of the header byte that marks a batch as part of a transaction."""


def _is_transactional(records: Buffer) -> bool:
    return len(records) >= HEADER_SIZE and bool(records[_ATTRIBUTES] & TRANSACTIONAL_BIT)


class Appender:
    """Appends record batches.

    Args:
        waiters: long polls; a waiting reader hurries the sync.
        admit: called before a batch of a transaction is appended (see
            ``TransactionCoordinator.admit``).
    """

    def __init__(
        self,
        partitions: Partitions,
        flusher: Flusher,
        waiters: Waiters,
        clock: Clock,
        errors: StorageErrorLog,
        checks: Checks,
        admit: Admit,
    ) -> None:
        self._partitions = partitions
        self._flusher = flusher
        self._waiters = waiters
        self._clock = clock
        self._errors = errors
        self._checks = checks
        self._admit = admit
        self._tasks: set[asyncio.Task[list[WriteResult]]] = set()

    def append(
        self,
        writes: Sequence[PartitionWrite],
        durability: Durability,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V1,
        order: WriteOrder | None = None,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        """Append batches: during the call, or later if their check takes long.

        Args:
            order: the order of the client's writes. A write behind one that is appended later is
                appended after it.

        Returns:
            One result per write, in order. An awaitable of that where the batches are appended
            later or the results must wait for fdatasync (``Durability.SYNCED``).
        """
        if order is None or order.is_free:
            now_ms = self._clock.now_ms()
            checked = self._checks.now(writes, now_ms)
            if checked is not None:
                return self._append(writes, checked, now_ms, durability, transactional_id, version)
        try:
            kept = self._checks.keep(writes)
        except TidemillError as error:
            now_ms = self._clock.now_ms()
            return [self.refused(write, error, now_ms) for write in writes]
        before, appended = (order or WriteOrder()).enter()
        # A task of its own: the batches of a client that leaves now are appended nevertheless.
        task = asyncio.ensure_future(
            self._append_later(kept, before, appended, durability, transactional_id, version)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _append_later(
        self,
        writes: Sequence[PartitionWrite],
        before: Awaitable[None] | None,
        appended: Callable[[], None],
        durability: Durability,
        transactional_id: str | None,
        version: TransactionVersion,
    ) -> list[WriteResult]:
        """Check the writes in slices, and append them after those ``before``."""
        try:
            valid: list[Outcome | None] = [None] * len(writes)
            outcomes: Sequence[Outcome] = ()  # a request may have no batch at all
            while None in valid:
                outcomes = await self._checks.later(writes, valid)
                if before is not None:
                    await before
                valid = self._checks.still_valid(writes, outcomes)
            checked = [(None, outcome) for outcome in outcomes]
            now_ms = self._clock.now_ms()
            results = self._append(writes, checked, now_ms, durability, transactional_id, version)
        finally:
            self._checks.drop(writes)
            appended()
        return results if isinstance(results, list) else await results

    def refused(self, write: PartitionWrite, error: TidemillError, now_ms: int) -> TidemillError:
        """Return the error of a write that is refused, and keep the order behind it."""
        with suppress(TidemillError):
            log = self._partitions.writable(write.topic, write.partition)
            log.remember_refusal(write.records, error, now_ms)
        self._errors.report(error, f"{write.topic}-{write.partition}")
        return error

    def _append(
        self,
        writes: Sequence[PartitionWrite],
        checked: Sequence[tuple[PartitionLog | None, Outcome]],
        now_ms: int,
        durability: Durability,
        transactional_id: str | None,
        version: TransactionVersion,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        """Append checked batches during the call.

        Args:
            checked: the log of each write, if it was found in this turn, and its outcome.
        """
        results: list[WriteResult] = []
        pending = PendingWrites(results)
        awaited: list[Awaited] = []
        added: list[TopicPartition] = []
        if version is TransactionVersion.V2 and transactional_id is not None and len(writes) > 1:
            added = self._partitions_added_by(writes)
        for write, (found, outcome) in zip(writes, checked, strict=True):
            admission: Admission = None
            try:
                log = found or self._partitions.writable(write.topic, write.partition)
                if isinstance(outcome, TidemillError):
                    raise outcome
                from_zero = False
                if outcome.headers[0].is_transactional:
                    admission = self._admission(outcome, log.tp, transactional_id, version, added)
                    from_zero = version is TransactionVersion.V2
                info = log.append(outcome, now_ms=now_ms, from_zero=from_zero)
            except TidemillError as error:
                results.append(self.refused(write, error, now_ms))
                continue
            place = (len(results),)
            results.append((info.first_offset, info.log_append_time_ms, log.log_start_offset))
            self.written(log)
            if durability is not Durability.SYNCED:
                continue
            if log.high_watermark <= info.last_offset:
                awaited.append((log, info.last_offset + 1, partial(pending.count, place)))
            if admission is not None and admission[0].high_watermark < admission[1]:
                awaited.append((*admission, partial(pending.count, place)))
        if awaited:
            pending.remaining = len(awaited)
            self._flusher.call_when_each_is_durable(awaited)
        self._flusher.appended(sum(len(write.records) for write in writes))
        return pending if awaited else results

    def written(self, log: PartitionLog) -> None:
        """Note that ``log`` has new data. Sync it now if it must not wait any longer."""
        self._flusher.written(log)
        unsynced = log.log_end_offset - log.high_watermark
        if unsynced >= log.config.flush_messages or self._waiters.wait_for_sync(log):
            self._flusher.request(log)

    def _admission(
        self,
        batch: Checked,
        tp: TopicPartition,
        transactional_id: str | None,
        version: TransactionVersion,
        added: Sequence[TopicPartition],
    ) -> Admission:
        """Ask the coordinator whether this batch of a transaction can be appended."""
        if transactional_id is None:
            raise InvalidRecordError(
                f"{tp}: a batch of a transaction was sent without the transactional id"
            )
        header = batch.headers[0]
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        return self._admit(transactional_id, producer, tp, version, added)

    def _partitions_added_by(self, writes: Sequence[PartitionWrite]) -> list[TopicPartition]:
        """Return all partitions that a request adds to a transaction.

        The coordinator then writes one record for the request instead of one per partition.
        """
        found = (
            TopicPartition(write.topic, write.partition)
            for write in writes
            if _is_transactional(write.records) and not is_internal(write.topic)
        )
        return [tp for tp in found if self._partitions.exists(tp)]
