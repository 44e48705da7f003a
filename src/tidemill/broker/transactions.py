"""Drives the transaction coordinator: commands in, records to its journal, markers to partitions.

The decisions are those of ``state.transactions``; here are the order per transactional id, the
waiting for the disk, the one timer and the repetition of what failed.

The order of an end: what the producer wrote is durable, then the decision, then the markers; then
the id is free for the next transaction. A closed connection stops none of that; a stopping broker
does, and the next start goes on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import structlog

from tidemill import settings
from tidemill.broker.api import (
    InitProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from tidemill.broker.coordination import SteadyClock
from tidemill.broker.deadlines import Deadlines
from tidemill.broker.flusher import Flusher
from tidemill.broker.in_order import InOrder
from tidemill.broker.journal import Journal
from tidemill.broker.markers import Markers
from tidemill.clock import Clock
from tidemill.errors import (
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    StorageError,
    TidemillError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.log.transactions import Marker
from tidemill.state.outcome import Outcome
from tidemill.state.transactions import Transactions

R = TypeVar("R")

FIRST_RETRY_MS = 100
LAST_RETRY_MS = 10_000
"""What could not be written is tried again, first after this long, at most after that."""
_OUTDATED = (InvalidProducerEpochError, TransactionCoordinatorFencedError)

log_line = structlog.get_logger("tidemill.transactions")


class TransactionCoordination:
    """Transactional ids over one journal.

    Args:
        journal: of ``__transaction_state``.
        markers: the partitions.
        fresh_producer_id: claims a producer id that was never used.
    """

    def __init__(
        self,
        journal: Journal,
        markers: Markers,
        flusher: Flusher,
        fresh_producer_id: Callable[[], Awaitable[int]],
        settings: settings.Transactions,
        clock: Clock,
    ) -> None:
        self.machine = Transactions(
            max_timeout_ms=settings.max_timeout_ms, id_expiration_ms=settings.id_expiration_ms
        )
        self._journal = journal
        self._markers = markers
        self._flusher = flusher
        self._fresh_producer_id = fresh_producer_id
        self._clock = SteadyClock(clock)
        self._in_order = InOrder()
        self._retrying: set[str] = set()
        self._deadlines = Deadlines(self.machine, self._clock, self._in_order, self._expire)
        self._stopped: TidemillError | None = None

    # --- start and stop --------------------------------------------------------------------------

    def recover(self) -> None:
        """Replay the journal.

        Raises:
            CorruptLogError, InvalidRecordError, FormatVersionError: the journal can't be read.
        """
        for record in self._journal.recover():
            if not self.machine.replay(record.key, record.value):
                log_line.warning("transactions.foreign_record", key=record.key[:64].hex())
        self.machine.loaded(self._clock.now_ms())

    def resume(self) -> None:
        """Go on with what was decided and not finished before the start; watch the timeouts."""
        for transactional_id in self.machine.all_unfinished():
            self._retry(transactional_id, 0)
        self._deadlines.watch()

    def in_background(
        self, work: Callable[[], Coroutine[Any, Any, None]], transactional_id: str | None = None
    ) -> None:
        """Do something until the broker stops. No transaction of the id begins or ends meanwhile:
        who asks for that waits."""

        async def in_order(transactional_id: str) -> None:
            async with self._in_order.lock(transactional_id):
                await work()

        self._in_order.spawn(work() if transactional_id is None else in_order(transactional_id))

    def stop(self, error: TidemillError) -> None:
        """Answer everybody who waits, or comes, with ``error``; nothing more is written."""
        self._stopped = error
        self._deadlines.stop()
        self._in_order.cancel()

    async def stopped(self) -> None:
        """Wait until nothing runs any more, after ``stop``."""
        await self._in_order.cancelled()

    # --- producers -------------------------------------------------------------------------------

    async def init(self, request: InitProducer) -> ProducerIdentity:
        """The identity under which a producer goes on; its predecessor's transaction is aborted.

        Raises:
            as ``Transactions.fence``; CoordinatorNotAvailableError: the disk refuses.
        """
        return await self._detached(request.transactional_id, lambda: self._init(request))

    async def _init(self, request: InitProducer) -> ProducerIdentity:
        transactional_id = request.transactional_id
        await self._finish(transactional_id)
        fenced = self._apply(self.machine.fence(request, self._clock.now_ms()))
        if self.machine.unfinished(transactional_id) is not None:
            await self._durable(fenced)
            await self._finish(transactional_id)  # where it can't, ``init`` says: ask again
        fresh = await self._fresh_id(transactional_id)
        outcome = self.machine.init(request, self._clock.now_ms(), fresh)
        await self._durable(self._apply(outcome))
        return outcome.result

    # --- partitions ------------------------------------------------------------------------------

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
    ) -> None:
        """Make partitions part of the transaction, which begins with the first ones.

        Raises:
            as ``Transactions.add``; CoordinatorNotAvailableError: the disk refuses.
        """
        async with self._in_order.lock(transactional_id):
            now_ms = self._clock.now_ms()
            end = self._apply(
                self.machine.add(
                    transactional_id, producer, partitions, now_ms, TransactionVersion.V1
                )
            )
        await self._durable(end)

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
    ) -> list[TidemillError | None]:
        """Which partitions are part of the transaction: an error for each that is not.

        Raises:
            as ``Transactions.verify``.
        """
        async with self._in_order.lock(transactional_id):
            self._check_running()
            return self.machine.verify(transactional_id, producer, partitions)

    def admit(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        version: TransactionVersion,
        also: Iterable[TopicPartition] = (),
    ) -> tuple[PartitionLog, int] | None:
        """Whether the producer may write to the partition in this turn of the loop.

        Args:
            also: (V2) where it is going to write in the same turn.

        Returns:
            None, or (V2: the write has made the partition part of the transaction) what has to be
            durable before the write is acknowledged: all below the offset in this log.

        Raises:
            as ``Transactions.check_write``; CoordinatorNotAvailableError: the disk refuses.
        """
        now_ms = self._clock.now_ms()
        outcome = self.machine.check_write(transactional_id, producer, tp, now_ms, version, also)
        if outcome is None:
            return None
        return self._journal.log, self._apply(outcome)

    async def admitted(self, admission: tuple[PartitionLog, int] | None) -> None:
        """Wait until what ``admit`` gave is durable."""
        if admission is not None:
            await self._durable(admission[1])

    def adopt(self, transactional_id: str, tp: TopicPartition) -> None:
        """Take a partition that holds an open transaction into the id's: see ``Transactions.heal``.

        Raises:
            CoordinatorNotAvailableError: the disk refuses.
        """
        self._apply(self.machine.adopt(transactional_id, tp, self._clock.now_ms()))

    def drop_topics(self, topics: Collection[str]) -> None:
        """Topics were deleted: transactions have nothing to do there any more.

        Raises:
            CoordinatorNotAvailableError: the disk refuses; at their ends they are skipped.
        """
        self._apply(self.machine.drop_partitions(topics, self._clock.now_ms()))

    # --- the end ---------------------------------------------------------------------------------

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        """Commit or abort. Decided and durable when answered; and, but where a partition can't be
        written to, seen by all readers.

        Returns:
            The identity of the next transaction.

        Raises:
            as ``Transactions.end``; CoordinatorNotAvailableError, StorageError: the disk refuses
            and nothing is decided. ConcurrentTransactionsError also where the producer goes on
            writing while it commits.
        """
        return await self._detached(
            transactional_id, lambda: self._end(transactional_id, producer, commit, version)
        )

    async def _end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        fresh = None
        if version is TransactionVersion.V2:
            fresh = await self._fresh_id(transactional_id)
        if commit:
            await self._markers.settle(
                producer.producer_id, lambda: self._partitions(transactional_id)
            )
        outcome = self.machine.end(
            transactional_id, producer, commit, self._clock.now_ms(), version, fresh
        )
        await self._durable(self._apply(outcome))
        await self._finish(transactional_id)
        return outcome.result

    def _partitions(self, transactional_id: str) -> Sequence[TopicPartition]:
        try:
            return self.machine.describe(transactional_id).partitions
        except TransactionalIdNotFoundError:
            return ()

    async def _finish(self, transactional_id: str) -> None:
        """Write the markers of a decision that is durable, and set the id free. What fails is tried
        again, later. The id's lock is held."""
        if not await self._try_finish(transactional_id):
            self._retry(transactional_id, FIRST_RETRY_MS)

    async def _try_finish(self, transactional_id: str) -> bool:
        unfinished = self.machine.unfinished(transactional_id)
        if unfinished is None:
            return True
        marker, partitions = unfinished
        failed = await self._markers.write(marker, partitions)
        for tp, error in failed.items():
            # Outdated: the partition knows a newer producer, so nothing of this one is open there.
            event = "marker.outdated" if isinstance(error, _OUTDATED) else "marker.postponed"
            log_line.warning(
                event, transactional_id=transactional_id, partition=str(tp), error=str(error)
            )
        if not all(isinstance(error, _OUTDATED) for error in failed.values()):
            return False
        try:
            self._apply(self.machine.complete(transactional_id, self._clock.now_ms()))
        except CoordinatorNotAvailableError as error:
            log_line.warning(
                "transaction.postponed", transactional_id=transactional_id, error=str(error)
            )
            return False
        return True

    def _retry(self, transactional_id: str, delay_ms: int) -> None:
        if transactional_id in self._retrying or self._stopped is not None:
            return
        self._retrying.add(transactional_id)
        self._in_order.spawn(self._keep_trying(transactional_id, delay_ms))

    async def _keep_trying(self, transactional_id: str, delay_ms: int) -> None:
        try:
            while True:
                await asyncio.sleep(delay_ms / 1000)
                async with self._in_order.lock(transactional_id):
                    if await self._try_finish(transactional_id):
                        return
                delay_ms = min(max(delay_ms * 2, FIRST_RETRY_MS), LAST_RETRY_MS)
        finally:
            self._retrying.discard(transactional_id)

    async def write_markers(
        self, markers: Sequence[tuple[Marker, Sequence[TopicPartition]]]
    ) -> list[list[TidemillError | None]]:
        """End transactions by hand, where the coordinator does not know them (KIP-664); an error
        or None per partition: see ``Markers.write_by_hand``."""
        self._check_running()
        return [
            await self._markers.write_by_hand(marker, partitions) for marker, partitions in markers
        ]

    # --- time ------------------------------------------------------------------------------------

    async def _expire(self, transactional_id: str) -> None:
        """Abort a transaction whose time is up."""
        try:
            async with self._in_order.lock(transactional_id):
                end = self._apply(self.machine.expire(transactional_id, self._clock.now_ms()))
                if self.machine.unfinished(transactional_id) is not None:
                    log_line.info("transaction.timed_out", transactional_id=transactional_id)
                    await self._durable(end)
                    await self._finish(transactional_id)
        except CoordinatorNotAvailableError as error:
            log_line.warning(
                "timeout.postponed", transactional_id=transactional_id, error=str(error)
            )
            await asyncio.sleep(LAST_RETRY_MS / 1000)

    def expire_ids(self) -> None:
        """Forget ids that nobody has used for ``transactional.id.expiration.ms``.

        Raises:
            CoordinatorNotAvailableError: the disk refuses.
        """
        self._apply(self.machine.expire_ids(self._clock.now_ms()))

    # --- admin -----------------------------------------------------------------------------------

    def list(
        self,
        states: Collection[TransactionState],
        producer_ids: Collection[int],
        duration_ms: int,
        id_pattern: str | None,
    ) -> list[TransactionListing]:
        now_ms = self._clock.now_ms()
        return self.machine.list(states, producer_ids, duration_ms, id_pattern, now_ms)

    def describe(self, transactional_id: str) -> TransactionDescription:
        return self.machine.describe(transactional_id)

    # --- inside ----------------------------------------------------------------------------------

    async def _detached(
        self, transactional_id: str, work: Callable[[], Coroutine[Any, Any, R]]
    ) -> R:
        """Run a command to its end, also where its caller goes away."""
        self._check_running()
        try:
            return await self._in_order.detached(transactional_id, work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_running()  # not the caller: the broker stops
            raise

    async def _fresh_id(self, transactional_id: str) -> int | None:
        if not self.machine.needs_producer_id(transactional_id):
            return None
        try:
            return await self._fresh_producer_id()
        except StorageError as error:
            raise CoordinatorNotAvailableError(
                f"no producer id could be claimed: {error}"
            ) from error

    def _apply(self, outcome: Outcome[Any]) -> int:
        """Append records and, as soon as they are in the log, replay them.

        Returns:
            The offset below which all must be durable before anybody is answered.

        Raises:
            CoordinatorNotAvailableError: the disk refuses; nothing has changed.
        """
        self._check_running()
        if outcome.records:
            try:
                self._journal.append(outcome.records)
            except TidemillError as error:
                raise CoordinatorNotAvailableError(
                    f"the transaction's state could not be written: {error}"
                ) from error
            for record in outcome.records:
                self.machine.replay(record.key, record.value)
            self._deadlines.watch()
        return self._journal.log.log_end_offset

    async def _durable(self, offset: int) -> None:
        if offset > self._journal.log.high_watermark:
            countdown = self._flusher.countdown()
            self._flusher.wait(self._journal.log, offset, countdown)
            await countdown.future

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped
