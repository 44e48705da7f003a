"""The share partitions of one broker: opens them, keeps their deadlines, wakes what waits for them.

Shared by all clients. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import structlog

from tidemill.clock import Clock
from tidemill.engine.api import Isolation, Position
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.flusher import settle
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.records.positions import Positions
from tidemill.engine.shares.api import Breathe, no_pause
from tidemill.engine.shares.share_log import ShareLog
from tidemill.engine.state_log import StateLog
from tidemill.errors import TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.group_configs import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    SHARE_DELIVERY_LIMIT,
    SHARE_ISOLATION,
    SHARE_MAX_RECORD_LOCKS,
    SHARE_OFFSET_RESET,
    SHARE_RECORD_LOCK,
    SHARE_RENEW,
    GroupConfigs,
    reset_duration_ms,
)
from tidemill.state.errors import PolicyViolationError
from tidemill.state.share_partitions.format import PartitionKey
from tidemill.state.share_partitions.partition import ShareLimits, SharePartition
from tidemill.state.timers import Timers

MAX_PARTITIONS = 50_000
"""Share partitions of all groups that are in use or stored."""

RETRY_S = 1.0
"""How long the state that the disk has refused waits until it is written again."""

logger = structlog.get_logger("tidemill.shares")


class LiveShare(NamedTuple):
    """A share partition in use, and its log."""

    partition: SharePartition
    log: PartitionLog


class ShareCore:
    """The share partitions of one broker."""

    def __init__(
        self,
        partitions: Partitions,
        positions: Positions,
        catalog: Catalog,
        configs: GroupConfigs,
        state: StateLog,
        clock: Clock,
    ) -> None:
        self.partitions = partitions
        self.share_log = ShareLog(state, self._store_later)
        self._positions = positions
        self._catalog = catalog
        self._configs = configs
        self.clock = clock
        self._live: dict[PartitionKey, LiveShare] = {}
        self._opening: dict[PartitionKey, asyncio.Future[LiveShare]] = {}
        self._owners: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[TopicPartition, set[asyncio.Future[None]]] = {}
        self._deadlines: Timers[PartitionKey] = Timers()
        self._timer: asyncio.TimerHandle | None = None
        self._unstored: dict[PartitionKey, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False

    # --- start and stop --------------------------------------------------------------------------

    async def start(self, is_group: Callable[[str], bool]) -> None:
        """Read what is stored. The state of groups and topics that are gone is deleted."""
        self.share_log.recover()
        await self.share_log.delete(
            [
                key
                for key in self.share_log.all_keys()
                if not is_group(key.group_id) or self._catalog.name_of(key.topic_id) is None
            ]
        )

    def stop(self) -> None:
        """Answer waiting requests, and acquire nothing more."""
        self.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._retry is not None:
            self._retry.cancel()
            self._store_again()
        for tp in list(self._waiting):
            self.wake(tp)
        for task in self._tasks:
            task.cancel()

    def check_running(self) -> None:
        """Raise BrokerStoppingError if the broker stops."""
        if self.is_stopping:
            raise BrokerStoppingError("the broker is stopping")

    # --- configs ---------------------------------------------------------------------------------

    def limits(self, group_id: str) -> ShareLimits:
        """Return the limits that are in force for a group."""
        number = self._configs.number
        return ShareLimits(
            number(group_id, SHARE_RECORD_LOCK),
            number(group_id, SHARE_DELIVERY_LIMIT),
            number(group_id, SHARE_MAX_RECORD_LOCKS),
        )

    def lock_ms(self, group_id: str) -> int:
        """Return how long a member of a group can keep a record, in milliseconds."""
        return self.limits(group_id).lock_ms

    def reads_committed(self, group_id: str) -> bool:
        """Return whether a group gets records of committed transactions only."""
        return self._configs.text(group_id, SHARE_ISOLATION) == READ_COMMITTED

    def may_renew(self, group_id: str) -> bool:
        """Return whether members of a group can extend the time that they keep a record."""
        return self._configs.flag(group_id, SHARE_RENEW)

    # --- share partitions ------------------------------------------------------------------------

    def lags(self) -> list[tuple[str, str, int]]:
        """Return group, topic and unfinished records of each share partition in use."""
        return [
            (
                key.group_id,
                live.log.tp.topic,
                max(live.log.high_watermark - live.partition.window.start, 0),
            )
            for key, live in self._live.items()
        ]

    def find(self, key: PartitionKey) -> LiveShare | None:
        """Return a share partition that is in use or stored, else None."""
        live = self._live.get(key)
        if live is not None:
            return live
        log = self._log(key)
        stored = self.share_log.take(key)
        return None if stored is None else self._add(stored, log)

    async def open(self, key: PartitionKey) -> LiveShare:
        """Return a share partition. It is created where the group's config says, and stored."""
        live = self.find(key)
        if live is not None:
            return live
        opening = self._opening.get(key)
        if opening is None:
            self.check_running()
            if len(self._live) + len(self._opening) >= MAX_PARTITIONS:
                raise PolicyViolationError(
                    f"share groups read {MAX_PARTITIONS} partitions: no more are allowed"
                )
            opening = asyncio.ensure_future(self._create(key))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def _create(self, key: PartitionKey) -> LiveShare:
        log = self._log(key)
        start = await self._first_offset(key, log)
        partition = SharePartition(key, start)
        await self.share_log.write([partition], self.clock.now_ms())
        if self._live.get(key) is None:
            return self._add(partition, self._log(key))
        return self._live[key]

    async def _first_offset(self, key: PartitionKey, log: PartitionLog) -> int:
        """Return where a group begins in a partition that it has not read."""
        reset = self._configs.text(key.group_id, SHARE_OFFSET_RESET)
        if reset == EARLIEST:
            return log.log_start_offset
        topic, partition = log.tp
        uncommitted = Isolation.READ_UNCOMMITTED
        duration_ms = reset_duration_ms(reset)
        if reset != LATEST and duration_ms is not None:
            since = max(0, self.clock.now_ms() - duration_ms)
            found = await self._positions.find(topic, partition, since, uncommitted, None)
            if found is not None:
                return found.offset
        end = await self._positions.find(topic, partition, Position.LATEST, uncommitted, None)
        return log.high_watermark if end is None else end.offset

    def _log(self, key: PartitionKey) -> PartitionLog:
        topic = self._catalog.topic_by_id(key.topic_id)
        return self.partitions.readable(topic.name, key.partition, None)

    def _add(self, partition: SharePartition, log: PartitionLog) -> LiveShare:
        live = self._live[partition.key] = LiveShare(partition, log)
        return live

    def is_live(self, live: LiveShare) -> bool:
        """Return whether a share partition is still the one in use."""
        return self._live.get(live.partition.key) is live

    async def replace(
        self, partitions: Sequence[SharePartition], breathe: Breathe = no_pause
    ) -> None:
        """Put new share partitions in the place of others; return when they are on disk."""
        logs = [self._log(partition.key) for partition in partitions]
        await self.share_log.write(partitions, self.clock.now_ms(), breathe)
        for partition, log in zip(partitions, logs, strict=True):
            self._add(partition, log)
            self.wake(log.tp)

    async def forget(self, keys: Sequence[PartitionKey]) -> None:
        """Delete share partitions; return when that is on disk."""
        for key in keys:
            live = self._live.pop(key, None)
            self._deadlines.cancel(key)
            if live is not None:
                self.wake(live.log.tp)
        await self.share_log.delete(keys)

    async def forget_group(self, group_id: str) -> None:
        """Delete the share partitions of a group; return when that is on disk."""
        await self.forget(self.share_log.keys_of(group_id))

    def topics_deleted(self) -> None:
        """Forget the share partitions of topics that don't exist any more."""
        known = self._catalog.name_of
        deleted = [each for each in self.share_log.topics() if known(each) is None]
        gone = [key for each in deleted for key in self.share_log.keys_of_topic(each)]
        if gone and not self.is_stopping:
            self._run(gone)

    def _run(self, keys: list[PartitionKey]) -> None:
        async def work() -> None:
            try:
                await self.forget(keys)
            except TidemillError as error:  # the next start deletes them
                logger.warning("share.state_not_deleted", error=str(error))

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- a disk that refuses ---------------------------------------------------------------------

    def _store_later(self, changed: Sequence[SharePartition]) -> None:
        """Write share partitions again later: what changed in them is not on disk."""
        self._unstored.update((partition.key, None) for partition in changed)
        if self._retry is None and not self.is_stopping:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._store_again)

    def _store_again(self) -> None:
        self._retry = None
        keys, self._unstored = self._unstored, {}
        partitions = [live.partition for key in keys if (live := self._live.get(key)) is not None]
        self.share_log.write_soon(partitions, self.clock.now_ms())

    # --- members ---------------------------------------------------------------------------------

    def owner(self, group_id: str, member_id: str) -> int:
        """Return the number of a member, the same until it leaves."""
        number = self._owners.get((group_id, member_id))
        if number is None:
            number = self._owners[group_id, member_id] = next(self._numbers) & 0xFFFFFFFF or 1
        return number

    def known_owner(self, group_id: str, member_id: str) -> int | None:
        """Return the number of a member that has one."""
        return self._owners.get((group_id, member_id))

    def leave(self, group_id: str, member_id: str) -> None:
        """Return all records that a member holds; their delivery is not counted."""
        owner = self._owners.pop((group_id, member_id), None)
        if owner is None:
            return
        for key in self.share_log.keys_of(group_id):
            live = self._live.get(key)
            if live is not None and live.partition.release_member(owner):
                self.wake(live.log.tp)

    # --- time ------------------------------------------------------------------------------------

    def acquired(self, live: LiveShare) -> None:
        """Note that records of a share partition have deadlines."""
        deadline = live.partition.window.next_deadline()
        if deadline is None:
            return
        key = live.partition.key
        known = self._deadlines.get(key)
        if known is None or deadline < known:
            self._deadlines.set(key, deadline)
            self._schedule()

    def _schedule(self) -> None:
        deadline = self._deadlines.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None and not self.is_stopping:
            delay_s = max(0, deadline - self.clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        """Return the records whose time is over."""
        self._timer = None
        now_ms = self.clock.monotonic_ms()
        changed = []
        while (key := self._deadlines.pop_due(now_ms)) is not None:
            live = self._live.get(key)
            if live is None:
                continue
            if live.partition.expire(now_ms, self.limits(key.group_id)):
                changed.append(live.partition)
                self.wake(live.log.tp)
            deadline = live.partition.window.next_deadline()
            if deadline is not None:
                self._deadlines.set(key, deadline)
        if changed:
            logger.info("share.locks_expired", partitions=len(changed))
            self.share_log.write_soon(changed, self.clock.now_ms())
        self._schedule()

    # --- waiting ---------------------------------------------------------------------------------

    def wait(self, tps: Iterable[TopicPartition]) -> asyncio.Future[None]:
        """Return a future that is done when records of a partition could be acquired."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for tp in tps:
            self._waiting.setdefault(tp, set()).add(future)
        return future

    def end_wait(self, future: asyncio.Future[None], tps: Iterable[TopicPartition]) -> None:
        """Forget a future that ``wait`` returned."""
        for tp in tps:
            waiting = self._waiting.get(tp)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[tp]

    def advanced(self, logs: Sequence[PartitionLog]) -> None:
        """Wake the members that wait for new records."""
        if self._waiting:
            for log in logs:
                if log.tp in self._waiting:
                    self.wake(log.tp)

    def wake(self, tp: TopicPartition) -> None:
        """Wake the members that wait for records of a partition."""
        for future in self._waiting.get(tp, ()):
            settle(future, None)
