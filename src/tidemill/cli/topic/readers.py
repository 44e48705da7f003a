"""Two ways to read a topic: alone from given positions, or as a member of a group.

This module must not know how records are printed. The command reports to a reader which records
were printed, and the member of a group commits those.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.cli import output
from tidemill.cli.client import (
    END_SOON,
    REQUEST_SECONDS,
    Cluster,
    TopicPartitionKey,
    raise_if_failed,
)
from tidemill.cli.outage import Outage
from tidemill.cli.positions import resolve
from tidemill.cli.topic.commits import Commits
from tidemill.positions import Kind, Position

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

POLL_SECONDS = 0.2
COMMIT_SECONDS = 1.0
OFFSET_END = -1
ASSIGNMENT = "partition.assignment.strategy"
_CLOSE_SECONDS = 5.0
"""How long the last commit can take."""


class _Messages:
    """The messages of a consumer that has one topic."""

    def __init__(self, cluster: Cluster, topic: str, consumer: Consumer, outage: Outage) -> None:
        self._cluster = cluster
        self._topic = topic
        self._consumer = consumer
        self._outage = outage

    def poll(self) -> Iterator[tuple[Message, bool]]:
        """Yield (message, whether it is a record; otherwise it is the end of its partition)."""
        from confluent_kafka import KafkaError

        from tidemill.confluent.reading import arrived

        for message in arrived(self._consumer, POLL_SECONDS):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                yield message, False
            else:
                raise_if_failed(self._cluster, message, f"topic {self._topic}")
                yield message, True
        self._outage.check()


def _key(message: Message) -> TopicPartitionKey:
    return str(message.topic()), int(message.partition() or 0)


class PartitionReader:
    """Reads partitions from given offsets, up to their ends of now if that is wanted."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        only: list[int] | None,
        start: Position,
        *,
        until_end: bool,
    ) -> None:
        from confluent_kafka import TopicPartition

        self.keys = keys = cluster.partitions(topic, only)
        starts = resolve(cluster, keys, start)
        outage = Outage(cluster, REQUEST_SECONDS if until_end else None)
        # "error": fail if retention deletes records before they are read.
        self._consumer = cluster.consumer(
            on_error=outage.on_error,
            auto_offset_reset="error",
            enable_partition_eof=True,
            **(END_SOON if until_end else {}),
        )
        self._messages = _Messages(cluster, topic, self._consumer, outage)
        self._ends: dict[TopicPartitionKey, int] | None = None
        if until_end:
            ends = {key: held.end for key, held in cluster.offsets(keys).items()}
            self._ends = {key: end for key, end in ends.items() if starts[key] < end}
        self._consumer.assign([TopicPartition(*key, starts[key]) for key in keys])

    @property
    def at_end(self) -> bool:
        """Whether it has read all records that were there at the start."""
        return self._ends is not None and not self._ends

    def poll(self) -> Iterator[Message]:
        """Wait a moment for records, and yield those that have arrived."""
        for message, is_record in self._messages.poll():
            if self._ends is None:
                if is_record:
                    yield message
                continue
            key, offset = _key(message), int(message.offset() or 0)
            end = self._ends.get(key)
            if end is None:
                continue
            if not is_record or offset >= end - 1:
                del self._ends[key]
            if is_record and offset < end:
                yield message

    def printed(self, message: Message) -> None:
        """Note that a record was written to the output."""

    def flushed(self) -> None:
        """Note that the output was flushed."""

    def close(self) -> None:
        """Commit and disconnect."""
        self._consumer.close()


class GroupReader:
    """Reads as a member of a group, and commits the offsets of printed records.

    ``start`` is for partitions without a committed offset: beginning or end (None).
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        start: Position | None,
        *,
        until_end: bool,
    ) -> None:
        cluster.describe_topic(topic)
        # If the record at a committed offset was deleted, reading starts at the first one that is
        # left. "latest" would skip them all. So a start at the end is set at the assignment.
        outage = Outage(cluster, REQUEST_SECONDS if until_end else None)
        self._commits = Commits(cluster)
        consumer = cluster.consumer(
            group,
            outage.on_error,
            self._commits.on_commit,
            auto_offset_reset="earliest",
            enable_partition_eof=True,
            **(END_SOON if until_end else {}),
        )
        self._outage = outage
        self._cluster = cluster
        self._consumer = consumer
        self._messages = _Messages(cluster, topic, consumer, outage)
        self._start_at_end = start is None or start.kind is Kind.END
        self._until_end = until_end
        self._assigned: set[TopicPartitionKey] = set()
        self._open: set[TopicPartitionKey] | None = None
        """Assigned partitions whose end was not seen; None until the next assignment."""
        self._positions: dict[TopicPartitionKey, int] = {}
        self._uncommitted: dict[TopicPartitionKey, int] = {}
        self._last_commit = time.monotonic()
        consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def close(self) -> None:
        answered = True
        try:
            answered = self._commits.finish(self._consumer, self._due(), _CLOSE_SECONDS)
        finally:
            if not answered:
                output.warn("the broker is gone: the last records were perhaps not committed")
                sys.stdout.flush()
                os._exit(output.UNREACHABLE)  # librdkafka would wait until the broker is back
            self._consumer.close()

    @property
    def keys(self) -> list[TopicPartitionKey]:
        """The partitions that are assigned to this member."""
        return sorted(self._assigned)

    @property
    def at_end(self) -> bool:
        """Whether it has seen the ends of all partitions that are assigned to it."""
        return self._until_end and self._open is not None and not self._open

    def poll(self) -> Iterator[Message]:
        for message, is_record in self._messages.poll():
            if is_record:
                yield message
            elif self._open is not None:
                self._open.discard(_key(message))

    def printed(self, message: Message) -> None:
        self._positions[_key(message)] = int(message.offset() or 0) + 1

    def flushed(self) -> None:
        self._uncommitted.update(self._positions)
        self._positions.clear()
        if self._outage.ongoing or time.monotonic() - self._last_commit < COMMIT_SECONDS:
            return
        self._last_commit = time.monotonic()
        self._commits.send(self._consumer, self._due())

    def _due(self) -> dict[TopicPartitionKey, int]:
        """Return the offsets to commit, which are then no longer due."""
        due = {
            key: offset
            for key, offset in self._uncommitted.items()
            if key in self._assigned  # another member may have read further on revoked partitions
        }
        self._uncommitted = {}
        return due

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        added = {(tp.topic, tp.partition) for tp in partitions}
        self._assigned |= added
        self._open = (self._open or set()) | added
        if self._start_at_end and partitions:
            starts = consumer.committed(partitions, timeout=REQUEST_SECONDS)
            new = [start for start in starts if start.offset < 0]
            for start in new:
                start.offset = OFFSET_END
            if not self._until_end:
                output.note(_start_text(len(starts), len(new)))
            if self._is_incremental():
                consumer.incremental_assign(starts)
            else:
                consumer.assign(starts)

    def _is_incremental(self) -> bool:
        """Return whether partitions are added to those that the member has."""
        properties = self._cluster.properties
        cooperative = "cooperative" in properties.get(ASSIGNMENT, "")
        return cooperative or properties.get("group.protocol", "").lower() == "consumer"

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commits.send(consumer, self._due())
        self._assigned -= {(tp.topic, tp.partition) for tp in partitions}
        self._open = (self._open or set()) & self._assigned or None

    def _on_lost(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._assigned = set()
        self._open = None


def _start_text(assigned: int, new: int) -> str:
    """Return where a member of a group starts to read."""
    if not new:
        return f"Reading {output.plural(assigned, 'partition')} from the committed offsets."
    hint = "To read from the start, use --from beginning."
    if new == assigned:
        return f"The group has no committed offsets: waiting for new records. {hint}"
    return (
        f"Reading {output.plural(assigned, 'partition')} from the committed offsets; {new} of them "
        f"without one from the end. {hint}"
    )
