"""Stores the changes of share partitions in ``__share_group_state``.

Acknowledgements are answered when they are on disk. Knows records and their keys, and no member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

import structlog

from tidemill.engine.flusher import settle
from tidemill.engine.shares.api import Breathe, no_pause
from tidemill.engine.state_log import StateLog
from tidemill.errors import TidemillError
from tidemill.state.errors import CoordinatorNotAvailableError
from tidemill.state.outcome import StateRecord
from tidemill.state.share_partitions.format import (
    Kind,
    PartitionKey,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
)
from tidemill.state.share_partitions.partition import SharePartition

T = TypeVar("T")

TOGETHER = 64
"""Share partitions that are written in one piece."""

logger = structlog.get_logger("tidemill.shares")


class ShareLog:
    """The share partitions as they are on disk.

    Args:
        on_failed: called with what could not be written. Its next record says all of it.
    """

    def __init__(
        self, state_log: StateLog, on_failed: Callable[[Sequence[SharePartition]], None]
    ) -> None:
        self._state_log = state_log
        self._on_failed = on_failed
        self._stored: dict[PartitionKey, dict[Kind, bytes]] = {}
        """The share partitions that are not in use since the start."""
        self._by_group: dict[str, dict[PartitionKey, None]] = {}
        self._by_topic: dict[UUID, dict[PartitionKey, None]] = {}

    # --- start -----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read what is stored."""
        for data, value in self._state_log.latest().items():
            if value is not None:
                with self._state_log.naming_place():
                    kind, key = decode_key(data)
                self._stored.setdefault(key, {})[kind] = value
                self._note(key)

    def _note(self, key: PartitionKey) -> None:
        """Note that a share partition has records."""
        self._by_group.setdefault(key.group_id, {})[key] = None
        self._by_topic.setdefault(key.topic_id, {})[key] = None

    def topics(self) -> list[UUID]:
        """Return the topics that have records."""
        return list(self._by_topic)

    def keys_of_topic(self, topic_id: UUID) -> list[PartitionKey]:
        """Return the share partitions of a topic that have records."""
        return list(self._by_topic.get(topic_id, ()))

    def all_keys(self) -> Iterator[PartitionKey]:
        """Yield all share partitions that have records."""
        for keys in list(self._by_group.values()):
            yield from list(keys)

    def keys_of(self, group_id: str) -> list[PartitionKey]:
        """Return the share partitions of a group that have records."""
        return list(self._by_group.get(group_id, ()))

    def take(self, key: PartitionKey) -> SharePartition | None:
        """Return, once, the share partition as it was stored."""
        values = self._stored.get(key)
        if values is None or Kind.SNAPSHOT not in values:
            return None
        with self._state_log.naming_place():
            snapshot, created_ms = decode_snapshot(values[Kind.SNAPSHOT])
            update = values.get(Kind.UPDATE)
            changed = None if update is None else decode_update(update)
            found = SharePartition.of_stored(key, snapshot, created_ms, changed)
        del self._stored[key]
        return found

    # --- write -----------------------------------------------------------------------------------

    async def write(
        self, changed: Sequence[SharePartition], now_ms: int, breathe: Breathe = no_pause
    ) -> None:
        """Store what changed; return when it is on disk."""
        waiting = []
        for first in range(0, len(changed), TOGETHER):
            if first:
                await breathe()
            part = changed[first : first + TOGETHER]
            waiting.append(self._submit(self._take(part, now_ms), part))
        for written in waiting:
            await written

    def _submit(
        self, records: Sequence[StateRecord], changed: Sequence[SharePartition] = ()
    ) -> asyncio.Future[None]:
        """Append records; return a future that is done when they are on disk."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.add_done_callback(lambda each: each.cancelled() or each.exception())

        def done(error: Exception | None) -> None:
            if error is not None:
                self._failed(changed, error)
                error = CoordinatorNotAvailableError(
                    f"the state of the share group could not be written: {error}"
                )
            settle(written, error)

        self._state_log.submit(records, done)
        return written

    def write_soon(self, changed: Sequence[SharePartition], now_ms: int) -> None:
        """Store what changed, without waiting for the disk."""
        records = self._take(changed, now_ms)
        if not records:
            return
        try:
            self._state_log.append(records)
        except TidemillError as error:
            self._failed(changed, error)

    def _failed(self, changed: Sequence[SharePartition], error: Exception) -> None:
        if not changed:
            return
        logger.error("share.state_not_stored", error=str(error), partitions=len(changed))
        for partition in changed:
            partition.must_snapshot()
        self._on_failed(changed)

    def _take(self, changed: Iterable[SharePartition], now_ms: int) -> list[StateRecord]:
        records = []
        for partition in changed:
            records.append(partition.take_record(now_ms))
            self._note(partition.key)
        return records

    async def delete(self, keys: Sequence[PartitionKey]) -> None:
        """Delete what is stored of share partitions; return when that is on disk."""
        kept = [key for key in keys if key in self._by_group.get(key.group_id, ())]
        records = [StateRecord(encode_key(kind, key), None) for key in kept for kind in Kind]
        if not records:
            return
        written = self._submit(records)
        for key in kept:
            self._stored.pop(key, None)
            _remove(self._by_group, key.group_id, key)
            _remove(self._by_topic, key.topic_id, key)
        await written


def _remove(index: dict[T, dict[PartitionKey, None]], name: T, key: PartitionKey) -> None:
    keys = index[name]
    keys.pop(key, None)
    if not keys:
        del index[name]
