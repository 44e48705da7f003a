"""Measures the lag of a group, in records and in time.

The lag in time is the age of the first record that the group has not read. That record is fetched,
because no request returns a record's timestamp by its offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli import output
from tidemill.cli.client import END_SOON, Cluster, TopicPartitionKey, raise_if_failed
from tidemill.errors import UnknownTopicOrPartitionError

FETCH_SECONDS = 5.0


@dataclass(frozen=True)
class PartitionLag:
    """The lag of a group on a partition. Values that are unknown are None."""

    topic: str
    partition: int
    committed: int | None
    start: int | None
    end: int | None
    first_unread_ms: int | None
    now_ms: int
    stable: int | None = None
    """The last stable offset: readers with read_committed can read up to there."""
    nothing_left: bool = False
    """Whether only transaction markers and records of aborted transactions are left to read."""

    @property
    def key(self) -> TopicPartitionKey:
        return self.topic, self.partition

    @property
    def lag(self) -> int | None:
        """The number of records that are there and not read."""
        if self.committed is None or self.start is None or self.end is None:
            return None
        if self.nothing_left:
            return 0
        return max(self.end - max(self.committed, self.start), 0)

    @property
    def lag_ms(self) -> int | None:
        """The age of the first unread record; 0 if all records are read."""
        if self.lag == 0:
            return 0
        return None if self.first_unread_ms is None else max(self.now_ms - self.first_unread_ms, 0)

    @property
    def held_back(self) -> bool:
        """Whether an open transaction keeps readers with read_committed from unread records."""
        return bool(self.lag) and self.stable is not None and self.stable < (self.end or 0)

    @property
    def lost(self) -> int:
        """The number of records that were deleted before the group read them."""
        if self.committed is None or self.start is None:
            return 0
        return max(self.start - self.committed, 0)

    def as_dict(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "committed": self.committed,
            "start": self.start,
            "stable": self.stable,
            "end": self.end,
            "lag": self.lag,
            "lag_ms": self.lag_ms,
            "first_unread_timestamp": self.first_unread_ms,
            "lost": self.lost,
        }


def partition_lags(
    cluster: Cluster,
    committed: Mapping[TopicPartitionKey, int],
    assigned: Sequence[TopicPartitionKey],
) -> list[PartitionLag]:
    """Return the lag on each partition that the group has committed on or is assigned."""
    held = {}
    for topic in sorted({topic for topic, _ in (*committed, *assigned)}):
        try:
            held.update(cluster.offsets(cluster.partitions(topic)))
        except UnknownTopicOrPartitionError:
            continue  # deleted since: the lag is shown as unknown
    unread = {
        key: max(offset, held[key].start)
        for key, offset in committed.items()
        if key in held and max(offset, held[key].start) < held[key].end
    }
    stable = stable_offsets(cluster, [key for key in (*committed, *assigned) if key in held])
    timestamps, ends = _first_timestamps(cluster, unread)
    now_ms = time.time_ns() // 1_000_000
    return [
        PartitionLag(
            topic=key[0],
            partition=key[1],
            committed=committed.get(key),
            start=held[key].start if key in held else None,
            end=held[key].end if key in held else None,
            stable=stable.get(key),
            first_unread_ms=timestamps.get(key),
            now_ms=now_ms,
            nothing_left=key in ends and ends[key] >= held[key].end,
        )
        for key in sorted({*committed, *assigned})
    ]


def stable_offsets(
    cluster: Cluster, keys: Sequence[TopicPartitionKey]
) -> dict[TopicPartitionKey, int]:
    """Return the last stable offset of each partition."""
    return _ends(cluster, keys, committed=True)


def _ends(
    cluster: Cluster, keys: Sequence[TopicPartitionKey], *, committed: bool
) -> dict[TopicPartitionKey, int]:
    from confluent_kafka.admin import OffsetSpec

    specs: Any = OffsetSpec
    return cluster.list_offsets(dict.fromkeys(keys, specs.latest()), committed=committed)


def held_back(cluster: Cluster, keys: Sequence[TopicPartitionKey]) -> bool:
    """Return whether an open transaction hides records from readers with read_committed."""
    ends = _ends(cluster, keys, committed=False)
    # The ends come first: a later request could count records that arrived in between.
    stable = stable_offsets(cluster, keys)
    return any(stable[key] < ends[key] for key in keys)


def note_held_back(topics: Iterable[str]) -> None:
    """Print which topics have hidden records. Their number is unknown: markers have offsets too."""
    for topic in topics:
        output.note(
            f"Records of {topic} wait for an open transaction: tidemill transaction find {topic}"
        )


def _first_timestamps(
    cluster: Cluster, positions: Mapping[TopicPartitionKey, int]
) -> tuple[dict[TopicPartitionKey, int], dict[TopicPartitionKey, int]]:
    """Fetch the first record at or after each position, within ``FETCH_SECONDS``.

    Returns:
        The timestamps of the records; and the end offsets of partitions that have no record up to
        the end that readers can see.
    """
    from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, TopicPartition

    if not positions:
        return {}, {}
    consumer = cluster.consumer(
        auto_offset_reset="earliest",
        enable_partition_eof=True,
        queued_min_messages=1,
        max_partition_fetch_bytes=4096,
        **END_SOON,
    )
    found: dict[TopicPartitionKey, int] = {}
    ends: dict[TopicPartitionKey, int] = {}
    waiting = set(positions)
    deadline = time.monotonic() + FETCH_SECONDS
    try:
        consumer.assign([TopicPartition(*key, offset) for key, offset in positions.items()])
        while waiting and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            key = (str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise_if_failed(cluster, message, f"topic {key[0]}")
            if key not in waiting:
                continue
            waiting.discard(key)
            consumer.pause([TopicPartition(*key)])
            if error is not None:
                ends[key] = int(message.offset() or 0)
                continue
            kind, timestamp = message.timestamp()
            if kind != TIMESTAMP_NOT_AVAILABLE:
                found[key] = timestamp
    finally:
        consumer.close()
    return found, ends
