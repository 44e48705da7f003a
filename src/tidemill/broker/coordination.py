"""Drives the group machines: commands in, records to the journal, replies once they are on disk.

The decisions are those of ``state.groups`` and ``state.offsets``; here are the futures, the one
timer and the journal.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import structlog

from tidemill import settings
from tidemill.broker.api import (
    CommitRequest,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    LeaveMember,
    SyncRequest,
    SyncResult,
)
from tidemill.broker.journal import Journal
from tidemill.clock import Clock
from tidemill.errors import (
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    TidemillError,
)
from tidemill.log.transactions import Marker
from tidemill.state.groups import Groups
from tidemill.state.offsets import FetchedOffset, Offsets
from tidemill.state.outcome import Outcome
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TxnOffsetCommit

R = TypeVar("R")

PATIENCE = 100
"""How often expiry waits for the disk before it is put off."""

log_line = structlog.get_logger("tidemill.groups")


class SteadyClock:
    """Wall-clock milliseconds that follow the monotonic clock from start on.

    Session timeouts must not fire because somebody set the machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        return self._clock.monotonic_ms() + self._offset_ms

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()


class GroupCoordination:
    """The classic group protocol and committed offsets, over one journal."""

    def __init__(self, journal: Journal, settings: settings.Groups, clock: Clock) -> None:
        self._groups = Groups(
            min_session_timeout_ms=settings.min_session_timeout_ms,
            max_session_timeout_ms=settings.max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.initial_rebalance_delay_ms,
            max_size=settings.max_size,
        )
        self._offsets = Offsets(
            self._groups,
            retention_ms=settings.offsets_retention_minutes * 60_000,
            metadata_max_bytes=settings.offset_metadata_max_bytes,
        )
        self._journal = journal
        self._clock = SteadyClock(clock)
        self._tickets = itertools.count(1)
        self._parked: dict[int, asyncio.Future[Any]] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._on_their_way = 0  # outcomes that are not replayed yet
        self._timer: asyncio.TimerHandle | None = None
        self._stopped: TidemillError | None = None

    # --- start and stop --------------------------------------------------------------------------

    def recover(self) -> None:
        """Replay the journal into both machines; members get a fresh session timeout.

        Raises:
            CorruptLogError, InvalidRecordError, FormatVersionError: the journal can't be read.
        """
        for record in self._journal.recover():
            self._replay(*record)
        now_ms = self._clock.now_ms()
        outcome = self._groups.loaded(now_ms)
        self._offsets.loaded(now_ms)
        self._apply(outcome)

    def stop(self, error: TidemillError) -> None:
        """Answer everybody who still waits, or comes, with ``error``; nothing more is written."""
        self._stopped = error
        if self._timer is not None:
            self._timer.cancel()
        for future in [*self._parked.values(), *self._writing]:
            if not future.done():
                future.set_exception(error)

    # --- members ---------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinResult:
        """Parked until the generation is complete."""
        return cast(JoinResult, await self._park(lambda t, now: self._groups.join(request, t, now)))

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Parked until the leader's assignment is on disk."""
        return cast(SyncResult, await self._park(lambda t, now: self._groups.sync(request, t, now)))

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        await self._run(
            self._groups.heartbeat(
                group_id, generation, member_id, instance_id, self._clock.now_ms()
            )
        )

    async def leave(
        self, group_id: str, members: Sequence[LeaveMember]
    ) -> list[TidemillError | None]:
        return await self._run(self._groups.leave(group_id, members, self._clock.now_ms()))

    # --- offsets ---------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> list[TidemillError | None]:
        return await self._run(self._offsets.commit(request, self._clock.now_ms()))

    async def commit_in_transaction(self, request: TxnOffsetCommit) -> list[TidemillError | None]:
        """Commit offsets as part of the producer's open transaction: on disk when answered, seen
        when its marker is. That the producer may write here is the caller's to check; the records
        are appended before this first awaits, so that what was checked still holds.

        Returns:
            An error or None for each offset, in order.

        Raises:
            InvalidGroupIdError, UnknownMemberIdError, IllegalGenerationError,
            FencedInstanceIdError: the consumer is not (any longer) a member (KIP-447).
            InvalidProducerEpochError, InvalidTxnStateError: the log refuses the producer.
            CoordinatorNotAvailableError: the disk refuses.
        """
        outcome = self._offsets.commit_in_transaction(request, self._clock.now_ms())
        return await self._run(outcome, request.producer)

    async def write_marker(self, marker: Marker) -> None:
        """End a producer's transaction in the group coordinator's log; returns when the marker is
        on disk and the offsets are seen (or forgotten). May be repeated at will: without an open
        transaction nothing is written, and it waits for what was written before.

        Raises:
            InvalidProducerEpochError, TransactionCoordinatorFencedError: the marker is too old.
            StorageError: the disk refuses; the transaction is open as before.
        """
        if self._stopped is not None:
            raise self._stopped
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        appended = False

        def done(error: Exception | None) -> None:
            if error is None and appended:
                self._offsets.end_transaction(marker.producer_id, commit=marker.commit)
            if not written.done():
                if error is None:
                    written.set_result(None)
                else:
                    written.set_exception(error)

        self._writing.add(written)
        try:
            appended = self._journal.append_marker(marker, done)
            await written
        finally:
            self._writing.discard(written)

    def fetch(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None,
        require_stable: bool = False,
    ) -> dict[tuple[str, int], FetchedOffset]:
        """Committed offsets, those asked for that exist or (None) all. With ``require_stable`` an
        UnstableOffsetCommitError stands in the place of those that an open transaction has
        committed (KIP-447): the consumer must ask again."""
        return self._offsets.fetch(group_id, partitions, require_stable=require_stable)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        return await self._run(self._offsets.delete(group_id, partitions))

    async def forget_topics(self, topics: Sequence[str]) -> None:
        """Topics were deleted: their committed offsets go, with those on their way to the disk."""
        await self._settle()
        await self._run(self._offsets.topics_deleted(topics))

    async def expire_offsets(self) -> None:
        """Drop what ``offsets.retention.minutes`` says.

        What is on its way to the disk may be the renewal of what is due, so a moment without is
        waited for; under a load that has none, the next call does it.
        """
        for _ in range(PATIENCE):
            if not self._on_their_way:
                await self._run(self._offsets.expire(self._clock.now_ms()))
                return
            await self._settle()

    # --- admin -----------------------------------------------------------------------------------

    def list_groups(self, states: Sequence[str], types: Sequence[str]) -> list[GroupListing]:
        return self._groups.list_groups(states, types)

    def describe(self, group_id: str) -> GroupDescription:
        return self._groups.describe(group_id)

    async def delete_group(self, group_id: str) -> None:
        await self._run(self._offsets.delete_group(group_id))

    # --- inside ----------------------------------------------------------------------------------

    async def _park(self, command: Callable[[int, int], Outcome[None]]) -> object:
        """Run a command that answers through its ticket, perhaps much later.

        A caller that goes away (its connection closed) is forgotten by both sides.
        """
        ticket = next(self._tickets)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parked[ticket] = future
        try:
            self._apply(command(ticket, self._clock.now_ms()))
            return await future
        finally:
            del self._parked[ticket]
            if future.cancelled():
                self._groups.cancel(ticket)

    async def _settle(self) -> None:
        """Wait until all that was submitted is on disk and seen."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not settled.done():  # an error is told to who writes next
                settled.set_result(None)

        self._writing.add(settled)
        try:
            self._journal.when_settled(done)
            await settled
        finally:
            self._writing.discard(settled)

    async def _run(self, outcome: Outcome[R], producer: ProducerIdentity = NO_PRODUCER) -> R:
        """Write an outcome; its result counts when the records are on disk."""
        if outcome.records:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writing.add(written)
            try:
                self._apply(outcome, written, producer)
                await written
            finally:
                self._writing.discard(written)
        else:
            self._apply(outcome)
        return outcome.result

    def _apply(
        self,
        outcome: Outcome[Any],
        written: asyncio.Future[None] | None = None,
        producer: ProducerIdentity = NO_PRODUCER,
    ) -> None:
        if self._stopped is not None:
            raise self._stopped
        first = -1
        self._on_their_way += 1

        def done(error: Exception | None) -> None:
            self._on_their_way -= 1
            if error is None:
                for offset, record in enumerate(outcome.records, first):
                    self._replay(record.key, record.value, offset, producer.producer_id)
                self._release(outcome.replies)
            else:
                self._release(self._groups.write_failed(outcome, self._clock.now_ms()))
                self._schedule()
            if written is None or written.done():
                return
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(_refusal(error))

        first = self._journal.submit(outcome.records, done, producer)
        self._schedule()

    def _replay(self, key: bytes, value: bytes | None, log_offset: int, producer_id: int) -> None:
        taken = self._offsets.replay(key, value, log_offset, producer_id)
        if not taken and not self._groups.replay(key, value):
            log_line.warning("groups.foreign_record", key=key[:64].hex())

    def _release(self, replies: Sequence[tuple[int, object]]) -> None:
        for ticket, reply in replies:
            future = self._parked.get(ticket)
            if future is None or future.done():
                continue
            if isinstance(reply, TidemillError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def _schedule(self) -> None:
        """One timer, at the machine's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._groups.next_deadline()
        if deadline is not None and self._stopped is None:
            delay_s = max(0, deadline - self._clock.now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self._groups.tick(self._clock.now_ms()))


def _refusal(error: Exception) -> Exception:
    """What to tell who wanted something written: a producer that is fenced, just that."""
    if isinstance(error, (InvalidProducerEpochError, InvalidTxnStateError)):
        return error
    return CoordinatorNotAvailableError(f"the group's state could not be written: {error}")
