"""A fake engine in memory: topics as dicts of lists of batches. Enough for the data APIs.

``hold_acks`` decides when durable writes return: immediately, or when the test calls ``ack_all``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.protocols.kafka.fake_transactions import Answers, FakeTransactions
from tidemill.engine.api import (
    Durability,
    Isolation,
    OffsetAt,
    PartitionRead,
    PartitionWrite,
    Position,
    ProducerInfo,
    ReadQuery,
    ReadResult,
    TopicInfo,
    TransactionVersion,
    WriteResult,
)
from tidemill.engine.authorize import UNRESTRICTED
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.errors import OffsetOutOfRangeError
from tidemill.log.format import batch
from tidemill.settings import Settings
from tidemill.state.errors import CoordinatorNotAvailableError, UnknownTopicIdError

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAwQ"
"""The cluster id of the fake, as clients get it."""


@dataclass
class FakeLog:
    """One partition: whole batches with their stamped offsets."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0
    start: int = 0

    def append(self, records: memoryview) -> int:
        header = batch.check_batch(records)
        batch.stamp(records, 0, self.end, 0)
        first = self.end
        self.batches.append((first, bytes(records)))
        self.end += header.last_offset_delta + 1
        return first

    def read(self, offset: int, max_bytes: int) -> bytes:
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRangeError(f"offset {offset}: [{self.start}, {self.end}]")
        out = b""
        for index, (_, content) in enumerate(self.batches):
            following = self.batches[index + 1][0] if index + 1 < len(self.batches) else self.end
            if following > offset and (not out or len(out) + len(content) <= max_bytes):
                out += content
        return out


class NoGroups:
    """The groups of a broker whose coordinator is not available."""

    join: Callable[..., Any]
    """A test can replace it."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def refuse(*args: object, **kwargs: object) -> None:
            raise CoordinatorNotAvailableError("there are no groups here")

        return refuse


class FakeEngine(Answers):
    """As much of the engine as the data handlers use. It is its own door."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.access = UNRESTRICTED
        self.port = 0
        """Of the server that serves it."""
        self.infos: dict[str, TopicInfo] = {}
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.hold_acks = False
        self.unacked: list[asyncio.Future[list[WriteResult]]] = []
        self.held: list[list[WriteResult]] = []
        self.fetches: list[ReadQuery] = []
        self.waiting: list[asyncio.Event] = []
        self.appended = 0
        self.holds: dict[str, int] = {}
        """Milliseconds that the producers of topics must wait."""
        self.produced: list[tuple[str | None, TransactionVersion]] = []
        self.refused_writes: TidemillError | None = None
        """The error of all transactional writes."""
        self.records = FakeRecords(self)
        self.topics = FakeTopics(self)
        self.storage = SimpleNamespace(cluster_id=UUID(int=0xC1))
        self.groups = NoGroups()
        self.transactions = FakeTransactions(self)

    def door(self) -> FakeEngine:
        return self

    def make_topic(self, name: str, partitions: int = 1) -> TopicInfo:
        info = TopicInfo(name, UUID(int=0xABC0 + len(self.infos)), partitions, internal=False)
        self.infos[name] = info
        for index in range(partitions):
            self.logs[name, index] = FakeLog()
        return info

    def topic(self, name: str) -> TopicInfo:
        return self.topics.get(name)

    def log(self, topic: str, partition: int) -> FakeLog:
        try:
            return self.logs[topic, partition]
        except KeyError:
            raise UnknownTopicOrPartitionError(f"no {topic}-{partition}") from None

    def tell_news(self) -> None:
        """Fetches that wait look again."""
        for each in self.waiting:
            each.set()

    def ack_all(self) -> None:
        """The disk has synced."""
        for future, results in zip(self.unacked, self.held, strict=True):
            if not future.done():
                future.set_result(results)
        self.unacked.clear()
        self.held.clear()


class FakeTopics:
    """Answers like ``engine.topics``."""

    def __init__(self, broker: FakeEngine) -> None:
        self._broker = broker

    def get(self, name: str) -> TopicInfo:
        if name not in self._broker.infos:
            raise UnknownTopicOrPartitionError(f"no topic {name}")
        return self._broker.infos[name]

    def by_id(self, topic_id: UUID) -> TopicInfo:
        for info in self._broker.infos.values():
            if info.topic_id == topic_id:
                return info
        raise UnknownTopicIdError(f"no topic {topic_id}")

    def all(self) -> list[TopicInfo]:
        return list(self._broker.infos.values())

    async def ensure(self, name: str) -> TopicInfo:
        return self._broker.make_topic(name)


class FakeRecords:
    """Answers like ``engine.records``."""

    takes_runs = False

    def __init__(self, broker: FakeEngine) -> None:
        self._broker = broker

    def hold_ms(self, partitions: Iterable[tuple[str, int]]) -> int:
        """Hold the producers of topics that the test has named."""
        return max((self._broker.holds.get(topic, 0) for topic, _ in partitions), default=0)

    def append(
        self,
        writes: list[PartitionWrite],
        durability: Durability = Durability.SYNCED,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V1,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        results = []
        refused = None if transactional_id is None else self._broker.refused_writes
        self._broker.produced.append((transactional_id, version))
        for write in writes:
            try:
                if refused is not None:
                    raise refused
                offset = self._broker.log(write.topic, write.partition).append(write.records)
            except TidemillError as error:
                results.append(WriteResult(error=error))
            else:
                results.append(WriteResult(offset, -1, 0))
                self._broker.appended += 1
        self._broker.tell_news()
        if durability is not Durability.SYNCED or not self._broker.hold_acks:
            return results
        future: asyncio.Future[list[WriteResult]] = asyncio.get_running_loop().create_future()
        self._broker.unacked.append(future)
        self._broker.held.append(results)
        return future

    def read_now(self, query: ReadQuery) -> list[ReadResult] | None:
        return None  # the handler calls ``read``

    async def read(self, query: ReadQuery) -> list[ReadResult]:
        self._broker.fetches.append(query)
        results = [self._read(part) for part in query.partitions]
        size = sum(len(result.records) for result in results)
        if query.room is not None and size:
            if query.room.share(size) is None:
                await query.room.turn(size)
            query.room.hold(size)
        if size < query.min_bytes and query.max_wait_ms and not any(r.error for r in results):
            news = asyncio.Event()  # of this loop: fuzzing uses one broker in many
            self._broker.waiting.append(news)
            try:
                # A handler's first step runs outside of a task, where Python 3.12 sets no timeout.
                await asyncio.sleep(0)
                await asyncio.wait_for(news.wait(), query.max_wait_ms / 1000)
            except TimeoutError:
                return results
            finally:
                self._broker.waiting.remove(news)
            return [self._read(part) for part in query.partitions]
        return results

    def _read(self, part: PartitionRead) -> ReadResult:
        try:
            log = self._broker.log(part.topic, part.partition)
            return ReadResult(log.end, log.end, log.start, log.read(part.offset, part.max_bytes))
        except TidemillError as error:
            return ReadResult(error=error)

    async def find_offset(
        self,
        topic: str,
        partition: int,
        at: Position | int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        leader_epoch: int | None = None,
    ) -> OffsetAt | None:
        log = self._broker.log(topic, partition)
        if at is Position.LATEST:
            return OffsetAt(log.end, None, 0)
        if at is Position.EARLIEST:
            return OffsetAt(log.start, None, 0)
        if isinstance(at, Position):
            at = 0
        for first, content in log.batches:
            if batch.parse_header(content).max_timestamp >= at:
                return OffsetAt(first, batch.parse_header(content).base_timestamp, 0)
        return None

    def end_of_epoch(
        self, topic: str, partition: int, epoch: int, leader_epoch: int | None = None
    ) -> tuple[int, int] | None:
        return 0, self._broker.log(topic, partition).end

    async def delete_before(self, topic: str, partition: int, offset: int | None) -> int:
        log = self._broker.log(topic, partition)
        if offset is not None and offset > log.end:
            raise OffsetOutOfRangeError(f"offset {offset}")
        log.start = log.end if offset is None else offset
        return log.start

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        self._broker.log(topic, partition)
        return [ProducerInfo(7, 0, 41, 1_700_000_000_000, 2, 39)]


def one_batch(
    value: bytes = b"hello", records: int = 1, timestamp: int = 1_700_000_000_000
) -> bytes:
    """A batch whose records are opaque to everything that these tests run."""
    return bytes(
        batch.build_batch(
            base_offset=0,
            body=value,
            attributes=0,
            last_offset_delta=records - 1,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            record_count=records,
        )
    )
