"""One partition with an appender and a reader, on a disk that syncs on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast
from uuid import UUID

from tests.engine.support import Answer, HeldDisk, at_once
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, open_store
from tidemill.clock import ManualClock
from tidemill.engine.api import (
    Durability,
    Isolation,
    PartitionRead,
    PartitionWrite,
    ProducerIdentity,
    ReadQuery,
    ReadResult,
    TransactionVersion,
)
from tidemill.engine.error_log import StorageErrorLog
from tidemill.engine.flusher import Flusher
from tidemill.engine.records.append import Admission, Appender
from tidemill.engine.records.checks import Checks, WriteOrder
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.records.positions import Positions
from tidemill.engine.records.read import Reader
from tidemill.engine.records.slices import Slices
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.config.parse import parse_config
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.names import TopicPartition


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = HeldDisk()
        self.fs = FaultyFileSystem()
        store = open_store("/data", self.clock, self.fs)
        self.log = store.create(TP, parse_config({}), UUID(int=1))
        self.journal = store.create(TopicPartition("journal", 0), parse_config({}), UUID(int=2))
        self.admission: Admission | TidemillError = None
        self.asked: list[tuple[str, ProducerIdentity, TopicPartition, TransactionVersion]] = []
        partitions, waiters, errors = Partitions(store), Waiters(), StorageErrorLog(self.clock)
        flusher = cast(Flusher, self.disk)
        self.store = store
        self.slices = Slices()
        checks = Checks(partitions, self.slices, self.clock)
        self.appender = Appender(
            partitions, flusher, waiters, self.clock, errors, checks, self.admit
        )
        self.reader = Reader(partitions, flusher, waiters, errors, max_bytes=1 << 20)
        self.positions = Positions(partitions, flusher, waiters, self.slices)

    def admit(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        tp: TopicPartition,
        version: TransactionVersion,
        also: Sequence[TopicPartition],
    ) -> Admission:
        """Stands for the coordinator of transactions."""
        self.asked.append((transactional_id, producer, tp, version))
        if isinstance(self.admission, TidemillError):
            raise self.admission
        return self.admission

    def produce(
        self,
        acks: Durability,
        sequence: int,
        *,
        transactional: bool = False,
        version: TransactionVersion = TransactionVersion.V2,
    ) -> Answer:
        """Append a batch, which is part of the transaction of ``x`` or of none."""
        write = self.batch(sequence, transactional)
        return self.appender.append([write], acks, "x" if transactional else None, version)

    def batch(self, sequence: int, transactional: bool = False) -> PartitionWrite:
        batch = encode_batch(
            [NewRecord(b"k", b"v")],
            timestamp_ms=self.clock.now_ms(),
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        return PartitionWrite(*TP, memoryview(batch))

    def append(self, *writes: PartitionWrite, order: WriteOrder | None = None) -> Answer:
        """Append batches as one request with acks=1."""
        return self.appender.append(list(writes), Durability.WRITTEN, order=order)

    def error(
        self, sequence: int, version: TransactionVersion | None = None
    ) -> type[TidemillError] | None:
        """Return the error of a batch: part of a transaction with a version, else of none."""
        is_transactional, version = version is not None, version or TransactionVersion.V2
        (result,) = at_once(
            self.produce(
                Durability.WRITTEN, sequence, transactional=is_transactional, version=version
            )
        )
        return type(result) if isinstance(result, TidemillError) else None

    async def read(self, offset: int, max_bytes: int, isolation: Isolation) -> ReadResult:
        part = PartitionRead(*TP, offset, max_bytes)
        (result,) = await self.reader.read(ReadQuery([part], 0, 1, 1 << 20, isolation))
        return result


class FakeBudget:
    """Grants the shares of memory that the test says, and turns when ``may_pass`` is set."""

    def __init__(self, share: Callable[[int], int | None]) -> None:
        self._share = share
        self.wanted: list[int] = []
        self.turns: list[int] = []
        self.held = 0
        self.may_pass = asyncio.Event()

    def share(self, size: int) -> int | None:
        self.wanted.append(size)
        return self._share(size)

    async def turn(self, size: int) -> None:
        self.turns.append(size)
        await self.may_pass.wait()
        self.held = size

    def hold(self, size: int) -> None:
        self.held = size
