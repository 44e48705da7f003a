"""Brokers in one process, what is written to them and read from them, and waits for conditions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tidemill.clock import Clock
from tidemill.engine.api import (
    Durability,
    Isolation,
    PartitionRead,
    PartitionWrite,
    Position,
    ReadQuery,
    ReadResult,
    WriteResult,
)
from tidemill.engine.authorize import Authorizer
from tidemill.engine.engine import Engine
from tidemill.engine.flusher import Awaited
from tidemill.log.disk.files import FileSystem
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.partition.partition import PartitionLog
from tidemill.settings import Settings

DATA = Path("/data")
"""The folder of brokers whose file system is in memory."""
NOW = 1_700_000_000_000
DEADLINE_S = 300.0
T = TypeVar("T")


# --- brokers -------------------------------------------------------------------------------------


async def start(
    folder: Path = DATA,
    fs: FileSystem | None = None,
    *,
    clock: Clock | None = None,
    authorizer: Authorizer | None = None,
    **settings: object,
) -> Engine:
    """Start a broker."""
    parsed = Settings.model_validate({"data_dir": folder, **settings})
    engine = Engine(parsed, clock, fs, authorizer)
    await engine.start()
    return engine


@contextlib.asynccontextmanager
async def running(
    folder: Path = DATA,
    fs: FileSystem | None = None,
    *,
    clock: Clock | None = None,
    authorizer: Authorizer | None = None,
    **settings: object,
) -> AsyncIterator[Engine]:
    """Run a broker."""
    engine = await start(folder, fs, clock=clock, authorizer=authorizer, **settings)
    try:
        yield engine
    finally:
        await engine.stop()


def entered(
    runner: asyncio.Runner, manager: contextlib.AbstractAsyncContextManager[T]
) -> Iterator[T]:
    """Make a fixture of an asynchronous context, on the loop of its test."""
    yield runner.run(manager.__aenter__())
    runner.run(manager.__aexit__(None, None, None))


class Closable(Protocol):
    """What has a method ``close``."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


@contextlib.asynccontextmanager
async def closed(make: Callable[[], C]) -> AsyncIterator[C]:
    """Make something on the running loop, and close it at the end."""
    with contextlib.closing(make()) as found:
        yield found


# --- records -------------------------------------------------------------------------------------


def write(
    topic: str, *values: bytes, partition: int = 0, timestamp_ms: int = NOW
) -> PartitionWrite:
    """Return a batch of records with these values."""
    batch = encode_batch([NewRecord(b"k", value) for value in values], timestamp_ms=timestamp_ms)
    return PartitionWrite(topic, partition, memoryview(batch))


Answer = list[WriteResult] | Awaitable[list[WriteResult]]
"""What an append returns: its results, or what waits for a thread or for the disk."""


def at_once(answer: Answer) -> list[WriteResult]:
    """Return the results of an append that does not wait."""
    assert isinstance(answer, list)
    return answer


def later(answer: Answer) -> Awaitable[list[WriteResult]]:
    """Return the answer of an append that waits."""
    assert not isinstance(answer, list)
    return answer


async def results_of(answer: Answer) -> list[WriteResult]:
    """Return the results of an append, which perhaps waits."""
    return answer if isinstance(answer, list) else await answer


async def produce(engine: Engine, *writes: PartitionWrite) -> list[WriteResult]:
    """Append batches as one request with acks=all."""
    return await results_of(engine.records.append(list(writes), Durability.SYNCED))


def query(*parts: tuple[str, int, int], wait_ms: int = 0, min_bytes: int = 1) -> ReadQuery:
    """Return a read of (topic, partition, offset)."""
    reads = [PartitionRead(topic, number, offset, 1 << 20) for topic, number, offset in parts]
    return ReadQuery(reads, wait_ms, min_bytes, 1 << 20)


def values(result: ReadResult) -> list[bytes]:
    """Return the values of all records that were read; those without one are empty."""
    data = memoryview(result.records)
    return [
        bytes(record.value or b"")
        for position, header in iter_headers(data)
        for record in decode_records(data[position : position + header.size])
    ]


async def offset_at(
    engine: Engine,
    position: Position,
    topic: str = "t",
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> int:
    """Return the first or the last offset of the first partition of a topic."""
    found = await engine.records.find_offset(topic, 0, position, isolation)
    assert found is not None
    return found.offset


# --- the disk ------------------------------------------------------------------------------------


class HeldDisk:
    """Stands for the flusher: nothing is durable before ``sync``."""

    def __init__(self) -> None:
        self.waiting: list[Awaited] = []

    def written(self, log: PartitionLog) -> None:
        pass

    def request(self, log: PartitionLog) -> None:
        pass

    def appended(self, size: int) -> None:
        pass

    def call_when_durable(
        self, log: PartitionLog, offset: int, done: Callable[[Exception | None], None]
    ) -> None:
        self.waiting.append((log, offset, done))

    def call_when_each_is_durable(self, awaited: Sequence[Awaited]) -> None:
        self.waiting += awaited

    def sync(self, error: Exception | None = None) -> None:
        """Sync what is waited for, or fail."""
        waiting, self.waiting = self.waiting, []
        for log, _, done in waiting:
            if error is None:
                log.flush()
            done(error)


class Disk:
    """Refuses appends to some topics, and has so many free bytes."""

    def __init__(self) -> None:
        self.refuses: set[str] = set()
        self.free = 1 << 40
        self.refused = 0


# --- waiting -------------------------------------------------------------------------------------


async def until(condition: Callable[[], bool], what: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it does not hold in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"the condition did not hold: {what()}"
        await asyncio.sleep(0.001)


def busy_until(condition: Callable[[], bool]) -> None:
    """Keep the event loop busy."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
