"""Answer runs: ordinary Produce requests at the front of what a connection has sent, all together.

A client that sends each record in a request of its own sends many of them, and so does one with
several large requests on their way. Native code decodes and checks a run in one call
(``kafka_codec.hot.read_run``), the engine appends it in one, and one encodes the responses. What
is not ordinary is left to ``answer``, with the same results.

Knows Produce and the engine's door, and no connection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from uuid import UUID

from tidemill.engine.api import Durability, PendingWrites, WriteResult
from tidemill.engine.door import Door
from tidemill.engine.runs import RunWrite, Target
from tidemill.errors import TidemillError
from tidemill.kafka_codec.hot import RunRequest, RunTopic, encode_run, read_run
from tidemill.log.names import TopicPartition
from tidemill.parts import Part
from tidemill.protocols.kafka.handlers.produce import refusal_of

MOST_REQUESTS = 64
"""Requests of one run."""
MOST_PLACES = 8192
"""Partitions that a connection remembers."""


class _Targets(dict[int, Target]):
    """The partitions of one topic that a connection remembers; a missing one is added."""

    def __init__(self, name: str, topic_id: UUID | None) -> None:
        super().__init__()
        self._name = name
        self._topic_id = topic_id

    def __missing__(self, index: int) -> Target:
        target = self[index] = Target(TopicPartition(self._name, index), self._topic_id)
        return target


_DURABILITY = {1: Durability.WRITTEN, -1: Durability.SYNCED}


class Run:
    """Requests that were handled together.

    Attributes:
        count: their number.
        responses: what to send; empty until they have waited for the disk.
    """

    __slots__ = ("_pending", "_requests", "_version", "count", "responses")

    def __init__(
        self,
        version: int,
        requests: Sequence[RunRequest],
        results: list[WriteResult],
        pending: PendingWrites | None,
    ) -> None:
        self.count = len(requests)
        self._version = version
        self._requests = requests
        self._pending = pending
        self.responses: list[Part] = [] if pending is not None else self._encode(results)

    def _encode(self, results: list[WriteResult]) -> list[Part]:
        """Return the responses, next to each other in one buffer."""
        version = self._version
        produced = [
            each if isinstance(each, tuple) else refusal_of(version, each) for each in results
        ]
        return [encode_run(version, self._requests, produced)]

    def call_when_done(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` on the event loop when there are responses; return False if they are.

        This must be called in the turn of the event loop that made the run.
        """
        if self._pending is None:
            return False

        def done(results: list[WriteResult]) -> None:
            self.responses = self._encode(results)
            callback()

        self._pending.call_when_done(done)
        return True


class Runs:
    """Takes the runs of one connection."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._records = door.records
        self._quotas = door.quotas.quotas
        self._targets: dict[str | bytes, _Targets] = {}
        self._remembered = 0
        self._most = 1

    def most(self, count: int) -> int:
        """Return how many of ``count`` requests to pass to ``take``: few where there was no run."""
        return min(count, self._most)

    def take(self, frames: list[memoryview]) -> Run | None:
        """Append the run at the front of some requests; None if there is none.

        Args:
            frames: requests without their lengths. They can be reused when this returns.
        """
        if self._quotas.counts_writes or not self._records.takes_runs:
            return None
        version, acks, requests = read_run(frames)
        writes: list[RunWrite] = []
        ends: list[int] = []
        for frame, (_, topics) in zip(frames, requests, strict=False):
            if not self._add(frame, topics, writes):
                break
            ends.append(len(writes))
        self._most = min(2 * self._most, MOST_REQUESTS) if ends else 1
        if not ends:
            return None
        del writes[ends[-1] :]
        results, pending = self._records.append_run(writes, _DURABILITY[acks], ends)
        if not results:
            return None
        return Run(version, requests[: bisect_right(ends, len(results))], results, pending)

    def _add(self, frame: memoryview, topics: list[RunTopic], writes: list[RunWrite]) -> bool:
        """Add the writes of a request; return False if one of its topics does not exist."""
        for name, topic_id, partitions in topics:
            targets = self._targets.get(topic_id or name) or self._new_targets(name, topic_id)
            if targets is None:
                return False
            known = len(targets)
            for index, start, end, facts in partitions:
                writes.append((targets[index], frame[start:end], facts))
            if len(targets) > known:
                self._remember(len(targets) - known)
        return True

    def _new_targets(self, name: str, topic_id: bytes | None) -> _Targets | None:
        """Remember a topic, if it exists: what clients make up must take no memory."""
        topics = self._door.topics
        known = None if topic_id is None else UUID(bytes=topic_id)
        try:
            found = topics.get(name) if known is None else topics.by_id(known)
        except TidemillError:
            return None
        targets = self._targets[topic_id or name] = _Targets(found.name, known)
        return targets

    def _remember(self, more: int) -> None:
        """Count so many new targets; forget all if they are too many."""
        self._remembered += more
        if self._remembered > MOST_PLACES:
            self._targets.clear()
            self._remembered = 0
