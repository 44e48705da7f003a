"""Transactional producers and their readers, straight at the door; and a broker that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tests.support.faultyfs import FaultyFileSystem
from tidemill.broker.api import (
    NO_PRODUCER,
    Acks,
    CommitRequest,
    FetchQuery,
    InitProducer,
    Isolation,
    OffsetToCommit,
    PartitionRead,
    PartitionWrite,
    ProducerIdentity,
    ReadResult,
    TransactionVersion,
    TxnOffsetCommit,
    WriteResult,
)
from tidemill.broker.broker import Broker
from tidemill.clock import Clock
from tidemill.errors import BrokerStoppingError, TidemillError
from tidemill.log.batch import iter_headers
from tidemill.log.records import NewRecord, decode_records, encode_batch
from tidemill.log.transactions import decode_marker
from tidemill.settings import Settings

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
DATA = Path("/data")


class Producer:
    """One producer with a transactional id, as clients are: sequences, epochs, partitions."""

    def __init__(
        self,
        broker: Broker,
        transactional_id: str = "x",
        version: TransactionVersion = V2,
        timeout_ms: int = 60_000,
    ) -> None:
        self.broker = broker
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.identity = NO_PRODUCER
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self) -> Producer:
        request = InitProducer(self.transactional_id, self.timeout_ms, version=self.version)
        self._become(await self.broker.init_transactional_producer(request))
        return self

    def _become(self, identity: ProducerIdentity) -> None:
        if identity != self.identity:
            self.sequences.clear()
        self.identity = identity

    def batch(self, topic: str, *values: bytes, partition: int = 0) -> PartitionWrite:
        records = encode_batch(
            [NewRecord(b"k", value) for value in values],
            timestamp_ms=self.broker.clock.now_ms(),
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.sequences.get((topic, partition), 0),
            transactional=True,
        )
        return PartitionWrite(topic, partition, memoryview(records))

    async def try_send(
        self, topic: str, *values: bytes, partition: int = 0, acks: Acks = Acks.DURABLE
    ) -> WriteResult:
        write = self.batch(topic, *values, partition=partition)
        answer = self.broker.produce([write], acks, self.transactional_id, self.version)
        (result,) = answer if isinstance(answer, list) else await answer
        if result.error is None:
            at = (topic, partition)
            self.sequences[at] = self.sequences.get(at, 0) + len(values)
        return result

    async def send(
        self, topic: str, *values: bytes, partition: int = 0, acks: Acks = Acks.DURABLE
    ) -> None:
        if self.version is V1:
            await self.add((topic, partition))
        result = await self.try_send(topic, *values, partition=partition, acks=acks)
        if result.error is not None:
            raise result.error

    async def add(self, *partitions: tuple[str, int]) -> None:
        for error in await self.broker.add_partitions(
            self.transactional_id, self.identity, partitions
        ):
            if error is not None:
                raise error

    async def commit_offset(self, group: str, topic: str, offset: int) -> None:
        if self.version is V1:
            await self.broker.add_offsets(self.transactional_id, self.identity, group)
        commit = CommitRequest(group, -1, "", None, (OffsetToCommit(topic, 0, offset),))
        request = TxnOffsetCommit(self.transactional_id, self.identity, commit, self.version)
        for error in await self.broker.commit_transaction_offsets(request):
            if error is not None:
                raise error

    async def end(self, commit: bool) -> None:
        self._become(
            await self.broker.end_transaction(
                self.transactional_id, self.identity, commit, self.version
            )
        )

    async def commit(self) -> None:
        await self.end(True)

    async def abort(self) -> None:
        await self.end(False)


# --- readers -------------------------------------------------------------------------------------


async def read(
    broker: Broker,
    topic: str,
    partition: int = 0,
    *,
    offset: int = 0,
    wait_ms: int = 0,
    isolation: Isolation = Isolation.READ_COMMITTED,
) -> ReadResult:
    reads = [PartitionRead(topic, partition, offset, 1 << 24)]
    (result,) = await broker.fetch(FetchQuery(reads, wait_ms, 1, 1 << 24, isolation))
    if result.error is not None:
        raise result.error
    return result


async def committed(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    """What a read_committed consumer hands to its user, all from the start."""
    return visible(await read(broker, topic, partition))


def visible(result: ReadResult) -> list[bytes]:
    """Drop the records of aborted transactions as clients do: by producer, until its marker."""
    data = memoryview(result.records)
    waiting = sorted(result.aborted, key=lambda each: each[1])
    aborted: set[int] = set()
    found = []
    for position, header in iter_headers(data):
        while waiting and waiting[0][1] <= header.last_offset:
            aborted.add(waiting.pop(0)[0])
        if header.is_control:
            marker = decode_marker(data, position)
            if marker is not None and not marker.commit:
                aborted.discard(marker.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            batch = data[position : position + header.size]
            found += [bytes(record.value or b"") for record in decode_records(batch)]
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.005)


# --- brokers -------------------------------------------------------------------------------------


async def start(fs: FaultyFileSystem, clock: Clock | None = None, **settings: object) -> Broker:
    broker = Broker(Settings.model_validate({"data_dir": DATA, **settings}), clock, fs)
    await broker.start()
    return broker


async def kill(broker: Broker, fs: FaultyFileSystem) -> None:
    """The process is gone: nothing of what it holds is written any more."""
    broker._stopped = True
    error = BrokerStoppingError("killed")
    await broker._housekeeping.stop()
    broker._transactions.stop(error)
    broker._coordination.stop(error)
    broker._data.stop()
    broker._flusher.close()
    await broker._transactions.stopped()
    fs.kill()


async def cut_power(broker: Broker, fs: FaultyFileSystem, rng: random.Random) -> None:
    """The machine is gone, at once: of what was not synced ``rng`` decides."""
    fs.power_cut(rng)
    for operation in ("read", "write", "sync", "truncate", "rename", "remove", "create"):
        fs.fail(operation, times=-1)
    await kill(broker, fs)


@contextlib.asynccontextmanager
async def running(
    fs: FaultyFileSystem | None = None, clock: Clock | None = None, **settings: object
) -> AsyncIterator[Broker]:
    broker = await start(fs or FaultyFileSystem(), clock, **settings)
    try:
        yield broker
    finally:
        await broker.stop()


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, 60)

    asyncio.run(bounded())


async def error_of(work: Awaitable[object]) -> type[BaseException] | None:
    """The type of what it raises."""
    try:
        await work
    except TidemillError as error:
        return type(error)
    return None
