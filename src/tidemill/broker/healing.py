"""At start: transactions that partitions hold open are compared with what the coordinator knows.

A power cut may have kept a record in a partition and lost the one in ``__transaction_state`` that
belongs to it. No transaction may stay open for ever because of that: each is adopted or aborted.
Which, is decided by ``state.transactions``. Runs after all is replayed and before any client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import structlog

from tidemill.broker.markers import Markers
from tidemill.broker.transactions import FIRST_RETRY_MS, LAST_RETRY_MS, TransactionCoordination
from tidemill.errors import CoordinatorNotAvailableError, StorageError
from tidemill.log.names import TopicPartition
from tidemill.log.store import LogStore
from tidemill.log.transactions import Marker, OpenTransaction
from tidemill.state.transactions import Heal

AT_ONCE = 100
"""Markers that are on their way to the disk together."""

Found = tuple[TopicPartition, OpenTransaction]

log_line = structlog.get_logger("tidemill.transactions")


class Healing:
    """Matches partitions with the coordinator, once."""

    def __init__(
        self, store: LogStore, transactions: TransactionCoordination, markers: Markers
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._markers = markers

    async def run(self) -> None:
        """Adopt or abort what the coordinator does not know as open. What the disk refuses is
        tried again in the background; until then the transactional id has to wait, or what it does
        next would take the leftover for its own."""
        orphans = list(self._open())
        left = [each for each in orphans if not self._adopted(*each)]
        by_owner: dict[str | None, list[Found]] = {}
        for tp, found in await self._abort(left):
            owner = self._transactions.machine.find(found.producer_id)
            by_owner.setdefault(owner, []).append((tp, found))
        for owner, leftovers in by_owner.items():
            self._transactions.in_background(partial(self._keep_trying, leftovers), owner)

    def _open(self) -> Iterator[Found]:
        for tp, log in list(self._store.partitions.items()):
            if not log.has_open_transactions:
                continue
            try:
                for found in log.open_transactions():
                    yield tp, found
            except StorageError as error:
                log_line.error("healing.impossible", partition=str(tp), error=str(error))

    def _adopted(self, tp: TopicPartition, found: OpenTransaction) -> bool:
        """Whether it needs no abort; False too where an adoption could not be written."""
        machine = self._transactions.machine
        transactional_id = machine.find(found.producer_id)
        verdict = machine.heal(tp, found)
        if verdict is Heal.ADOPT and transactional_id is not None:
            try:
                self._transactions.adopt(transactional_id, tp)
            except CoordinatorNotAvailableError as error:
                log_line.warning("healing.postponed", partition=str(tp), error=str(error))
                return False
            log_line.warning(
                "transaction.adopted", transactional_id=transactional_id, partition=str(tp)
            )
        return verdict is not Heal.ABORT

    async def _abort(self, orphans: list[Found]) -> list[Found]:
        """Abort those that nobody can end any more; what could not be settled."""
        left: list[Found] = []
        for start in range(0, len(orphans), AT_ONCE):
            part = orphans[start : start + AT_ONCE]
            settled = await asyncio.gather(*(self._aborted(*each) for each in part))
            left += [each for each, done in zip(part, settled, strict=True) if not done]
        return left

    async def _aborted(self, tp: TopicPartition, found: OpenTransaction) -> bool:
        if self._transactions.machine.heal(tp, found) is not Heal.ABORT:
            return False
        marker = Marker(found.producer_id, found.epoch, commit=False)
        failed = await self._markers.write(marker, [tp])
        event = "healing.postponed" if failed else "transaction.orphan_aborted"
        log_line.warning(
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
            left = await self._abort([each for each in still if not self._adopted(*each)])

    def _is_open(self, tp: TopicPartition, found: OpenTransaction) -> bool:
        log = self._store.partitions.get(tp)
        return log is not None and log.failure is None and found in log.open_transactions()
