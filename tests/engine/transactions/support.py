"""Transactional producers and readers over an engine, and engines that are killed."""

from __future__ import annotations

import random
from collections.abc import Awaitable

from tests.engine.support import results_of, until
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.api import (
    NO_PRODUCER,
    CommitRequest,
    CommittedOffset,
    Durability,
    InitProducer,
    Isolation,
    OffsetToCommit,
    PartitionRead,
    PartitionWrite,
    ProducerIdentity,
    ReadQuery,
    ReadResult,
    TransactionVersion,
    TxnOffsetCommit,
    WriteResult,
)
from tidemill.engine.engine import Engine
from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import TidemillError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.markers import decode_marker
from tidemill.log.format.records import NewRecord, decode_records, encode_batch

V1, V2 = TransactionVersion.V1, TransactionVersion.V2


class Producer:
    """One producer with a transactional id, as clients are: sequences, epochs, partitions."""

    def __init__(
        self,
        engine: Engine,
        transactional_id: str = "x",
        version: TransactionVersion = V2,
        timeout_ms: int = 60_000,
    ) -> None:
        self.engine = engine
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.identity = NO_PRODUCER
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self) -> Producer:
        request = InitProducer(self.transactional_id, self.timeout_ms)
        self._become(await self.engine.transactions.init(request))
        return self

    def _become(self, identity: ProducerIdentity) -> None:
        if identity != self.identity:
            self.sequences.clear()
        self.identity = identity

    def batch(self, topic: str, *values: bytes, partition: int = 0) -> PartitionWrite:
        records = encode_batch(
            [NewRecord(b"k", value) for value in values],
            timestamp_ms=self.engine.clock.now_ms(),
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.sequences.get((topic, partition), 0),
            transactional=True,
        )
        return PartitionWrite(topic, partition, memoryview(records))

    async def try_send(
        self, topic: str, *values: bytes, partition: int = 0, acks: Durability = Durability.SYNCED
    ) -> WriteResult:
        write = self.batch(topic, *values, partition=partition)
        (result,) = await results_of(
            self.engine.records.append([write], acks, self.transactional_id, self.version)
        )
        if isinstance(result, tuple):
            at = (topic, partition)
            self.sequences[at] = self.sequences.get(at, 0) + len(values)
        return result

    async def send(
        self, topic: str, *values: bytes, partition: int = 0, acks: Durability = Durability.SYNCED
    ) -> None:
        if self.version is V1:
            await self.add((topic, partition))
        result = await self.try_send(topic, *values, partition=partition, acks=acks)
        if isinstance(result, TidemillError):
            raise result

    async def add(self, *partitions: tuple[str, int]) -> None:
        for error in await self.engine.transactions.add_partitions(
            self.transactional_id, self.identity, partitions
        ):
            if error is not None:
                raise error

    async def commit_offset(self, group: str, topic: str, offset: int) -> None:
        if self.version is V1:
            await self.engine.transactions.add_group(self.transactional_id, self.identity, group)
        commit = CommitRequest(group, -1, "", None, (OffsetToCommit(topic, 0, offset),))
        request = TxnOffsetCommit(self.transactional_id, self.identity, commit, self.version)
        for error in await self.engine.transactions.commit_offsets(request):
            if error is not None:
                raise error

    async def end(self, commit: bool) -> None:
        self._become(
            await self.engine.transactions.end(
                self.transactional_id, self.identity, commit, self.version
            )
        )

    async def commit(self) -> None:
        await self.end(True)

    async def transact(self, topic: str, *values: bytes) -> None:
        """Write records, and commit."""
        await self.send(topic, *values)
        await self.commit()

    async def abort(self) -> None:
        await self.end(False)


# --- readers -------------------------------------------------------------------------------------


async def read(
    engine: Engine,
    topic: str,
    partition: int = 0,
    *,
    offset: int = 0,
    wait_ms: int = 0,
    isolation: Isolation = Isolation.READ_COMMITTED,
) -> ReadResult:
    reads = [PartitionRead(topic, partition, offset, 1 << 24)]
    (result,) = await engine.records.read(ReadQuery(reads, wait_ms, 1, 1 << 24, isolation))
    if result.error is not None:
        raise result.error
    return result


async def committed(engine: Engine, topic: str, partition: int = 0) -> list[bytes]:
    """Return the values that a read_committed consumer sees, from the start of the log."""
    return visible(await read(engine, topic, partition))


def committed_offset(engine: Engine, topic: str, *, require_stable: bool = False) -> int:
    """Return the offset of group ``g`` in the first partition of a topic."""
    found = engine.groups.committed("g", [(topic, 0)], require_stable=require_stable)[topic, 0]
    assert isinstance(found, CommittedOffset)
    return found.offset


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


# --- brokers -------------------------------------------------------------------------------------


async def kill(engine: Engine, fs: FaultyFileSystem) -> None:
    """Kill the process: nothing in its memory is written any more."""
    engine._stopped = True
    error = BrokerStoppingError("killed")
    await engine._housekeeping.stop()
    engine._transaction_coordinator.stop(error)
    engine._group_coordinator.stop(error)
    engine._stop_records()
    engine._flusher.close()
    await engine._transaction_coordinator.stopped()
    fs.kill()


async def cut_power(engine: Engine, fs: FaultyFileSystem, rng: random.Random) -> None:
    """Cut the power: ``rng`` decides what survives of the unsynced data."""
    fs.power_cut(rng)
    for operation in ("read", "write", "sync", "truncate", "rename", "remove", "create"):
        fs.fail(operation, times=-1)
    await kill(engine, fs)


async def settled(engine: Engine) -> None:
    """Wait until no transaction has an end that is not complete."""
    await until(lambda: not engine._transaction_coordinator.machine.all_unfinished())


def is_noted(engine: Engine) -> bool:
    """Return whether the journal is open, idle, and says of all that is synced that it is."""
    journal, journaling = engine._store.journal, engine._flusher.journaling
    assert journaling is not None
    return journal.is_open and not journal.notes.are_waiting and not journaling.is_busy


async def noted(engine: Engine) -> None:
    """Wait until no more entries of the journal with notes only are to come."""
    await until(lambda: is_noted(engine))


async def error_of(work: Awaitable[object]) -> type[BaseException] | None:
    """The type of what it raises."""
    try:
        await work
    except TidemillError as error:
        return type(error)
    return None
