"""Drive the transaction coordinator: run commands, write its records, send markers to partitions.

``state.transactions`` decides. This module keeps the order of work per transactional id and waits
for the disk. ``completion`` finishes decided transactions.

A transaction ends in this order: everything that the producer wrote is durable, then the decision,
then the markers. After that the id is free for the next transaction. A closed connection does not
interrupt this. A stopping broker does, and the next start continues it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import structlog

from tidemill import settings
from tidemill.clock import Clock, SteadyClock
from tidemill.engine.api import (
    InitProducer,
    ProducerIdentity,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from tidemill.engine.flusher import Flusher
from tidemill.engine.state_log import StateLog
from tidemill.engine.transactions.completion import LAST_RETRY_MS, Completion
from tidemill.engine.transactions.keyed_tasks import KeyedTasks
from tidemill.engine.transactions.markers import Markers
from tidemill.engine.transactions.timeouts import Timeouts
from tidemill.errors import TidemillError
from tidemill.log.errors import StorageError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.errors import CoordinatorNotAvailableError, TransactionalIdNotFoundError
from tidemill.state.outcome import Outcome
from tidemill.state.transactions.machine import Transactions

R = TypeVar("R")

logger = structlog.get_logger("tidemill.transactions")


class TransactionCoordinator:
    """Transactional ids, over one state log.

    Errors that every request with a transactional id can raise: ``InvalidRequestError``, where the
    id is empty; ``CoordinatorNotAvailableError``, where the disk refuses; ``BrokerStoppingError``.

    Attributes:
        machine: the state machine. Others may read it.
    """

    def __init__(
        self,
        state_log: StateLog,
        markers: Markers,
        flusher: Flusher,
        new_producer_id: Callable[[], Awaitable[int]],
        settings: settings.Transactions,
        clock: Clock,
    ) -> None:
        self.machine = Transactions(
            max_timeout_ms=settings.max_timeout_ms, id_expiration_ms=settings.id_expiration_ms
        )
        self._state_log = state_log
        self._markers = markers
        self._flusher = flusher
        self._new_producer_id = new_producer_id
        self._clock = SteadyClock(clock)
        self._tasks = KeyedTasks()
        self._timeouts = Timeouts(
            self.machine.upkeep, self._clock, self._tasks, self._abort_overdue
        )
        self._completion = Completion(self.machine, markers, self._tasks, self._clock, self._apply)
        self._stopped: TidemillError | None = None

    # --- start and stop --------------------------------------------------------------------------

    def recover(self) -> None:
        """Replay the state log."""
        with self._state_log.naming_place():
            for record in self._state_log.recover():
                if not self.machine.replay(record.key, record.value):
                    logger.warning(
                        "record.ignored", key=record.key[:64].hex(), why="unknown record type"
                    )
        self.machine.loaded(self._clock.now_ms())

    def resume(self) -> None:
        """Continue the ends that were decided before the start, and watch the timeouts."""
        self._completion.resume()
        self._timeouts.update()

    def in_background(
        self, work: Callable[[], Coroutine[Any, Any, None]], transactional_id: str | None
    ) -> None:
        """Do work until it ends or the broker stops.

        Args:
            transactional_id: commands of this id wait until the work has ended; None for no id.
        """
        self._tasks.spawn(
            work() if transactional_id is None else self._tasks.under_lock(transactional_id, work)
        )

    def stop(self, error: TidemillError) -> None:
        """Answer waiting and future requests with ``error``. Nothing more is written."""
        self._stopped = error
        self._timeouts.stop()
        self._completion.stop()
        self._tasks.cancel()

    async def stopped(self) -> None:
        """Wait until no task runs any more, after ``stop``."""
        await self._tasks.cancelled()

    # --- producers -------------------------------------------------------------------------------

    async def init(self, request: InitProducer) -> ProducerIdentity:
        """Return the identity for a producer that starts. Abort its predecessor's transaction.

        Raises:
            TidemillError: as ``Transactions.fence``.
            CoordinatorNotAvailableError: the disk refuses.
        """
        return await self._run(request.transactional_id, lambda: self._init(request))

    async def _init(self, request: InitProducer) -> ProducerIdentity:
        transactional_id = request.transactional_id
        await self._completion.finish(transactional_id)
        fenced = self._apply(self.machine.fence(request, self._clock.now_ms()))
        if self.machine.unfinished(transactional_id) is not None:
            await self._durable(fenced)
            # If this fails, ``machine.init`` raises and the producer asks again.
            await self._completion.finish(transactional_id)
        new_id = await self._needed_producer_id(transactional_id)
        outcome = self.machine.init(request, self._clock.now_ms(), new_id)
        await self._durable(self._apply(outcome))
        return outcome.result

    # --- partitions ------------------------------------------------------------------------------

    async def add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
    ) -> None:
        """Make partitions part of the transaction. The first ones begin it.

        Raises:
            TidemillError: as ``Transactions.add``.
            CoordinatorNotAvailableError: the disk refuses.
        """
        async with self._tasks.lock(transactional_id):
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
        """Check that partitions are part of the transaction; return None or an error for each."""
        async with self._tasks.lock(transactional_id):
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
        """Check that the producer can write to the partition in this turn of the event loop.

        Args:
            also: (V2) the other partitions that it writes to in the same turn.

        Returns:
            None; or (V2) a log and the offset below which it must be durable before the write is
            acknowledged, where the write makes the partition part of the transaction.
        """
        now_ms = self._clock.now_ms()
        outcome = self.machine.check_write(transactional_id, producer, tp, now_ms, version, also)
        if outcome is None:
            return None
        return self._state_log.log, self._apply(outcome)

    async def admitted(self, admission: tuple[PartitionLog, int] | None) -> None:
        """Wait until the result of ``admit`` is durable."""
        if admission is not None:
            await self._durable(admission[1])

    def adopt(self, transactional_id: str, tp: TopicPartition) -> None:
        """Make a partition with an open transaction part of the id's transaction, at start."""
        self._apply(self.machine.upkeep.adopt(transactional_id, tp, self._clock.now_ms()))

    def drop_topics(self, topics: Collection[str]) -> None:
        """Remove the partitions of deleted topics from all transactions."""
        self._apply(self.machine.upkeep.drop_partitions(topics, self._clock.now_ms()))

    # --- the end ---------------------------------------------------------------------------------

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        """Commit or abort a transaction.

        On return the decision is durable, and readers see it except in partitions that can't be
        written to at present.

        Returns:
            The identity of the next transaction.

        Raises:
            TidemillError: as ``Transactions.end``.
            CoordinatorNotAvailableError, StorageError: the disk refuses. Nothing is decided.
            ConcurrentTransactionsError: the producer keeps writing while it commits.
        """
        return await self._run(
            transactional_id, lambda: self._end(transactional_id, producer, commit, version)
        )

    async def _end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        commit: bool,
        version: TransactionVersion,
    ) -> ProducerIdentity:
        new_id = None
        if version is TransactionVersion.V2:
            new_id = await self._needed_producer_id(transactional_id)
        if commit:
            await self._markers.sync_writes(
                producer.producer_id, lambda: self._partitions(transactional_id)
            )
        outcome = self.machine.end(
            transactional_id, producer, commit, self._clock.now_ms(), version, new_id
        )
        await self._durable(self._apply(outcome))
        await self._completion.finish(transactional_id)
        return outcome.result

    def _partitions(self, transactional_id: str) -> Sequence[TopicPartition]:
        try:
            return self.machine.describe(transactional_id).partitions
        except TransactionalIdNotFoundError:
            return ()

    async def write_markers(
        self, markers: Sequence[tuple[Marker, Sequence[TopicPartition]]]
    ) -> list[list[TidemillError | None]]:
        """Write markers that an operator requests: see ``Markers.write_by_operator``."""
        self._check_running()
        return [
            await self._markers.write_by_operator(marker, partitions)
            for marker, partitions in markers
        ]

    # --- time ------------------------------------------------------------------------------------

    async def _abort_overdue(self, transactional_id: str) -> None:
        """Abort a transaction whose timeout is over."""
        try:
            async with self._tasks.lock(transactional_id):
                end = self._apply(
                    self.machine.upkeep.expire(transactional_id, self._clock.now_ms())
                )
                if self.machine.unfinished(transactional_id) is not None:
                    logger.info("transaction.timed_out", transactional_id=transactional_id)
                    await self._durable(end)
                    await self._completion.finish(transactional_id)
        except CoordinatorNotAvailableError as error:
            logger.warning("timeout.postponed", transactional_id=transactional_id, error=str(error))
            await asyncio.sleep(LAST_RETRY_MS / 1000)

    def expire_ids(self) -> None:
        """Forget the ids that were not used for ``transactional.id.expiration.ms``."""
        self._apply(self.machine.upkeep.expire_ids(self._clock.now_ms()))

    # --- admin -----------------------------------------------------------------------------------

    def listings(
        self,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that match all filters.

        Args:
            states: empty for all.
            producer_ids: empty for all.
            min_duration_ms: only transactions that are open for longer; None for all (KIP-994).
            id_pattern: a regular expression; None for all (KIP-1152).

        Raises:
            InvalidRegularExpressionError: the pattern is invalid.
        """
        duration_ms = -1 if min_duration_ms is None else min_duration_ms
        now_ms = self._clock.now_ms()
        return self.machine.listings(states, producer_ids, duration_ms, id_pattern, now_ms)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id with its transaction.

        Raises:
            TransactionalIdNotFoundError
        """
        return self.machine.describe(transactional_id)

    # --- inside ----------------------------------------------------------------------------------

    async def _run(self, transactional_id: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a command to its end, even if its caller goes away."""
        self._check_running()
        try:
            return await self._tasks.run(transactional_id, work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_running()  # not the caller was cancelled: the broker stops
            raise

    async def _needed_producer_id(self, transactional_id: str) -> int | None:
        if not self.machine.needs_producer_id(transactional_id):
            return None
        try:
            return await self._new_producer_id()
        except StorageError as error:
            raise CoordinatorNotAvailableError(
                f"no producer id could be claimed: {error}"
            ) from error

    def _apply(self, outcome: Outcome[Any]) -> int:
        """Append records and replay them as soon as they are in the log.

        Returns:
            The offset below which the state log must be durable before a client gets an answer.
        """
        self._check_running()
        if outcome.records:
            try:
                self._state_log.append(outcome.records)
            except TidemillError as error:
                raise CoordinatorNotAvailableError(
                    f"the transaction's state could not be written: {error}"
                ) from error
            for record in outcome.records:
                self.machine.replay(record.key, record.value)
            self._timeouts.update()
        return self._state_log.log.log_end_offset

    async def _durable(self, offset: int) -> None:
        if offset > self._state_log.log.high_watermark:
            await self._flusher.when_durable(self._state_log.log, offset)

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped
