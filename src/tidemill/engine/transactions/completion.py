"""Finish decided transactions: write their markers, note the completion, retry what failed.

Knows the state machine, the markers and the locks. Which transaction ends is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from tidemill.clock import Clock
from tidemill.engine.transactions.keyed_tasks import KeyedTasks
from tidemill.engine.transactions.markers import Markers
from tidemill.log.errors import InvalidProducerEpochError, TransactionCoordinatorFencedError
from tidemill.state.errors import CoordinatorNotAvailableError
from tidemill.state.outcome import Outcome
from tidemill.state.transactions.machine import Transactions

FIRST_RETRY_MS = 100
"""Delay before a failed write is retried. It doubles with each retry."""
LAST_RETRY_MS = 10_000
"""Longest delay between two retries."""
_OUTDATED = (InvalidProducerEpochError, TransactionCoordinatorFencedError)

logger = structlog.get_logger("tidemill.transactions")


class Completion:
    """Finishes the transactions whose decision is durable.

    Args:
        machine: knows which transactions are decided and not finished.
        tasks: runs retries, and has the locks of the transactional ids.
        apply: writes an outcome of the machine.
    """

    def __init__(
        self,
        machine: Transactions,
        markers: Markers,
        tasks: KeyedTasks,
        clock: Clock,
        apply: Callable[[Outcome[Any]], int],
    ) -> None:
        self._machine = machine
        self._markers = markers
        self._tasks = tasks
        self._clock = clock
        self._apply = apply
        self._retrying: set[str] = set()
        self._stopped = False

    def resume(self) -> None:
        """Finish in the background what was decided before a restart."""
        for transactional_id in self._machine.all_unfinished():
            self._retry(transactional_id, 0)

    def stop(self) -> None:
        """Start no more retries."""
        self._stopped = True

    async def finish(self, transactional_id: str) -> None:
        """Write the markers of a durable decision, and free the id for its next transaction.

        A failure is retried in the background. The caller holds the id's lock.
        """
        if not await self._try_finish(transactional_id):
            self._retry(transactional_id, FIRST_RETRY_MS)

    async def _try_finish(self, transactional_id: str) -> bool:
        unfinished = self._machine.unfinished(transactional_id)
        if unfinished is None:
            return True
        marker, partitions = unfinished
        failed = await self._markers.write(marker, partitions)
        for tp, error in failed.items():
            # An outdated marker: the partition knows a newer producer, so the transaction is not
            # open there any more.
            event = "marker.outdated" if isinstance(error, _OUTDATED) else "marker.postponed"
            logger.warning(
                event, transactional_id=transactional_id, partition=str(tp), error=str(error)
            )
        if not all(isinstance(error, _OUTDATED) for error in failed.values()):
            return False
        try:
            self._apply(self._machine.complete(transactional_id, self._clock.now_ms()))
        except CoordinatorNotAvailableError as error:
            logger.warning(
                "transaction.postponed", transactional_id=transactional_id, error=str(error)
            )
            return False
        return True

    def _retry(self, transactional_id: str, delay_ms: int) -> None:
        if transactional_id not in self._retrying and not self._stopped:
            self._retrying.add(transactional_id)
            self._tasks.spawn(self._keep_trying(transactional_id, delay_ms))

    async def _keep_trying(self, transactional_id: str, delay_ms: int) -> None:
        try:
            while True:
                await asyncio.sleep(delay_ms / 1000)
                async with self._tasks.lock(transactional_id):
                    if await self._try_finish(transactional_id):
                        return
                delay_ms = min(max(delay_ms * 2, FIRST_RETRY_MS), LAST_RETRY_MS)
        finally:
            self._retrying.discard(transactional_id)
