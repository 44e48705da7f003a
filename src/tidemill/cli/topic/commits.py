"""Commits offsets for ``topic consume --group`` without ever waiting for a broker that is gone.

librdkafka waits for the answer to a commit as long as the broker is away: in a call that commits,
when the consumer is closed, and even when the process ends. So commits are sent, and their answers
arrive while records are read. This module must not know how records are read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.cli import output
from tidemill.cli.client import Cluster, TopicPartitionKey
from tidemill.errors import UnreachableError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

_POLL_SECONDS = 0.1
_REBALANCED = {"REBALANCE_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"}


class Commits:
    """The commits of one consumer. ``on_commit`` is its callback."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._unanswered = 0
        self._error: KafkaError | None = None

    def on_commit(self, error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        """Note the answer to a commit."""
        self._unanswered -= 1
        if error is None:
            return
        if error.name() in _REBALANCED:
            output.note("The group rebalanced before a commit: some records will be printed again.")
        elif error.name() != "_NO_OFFSET":
            self._error = error

    def send(self, consumer: Consumer, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Send a commit."""
        from confluent_kafka import TopicPartition

        self.check()
        if offsets:
            wanted = [TopicPartition(*key, offset) for key, offset in offsets.items()]
            consumer.commit(offsets=wanted, asynchronous=True)
            self._unanswered += 1

    def check(self) -> None:
        """Raise the error of a commit that was refused, once."""
        error, self._error = self._error, None
        if error is not None:
            raise self._cluster.translate(error, "commit")

    def finish(
        self, consumer: Consumer, offsets: Mapping[TopicPartitionKey, int], seconds: float
    ) -> bool:
        """Commit the last offsets, and wait for all answers.

        Records that arrive meanwhile are dropped, so they must not be printed afterwards.

        Returns:
            Whether all answers have arrived. If not, neither a close of the consumer nor an exit of
            the process would end before the broker is back.
        """
        if offsets:
            try:
                self._cluster.check_reachable()
            except UnreachableError:
                return not self._unanswered and self._skip(offsets)
        self.send(consumer, offsets)
        deadline = time.monotonic() + seconds
        while self._unanswered and time.monotonic() < deadline:
            consumer.poll(_POLL_SECONDS)
        self.check()
        return not self._unanswered

    def _skip(self, offsets: Mapping[TopicPartitionKey, int]) -> bool:
        partitions = output.plural(len(offsets), "partition")
        output.warn(
            f"the last records of {partitions} were printed and not committed: "
            "the group reads them again"
        )
        return True
