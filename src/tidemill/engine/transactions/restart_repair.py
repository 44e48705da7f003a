"""At start: repair transactions that partitions hold open and the coordinator does not know.

A power cut can keep a record in a partition and lose the record of the coordinator that belongs to
it. Such a transaction must not stay open for ever: it is adopted or aborted. ``state.transactions``
decides which. This runs after everything is replayed and before any client is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import structlog

from tidemill.engine.transactions.completion import FIRST_RETRY_MS, LAST_RETRY_MS
from tidemill.engine.transactions.coordinator import TransactionCoordinator
from tidemill.engine.transactions.markers import Markers
from tidemill.log.errors import StorageError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.log.partition.transactions import OpenTransaction
from tidemill.log.store import LogStore
from tidemill.state.errors import CoordinatorNotAvailableError
from tidemill.state.transactions.upkeep import StartAction

MAX_CONCURRENT_MARKERS = 100
"""Markers that wait for the disk together."""

Found = tuple[TopicPartition, OpenTransaction]

logger = structlog.get_logger("tidemill.transactions")


class RestartRepair:
    """Compares partitions with the coordinator, once."""

    def __init__(
        self, store: LogStore, transactions: TransactionCoordinator, markers: Markers
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._markers = markers

    async def run(self) -> None:
        """Adopt or abort every open transaction that the coordinator does not know.

        If the disk refuses, a background task retries. Until it succeeds, commands of the
        transactional id wait: otherwise its next transaction would include the leftover records.
        """
        orphans = list(self._open())
        left = [each for each in orphans if not self._settled_by_coordinator(*each)]
        by_owner: dict[str | None, list[Found]] = {}
        for tp, found in await self._abort(left):
            owner = self._transactions.machine.find(found.producer_id)
            by_owner.setdefault(owner, []).append((tp, found))
        for owner, leftovers in by_owner.items():
            self._transactions.in_background(partial(self._keep_trying, leftovers), owner)

    def _open(self) -> Iterator[Found]:
        for tp, partition in list(self._store.partitions.items()):
            if not partition.has_open_transactions:
                continue
            try:
                for found in partition.open_transactions():
                    yield tp, found
            except StorageError as error:
                logger.error("repair.failed", partition=str(tp), error=str(error))

    def _settled_by_coordinator(self, tp: TopicPartition, found: OpenTransaction) -> bool:
        """Return whether the coordinator knows the transaction, after an adoption if needed.

        False also where an adoption could not be written.
        """
        machine = self._transactions.machine
        transactional_id = machine.find(found.producer_id)
        action = machine.upkeep.start_action(tp, found)
        if action is StartAction.ADOPT and transactional_id is not None:
            try:
                self._transactions.adopt(transactional_id, tp)
            except CoordinatorNotAvailableError as error:
                logger.warning("repair.postponed", partition=str(tp), error=str(error))
                return False
            logger.warning(
                "transaction.adopted", transactional_id=transactional_id, partition=str(tp)
            )
        return action is not StartAction.ABORT

    async def _abort(self, orphans: list[Found]) -> list[Found]:
        """Abort the transactions that no producer can end; return those that are still open."""
        left: list[Found] = []
        for start in range(0, len(orphans), MAX_CONCURRENT_MARKERS):
            part = orphans[start : start + MAX_CONCURRENT_MARKERS]
            aborted = await asyncio.gather(*(self._aborted(*each) for each in part))
            left += [each for each, done in zip(part, aborted, strict=True) if not done]
        return left

    async def _aborted(self, tp: TopicPartition, found: OpenTransaction) -> bool:
        if self._transactions.machine.upkeep.start_action(tp, found) is not StartAction.ABORT:
            return False
        marker = Marker(found.producer_id, found.epoch, commit=False)
        failed = await self._markers.write(marker, [tp])
        event = "repair.postponed" if failed else "transaction.orphan_aborted"
        logger.warning(
            event,
            partition=str(tp),
            producer_id=found.producer_id,
            first_offset=found.first_offset,
            error=str(failed.get(tp, "")),
        )
        return not failed

    async def _keep_trying(self, left: list[Found]) -> None:
        delay_ms = FIRST_RETRY_MS
        while left:
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(delay_ms * 2, LAST_RETRY_MS)
            still = [(tp, found) for tp, found in left if self._is_open(tp, found)]
            left = await self._abort(
                [each for each in still if not self._settled_by_coordinator(*each)]
            )

    def _is_open(self, tp: TopicPartition, found: OpenTransaction) -> bool:
        partition = self._store.partitions.get(tp)
        return (
            partition is not None
            and partition.failure is None
            and found in partition.open_transactions()
        )
