"""The door in memory: topics as dicts of lists of batches. Enough for the data APIs.

``durable`` decides when acks=all is answered: at once, or when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from uuid import UUID

from tests.kafka.fake_transactions import FakeTransactions
from tidemill.broker.api import (
    EARLIEST,
    LATEST,
    Acks,
    FetchQuery,
    Isolation,
    OffsetAt,
    PartitionRead,
    PartitionWrite,
    ProducerInfo,
    ReadResult,
    TopicInfo,
    TransactionVersion,
    WriteResult,
)
from tidemill.errors import (
    OffsetOutOfRangeError,
    TidemillError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from tidemill.log import batch
from tidemill.settings import Settings


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


class FakeBroker(FakeTransactions):
    """As much of ``broker.Broker`` as the data handlers call."""

    node_id = 1
    cluster_id = "fake-cluster"

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.advertised_host = "localhost"
        self.advertised_port = 0
        self.infos: dict[str, TopicInfo] = {}
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.hold_acks = False
        self.unacked: list[asyncio.Future[list[WriteResult]]] = []
        self.held: list[list[WriteResult]] = []
        self.fetches: list[FetchQuery] = []
        self.waiting: list[asyncio.Event] = []
        self.next_producer = 1000
        self.appended = 0
        self.produced: list[tuple[str | None, TransactionVersion]] = []
        self.refused_writes: TidemillError | None = None
        """What transactional writes are answered."""

    def make_topic(self, name: str, partitions: int = 1) -> TopicInfo:
        info = TopicInfo(name, UUID(int=0xABC0 + len(self.infos)), partitions, internal=False)
        self.infos[name] = info
        for index in range(partitions):
            self.logs[name, index] = FakeLog()
        return info

    # --- topics ----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo:
        if name not in self.infos:
            raise UnknownTopicOrPartitionError(f"no topic {name}")
        return self.infos[name]

    def topic_by_id(self, topic_id: UUID) -> TopicInfo:
        for info in self.infos.values():
            if info.topic_id == topic_id:
                return info
        raise UnknownTopicIdError(f"no topic {topic_id}")

    def topics(self) -> list[TopicInfo]:
        return list(self.infos.values())

    async def ensure_topic(self, name: str) -> TopicInfo:
        return self.make_topic(name)

    def log(self, topic: str, partition: int) -> FakeLog:
        try:
            return self.logs[topic, partition]
        except KeyError:
            raise UnknownTopicOrPartitionError(f"no {topic}-{partition}") from None

    # --- records ---------------------------------------------------------------------------------

    def produce(
        self,
        writes: list[PartitionWrite],
        acks: Acks,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V1,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        results = []
        refused = None if transactional_id is None else self.refused_writes
        self.produced.append((transactional_id, version))
        for write in writes:
            try:
                if refused is not None:
                    raise refused
                offset = self.log(write.topic, write.partition).append(write.records)
            except TidemillError as error:
                results.append(WriteResult(error=error))
            else:
                results.append(WriteResult(offset, -1, 0))
                self.appended += 1
        self.tell_news()
        if acks != Acks.DURABLE or not self.hold_acks:
            return results
        future: asyncio.Future[list[WriteResult]] = asyncio.get_running_loop().create_future()
        self.unacked.append(future)
        self.held.append(results)
        return future

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

    async def fetch(self, query: FetchQuery) -> list[ReadResult]:
        self.fetches.append(query)
        results = [self._read(part) for part in query.partitions]
        size = sum(len(result.records) for result in results)
        if size < query.min_bytes and query.max_wait_ms and not any(r.error for r in results):
            news = asyncio.Event()  # of this loop: fuzzing uses one broker in many
            self.waiting.append(news)
            try:
                await asyncio.wait_for(news.wait(), query.max_wait_ms / 1000)
            except TimeoutError:
                return results
            finally:
                self.waiting.remove(news)
            return [self._read(part) for part in query.partitions]
        return results

    def _read(self, part: PartitionRead) -> ReadResult:
        try:
            log = self.log(part.topic, part.partition)
            return ReadResult(log.end, log.end, log.start, log.read(part.offset, part.max_bytes))
        except TidemillError as error:
            return ReadResult(error=error)

    async def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        isolation: Isolation,
        leader_epoch: int = -1,
    ) -> OffsetAt:
        log = self.log(topic, partition)
        if timestamp_ms == LATEST:
            return OffsetAt(log.end, -1, 0)
        if timestamp_ms == EARLIEST:
            return OffsetAt(log.start, -1, 0)
        for first, content in log.batches:
            if batch.parse_header(content).max_timestamp >= timestamp_ms:
                return OffsetAt(first, batch.parse_header(content).base_timestamp, 0)
        return OffsetAt(-1, -1, -1)

    def end_offset_for_epoch(
        self, topic: str, partition: int, epoch: int, current_epoch: int
    ) -> tuple[int, int]:
        return 0, self.log(topic, partition).end

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        log = self.log(topic, partition)
        if before_offset > log.end:
            raise OffsetOutOfRangeError(f"offset {before_offset}")
        log.start = log.end if before_offset == -1 else before_offset
        return log.start

    async def init_producer_id(self, transactional_id: str | None) -> tuple[int, int]:
        self.next_producer += 1
        return self.next_producer, 0

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        self.log(topic, partition)
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
