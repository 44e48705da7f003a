"""Drive the group machines: run commands, write their records, answer when the disk has them.

``state.groups`` and ``state.offsets`` decide. This module holds the futures of waiting requests,
the one timer, and the state log.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import structlog

from tidemill import settings
from tidemill.clock import Clock, SteadyClock
from tidemill.engine.api import (
    CommitRequest,
    CommittedOffset,
    JoinRequest,
    JoinResult,
    LeaveMember,
    SyncRequest,
    SyncResult,
)
from tidemill.engine.flusher import settle
from tidemill.engine.groups.assembly import make_groups
from tidemill.engine.groups.group_log import log_events
from tidemill.engine.state_log import StateLog
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidProducerEpochError, InvalidTxnStateError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.state.catalog.group_configs import GroupConfigs
from tidemill.state.consumer_groups.types import ConsumerHeartbeat
from tidemill.state.errors import CoordinatorNotAvailableError, GroupMaxSizeReachedError
from tidemill.state.modern_groups.types import HeartbeatResult, Topics
from tidemill.state.offsets.machine import FetchedOffset, Offsets
from tidemill.state.outcome import Outcome
from tidemill.state.share_groups.types import ShareGroupInfo, ShareHeartbeat
from tidemill.state.types import NO_PRODUCER, ProducerIdentity, TxnOffsetCommit

R = TypeVar("R")

MAX_EXPIRY_WAITS = 100
"""How often one expiry of offsets waits for the disk before it leaves the work to the next one."""

REPLIES_PER_TURN = 32
"""Parked requests that are answered in one turn of the event loop."""
REPORT_INTERVAL_MS = 60_000
"""Shortest time between two reports that a group is full: many clients can ask again and again."""

logger = structlog.get_logger("tidemill.groups")


class GroupCoordinator:
    """The group protocols and committed offsets, over one state log.

    A request raises what the machine of its group does (``state.all_groups``), and also
    ``CoordinatorNotAvailableError``, where the disk refuses, and ``BrokerStoppingError``.

    Args:
        configs: of single groups.

    Attributes:
        machine, offsets: the groups, and what they have committed. Others may read them.
    """

    def __init__(
        self,
        state_log: StateLog,
        settings: settings.Groups,
        clock: Clock,
        topics: Topics,
        configs: GroupConfigs,
    ) -> None:
        self.machine = make_groups(settings, topics, configs)
        self.offsets = Offsets(
            self.machine,
            retention_ms=settings.offsets_retention_minutes * 60_000,
            metadata_max_bytes=settings.offset_metadata_max_bytes,
        )
        self._state_log = state_log
        self._clock = SteadyClock(clock)
        self._tickets = itertools.count(1)
        self._parked: dict[int, asyncio.Future[Any]] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._in_flight = 0
        """Outcomes that are submitted and not replayed yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._next_report_ms = 0
        self._stopped: TidemillError | None = None

    # --- start and stop --------------------------------------------------------------------------

    def recover(self) -> None:
        """Replay the state log into both machines. Members get a fresh session timeout."""
        with self._state_log.naming_place():
            for record in self._state_log.recover():
                self._replay(*record)
        now_ms = self._clock.now_ms()
        outcome = self.machine.loaded(now_ms)
        self.offsets.loaded(now_ms)
        self._apply(outcome)

    def stop(self, error: TidemillError) -> None:
        """Answer waiting and future requests with ``error``. Nothing more is written."""
        self._stopped = error
        if self._timer is not None:
            self._timer.cancel()
        for future in [*self._parked.values(), *self._writing]:
            settle(future, error)

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    # --- members ---------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinResult:
        """Join a group. Wait until the generation is complete."""
        with self._reporting_full(request):
            answer = await self._park(lambda t, now: self.machine.join(request, t, now))
        return cast(JoinResult, answer)

    @contextmanager
    def _reporting_full(
        self, request: JoinRequest | ConsumerHeartbeat | ShareHeartbeat
    ) -> Iterator[None]:
        try:
            yield
        except GroupMaxSizeReachedError as error:
            now_ms = self._clock.now_ms()
            if now_ms >= self._next_report_ms:
                self._next_report_ms = now_ms + REPORT_INTERVAL_MS
                logger.warning(
                    "group.full",
                    group=request.group_id[:200],
                    client_id=request.client_id[:200],
                    host=request.client_host,
                    error=str(error),
                    hint=error.hint,
                )
            raise

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Return a member's assignment. Wait until the leader's assignment is on disk."""
        return cast(SyncResult, await self._park(lambda t, now: self.machine.sync(request, t, now)))

    async def heartbeat(
        self, group_id: str, generation: int, member_id: str, instance_id: str | None
    ) -> None:
        """Keep a member's session alive."""
        await self._run(
            self.machine.heartbeat(
                group_id, generation, member_id, instance_id, self._clock.now_ms()
            )
        )

    async def leave(
        self, group_id: str, members: Sequence[LeaveMember]
    ) -> list[TidemillError | None]:
        """Remove members; return None or an error for each."""
        return await self._run(self.machine.leave(group_id, members, self._clock.now_ms()))

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> HeartbeatResult:
        """Let a member with the consumer protocol join, stay, change or leave."""
        with self._reporting_full(request):
            outcome = self.machine.consumer_heartbeat(request, self._clock.now_ms())
        return await self._run(outcome)

    async def share_heartbeat(self, request: ShareHeartbeat) -> HeartbeatResult:
        """Let a member of a share group join, stay, change or leave."""
        with self._reporting_full(request):
            outcome = self.machine.share_heartbeat(request, self._clock.now_ms())
        return await self._run(outcome)

    # --- offsets ---------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> list[TidemillError | None]:
        """Commit offsets; return None or an error for each when they are on disk."""
        return await self._run(self.offsets.commit(request, self._clock.now_ms()))

    async def commit_in_transaction(self, request: TxnOffsetCommit) -> list[TidemillError | None]:
        """Commit offsets as part of the producer's open transaction.

        They are on disk when this returns, and visible when the transaction's marker is on disk.
        The caller checks that the producer can write here. The records are appended before the
        first await, so that the caller's check still holds.

        Returns:
            None or an error for each offset, in order.

        Raises:
            InvalidGroupIdError, UnknownMemberIdError, IllegalGenerationError,
            FencedInstanceIdError: the consumer is not a member of the group (KIP-447).
            InvalidProducerEpochError, InvalidTxnStateError: the log refuses the producer.
            CoordinatorNotAvailableError: the disk refuses.
        """
        outcome = self.offsets.commit_in_transaction(request, self._clock.now_ms())
        return await self._run(outcome, request.producer)

    async def write_marker(self, marker: Marker) -> None:
        """End a producer's transaction in this state log.

        Returns when the marker is on disk and the offsets are visible or dropped. The call can be
        repeated: without an open transaction it writes nothing, and waits for earlier writes.
        """
        written = self._wait()
        appended = False

        def done(error: Exception | None) -> None:
            if error is None and appended:
                self.offsets.end_transaction(marker.producer_id, commit=marker.commit)
            settle(written, error)

        appended = self._state_log.append_marker(marker, done)
        await written

    def fetch(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None,
        require_stable: bool = False,
    ) -> dict[tuple[str, int], FetchedOffset]:
        """Return committed offsets: those of ``partitions`` that exist, or all for None.

        With ``require_stable``, an offset that an open transaction has committed is replaced by an
        UnstableOffsetCommitError (KIP-447). The consumer must ask again.
        """
        return self.offsets.fetch(group_id, partitions, require_stable=require_stable)

    def committed_offset(self, group_id: str, tp: TopicPartition) -> int | None:
        """Return the committed offset of a group in one partition; None if there is none."""
        found = self.offsets.fetch(group_id, (tp,)).get(tp)
        return found.offset if isinstance(found, CommittedOffset) else None

    def member_counts(self) -> dict[str, int]:
        """Return the number of members of each group."""
        return {group.group_id: len(group.members) for group in self.machine}

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[TidemillError | None]:
        """Delete committed offsets; return None or an error for each."""
        return await self._run(self.offsets.delete(group_id, partitions))

    async def forget_topics(self, topics: Sequence[str]) -> None:
        """Delete the committed offsets of deleted topics, also those that are being written."""
        await self._settle()
        await self._run(self.offsets.topics_deleted(topics))

    async def expire_offsets(self) -> None:
        """Delete the offsets that ``offsets.retention.minutes`` says are too old.

        An offset that is due might be renewed by a record in flight. So this waits for a moment
        without any. Under a load that has no such moment, the next call does the work.
        """
        for _ in range(MAX_EXPIRY_WAITS):
            if not self._in_flight:
                await self._run(self.offsets.expire(self._clock.now_ms()))
                return
            await self._settle()

    # --- admin -----------------------------------------------------------------------------------

    def describe_share_group(self, group_id: str) -> ShareGroupInfo:
        """Return a share group with its members."""
        return self.machine.shares.describe(group_id)

    def is_share_group(self, group_id: str) -> bool:
        """Return whether there is such a share group."""
        return self.machine.shares.table.find(group_id) is not None

    async def create_share_group(self, group_id: str) -> None:
        """Create an empty share group, unless it exists."""
        await self._run(self.machine.create_share_group(group_id))

    def check_share_group(self, group_id: str, *, empty: bool = False) -> None:
        """Return if there is such a share group, and if it is empty where that is asked for.

        Raises:
            GroupIdNotFoundError: there is no such group, or it is of another kind.
            NonEmptyGroupError: it has members.
        """
        self.machine.shares.describe(group_id)
        if empty:
            self.machine.check_removable(group_id)

    async def delete_group(self, group_id: str) -> None:
        """Delete an empty group and its offsets."""
        await self._run(self.offsets.delete_group(group_id))

    # --- inside ----------------------------------------------------------------------------------

    async def _park(self, command: Callable[[int, int], Outcome[None]]) -> object:
        """Run a command that answers through its ticket, perhaps much later.

        If the caller is cancelled (its connection closed), the machine forgets the ticket.
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
                self.machine.cancel(ticket)

    def _wait(self) -> asyncio.Future[None]:
        """Return a future for the end of a write. A stop ends it, too."""
        self._check_running()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writing.add(waiter)
        waiter.add_done_callback(self._writing.discard)
        return waiter

    async def _settle(self) -> None:
        """Wait until everything that was submitted is on disk and replayed."""
        settled = self._wait()
        self._state_log.when_settled(lambda _: settle(settled, None))  # the next write raises
        await settled

    async def _run(self, outcome: Outcome[R], producer: ProducerIdentity = NO_PRODUCER) -> R:
        """Write an outcome; return its result when the records are on disk."""
        written = self._wait() if outcome.records else None
        self._apply(outcome, written, producer)
        if written is not None:
            await written
        return outcome.result

    def _apply(
        self,
        outcome: Outcome[Any],
        written: asyncio.Future[None] | None = None,
        producer: ProducerIdentity = NO_PRODUCER,
    ) -> None:
        self._check_running()
        log_events(outcome.events)
        first = -1
        self._in_flight += 1

        def done(error: Exception | None) -> None:
            self._in_flight -= 1
            if error is None:
                for offset, record in enumerate(outcome.records, first):
                    self._replay(record.key, record.value, offset, producer.producer_id)
                self._release(outcome.replies)
            else:
                self._release(self.machine.write_failed(outcome, self._clock.now_ms()))
                log_events(outcome.events)
                self._schedule()
            if written is not None:
                settle(written, None if error is None else _write_error(error))

        first = self._state_log.submit(outcome.records, done, producer)
        self._schedule()

    def _replay(self, key: bytes, value: bytes | None, log_offset: int, producer_id: int) -> None:
        taken = self.offsets.replay(key, value, log_offset, producer_id)
        if not taken and not self.machine.replay(key, value):
            logger.warning("record.ignored", key=key[:64].hex(), why="unknown record type")

    def _release(self, replies: Sequence[tuple[int, object]]) -> None:
        """Answer parked requests: a few in each turn of the event loop, where there are many."""
        if len(replies) > REPLIES_PER_TURN:
            asyncio.get_running_loop().call_soon(self._release, replies[REPLIES_PER_TURN:])
        for ticket, reply in replies[:REPLIES_PER_TURN]:
            future = self._parked.get(ticket)
            if future is None or future.done():
                continue
            if isinstance(reply, TidemillError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def _schedule(self) -> None:
        """Set the one timer to the machine's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.machine.next_deadline()
        if deadline is not None and self._stopped is None:
            delay_s = max(0, deadline - self._clock.now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self.machine.tick(self._clock.now_ms()))


def _write_error(error: Exception) -> Exception:
    """Return the error for the writer. A fenced producer gets its own error."""
    if isinstance(error, (InvalidProducerEpochError, InvalidTxnStateError)):
        return error
    return CoordinatorNotAvailableError(f"the group's state could not be written: {error}")
