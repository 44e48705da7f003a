"""Answer runs: ordinary Produce requests at the front of what a connection has sent, all together.

A client that sends each record in a request of its own sends many of them, and so does one with
several large requests on their way. Native code decodes and checks a run in one call
(``codec.quick.read_run``), the engine appends it in one, and its responses are made from templates.
One request to many partitions, or with more bytes than a run has, is a run of batches too
(``read_request``). What is not ordinary is left to ``answer``, with the same results.

Knows Produce and the engine's door, and no connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, cast
from uuid import UUID

from tidemill.engine.api import Durability, WriteResult
from tidemill.engine.door import Door
from tidemill.engine.runs import PendingRun, RunResult, RunWrite, Target
from tidemill.errors import TidemillError
from tidemill.kafka_codec.declared import PRODUCE, is_flexible
from tidemill.kafka_codec.headers import frame_response, parse_header
from tidemill.kafka_codec.hot import ProducedPartition, encode_produce
from tidemill.kafka_codec.quick import (
    CheckedTopic,
    decode_quickly,
    encode_all,
    encode_one,
    produced_template,
    read_request,
    read_run,
)
from tidemill.log.names import TopicPartition
from tidemill.parts import Part
from tidemill.protocols.kafka.handlers.produce import encode_result, produced_partition

MOST_REQUESTS = 64
"""Requests of one run."""
MOST_PLACES = 8192
"""Partitions that a connection remembers."""


class _Place(NamedTuple):
    """A partition as requests of one version name it, and the template of their responses."""

    target: Target
    name: str
    topic_id: UUID | None
    partition: int
    version: int
    response: struct.Struct
    size: int
    before: bytes
    after: bytes


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

_Asked: TypeAlias = list[tuple[_Place, int]]
"""Per request: its partition, and its correlation id."""


class Run:
    """Requests that were handled together.

    Attributes:
        count: their number.
        responses: what to send; empty until they have waited for the disk.
    """

    __slots__ = ("_encode", "_pending", "count", "responses")

    def __init__(
        self,
        count: int,
        encode: Callable[[list[RunResult]], list[Part]],
        results: list[RunResult],
        pending: PendingRun | None,
    ) -> None:
        self.count = count
        self._encode = encode
        self._pending = pending
        self.responses: list[Part] = [] if pending is not None else encode(results)

    def call_when_done(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` on the event loop when there are responses; return False if they are.

        This must be called in the turn of the event loop that made the run.
        """
        if self._pending is None:
            return False

        def done(results: list[RunResult]) -> None:
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
        self._places: dict[bytes, _Place] = {}
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
        if not requests:
            self._most = 1
            return self._take_one(frames[0])
        asked: _Asked = []
        writes: list[RunWrite] = []
        for frame, (key, correlation_id, start, end, facts) in zip(frames, requests, strict=False):
            place = self._places.get(key) or self._look_up(key, frame, version)
            if place is None:
                break
            asked.append((place, correlation_id))
            writes.append((place.target, frame[start:end], facts))
        self._most = min(2 * self._most, MOST_REQUESTS) if writes else 1
        if not writes:
            return None
        results, pending = self._records.append_run(writes, _DURABILITY[acks])
        return Run(len(results), partial(_encode, asked), results, pending) if results else None

    def _take_one(self, frame: memoryview) -> Run | None:
        """Append what one request has; None if all of it is for ``answer``."""
        found = read_request(frame)
        if found is None:
            return None
        version, acks, correlation_id, topics = found
        writes: list[RunWrite] = []
        for name, topic_id, partitions in topics:
            targets = self._targets.get(topic_id or name) or self._new_targets(name, topic_id)
            if targets is None:
                return None
            known = len(targets)
            writes += [
                (targets[index], frame[start:end], facts) for index, start, end, facts in partitions
            ]
            self._remember(len(targets) - known)
        results, pending = self._records.append_run(writes, _DURABILITY[acks], whole=True)
        if not results:
            return None
        return Run(1, partial(_encode_one, version, correlation_id, topics), results, pending)

    def _new_targets(self, name: str, topic_id: bytes | None) -> _Targets | None:
        known = None if topic_id is None else UUID(bytes=topic_id)
        found = self._existing(name, known)
        if found is None:
            return None
        targets = self._targets[topic_id or name] = _Targets(found, known)
        return targets

    def _existing(self, name: str, topic_id: UUID | None) -> str | None:
        """Return the name of a topic that exists. What clients make up must take no memory."""
        topics = self._door.topics
        try:
            return (topics.get(name) if topic_id is None else topics.by_id(topic_id)).name
        except TidemillError:
            return None

    def _remember(self, more: int) -> None:
        """Count so many new targets; forget all if they are too many."""
        self._remembered += more
        if self._remembered > MOST_PLACES:
            self._targets.clear()
            self._remembered = 0

    def _look_up(self, key: bytes, frame: memoryview, version: int) -> _Place | None:
        _, body = parse_header(frame, PRODUCE, version)
        request = decode_quickly(frame, body, version)
        if request is None:
            return None
        topic = request.topics[0]
        partition = topic.partitions[0][0]
        name = self._existing(topic.name, topic.topic_id)
        if name is None:
            return None
        target = Target(TopicPartition(name, partition), topic.topic_id)
        before, after = produced_template(version, topic.name, topic.topic_id, partition)
        if is_flexible(PRODUCE, version):
            before = b"\0" + before  # no tagged fields in the header
        layout = struct.Struct(f">ii{len(before)}sqqq{len(after)}s")
        place = _Place(
            *(target, topic.name, topic.topic_id, partition, version),
            *(layout, layout.size - 4, before, after),
        )
        if len(self._places) >= MOST_PLACES:
            self._places.clear()
        self._places[key] = place
        return place


def _encode(asked: _Asked, results: list[RunResult]) -> list[Part]:
    """Return the responses, next to each other in one buffer."""
    out = bytearray()
    for (place, correlation_id), result in zip(asked, results, strict=False):
        if isinstance(result, tuple):
            out += place.response.pack(
                place.size, correlation_id, place.before, *result, place.after
            )
        else:
            out += _refusal(place, correlation_id, result)
    return [out]


def _refusal(place: _Place, correlation_id: int, error: TidemillError) -> bytes:
    body = encode_result(
        place.version, place.name, place.topic_id, place.partition, WriteResult(error=error)
    )
    parts = frame_response(PRODUCE, place.version, correlation_id, [body])
    return b"".join(cast("list[bytes]", parts))


def _encode_one(
    version: int, correlation_id: int, topics: list[CheckedTopic], results: list[RunResult]
) -> list[Part]:
    """Return the response to one request."""
    if len(results) == len(topics) == 1 and isinstance(results[0], tuple):
        ((name, topic_id, ((index, *_),)),) = topics
        known = None if topic_id is None else UUID(bytes=topic_id)
        quick = encode_one(version, name, known, index, results[0])
        if quick is not None:
            return frame_response(PRODUCE, version, correlation_id, [quick])
    appended = [result for result in results if isinstance(result, tuple)]
    if len(appended) == len(results):
        named = [(name, topic_id, [each[0] for each in of]) for name, topic_id, of in topics]
        body = encode_all(version, named, appended)
        if body is not None:
            return frame_response(PRODUCE, version, correlation_id, [body])
    following = iter(results)
    produced = []
    for name, topic_id, partitions in topics:
        of_topic = []
        for index, _, _, _ in partitions:
            result = next(following)
            of_topic.append(
                ProducedPartition(index, 0, *result)
                if isinstance(result, tuple)
                else produced_partition(version, index, WriteResult(error=result))
            )
        known = None if topic_id is None else UUID(bytes=topic_id)
        produced.append((name, known, of_topic))
    body = encode_produce(version, produced, 0)
    return frame_response(PRODUCE, version, correlation_id, [body])
