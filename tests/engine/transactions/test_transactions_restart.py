"""Transactions over restarts: clean stops, kills and power cuts at any step, and the repair."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from tests.engine.support import DATA, results_of, start, until
from tests.engine.transactions.support import (
    V1,
    V2,
    Producer,
    committed,
    committed_offset,
    cut_power,
    error_of,
    kill,
    read,
    settled,
)
from tests.support.effort import IS_NIGHTLY
from tests.support.faultyfs import CrashError, FaultyFileSystem, Unlucky
from tests.support.written import offset_of
from tidemill.engine.api import (
    CommittedOffset,
    Durability,
    NewTopic,
    TransactionState,
    TransactionVersion,
)
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError
from tidemill.log.errors import SyncFailedError
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.names import TopicPartition
from tidemill.state.errors import ConcurrentTransactionsError

A = TopicPartition("a", 0)
B = TopicPartition("b", 0)
both = pytest.mark.parametrize("version", [V1, V2])


class StepFileSystem(FaultyFileSystem):
    """Counts what is done to the disk; when ``left`` have been done, the process is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.steps = 0

    def step(self) -> bool:
        self.steps += 1
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0

    def check(self, operation: str, path: str) -> None:
        if operation == "sync" and self.step():
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().check(operation, path)

    def write_into(self, node: object, data: bytes, position: int, path: str) -> int:
        if self.step():
            raise CrashError(path)
        return super().write_into(node, data, position, path)  # type: ignore[arg-type]

    def kill(self) -> None:
        super().kill()
        self.left = None


class FailingMarkers(FaultyFileSystem):
    """A file system that can't sync new data of partition a-0."""

    failed = ""

    def write_into(self, node: object, data: bytes, position: int, path: str) -> int:
        if path.endswith("/a-0/00000000000000000000.log") and position:
            self.failed = path
            self.fail("sync", times=-1, path=path)
        return super().write_into(node, data, position, path)  # type: ignore[arg-type]


class World:
    """A broker with topics, which can be killed and started again, and its producer."""

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.fs = fs
        self.producer: Producer | None = None

    async def start(self) -> Engine:
        """Start a broker, which the producer uses then."""
        self.engine = await start(fs=self.fs)
        if self.producer is not None:
            self.producer.engine = self.engine
        return self.engine

    async def begin(self) -> Engine:
        """Start the first broker, and create topics."""
        engine = await self.start()
        await engine.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
        return engine

    async def producing(
        self, version: TransactionVersion = V2, timeout_ms: int = 60_000
    ) -> tuple[Engine, Producer]:
        """Start the first broker, with a transactional producer."""
        engine = await self.begin()
        producer = Producer(engine, version=version, timeout_ms=timeout_ms)
        self.producer = await producer.init()
        return engine, producer

    async def restart(self, cut: random.Random | None = None) -> Engine:
        """Kill it, or (``cut``) the machine, and start another."""
        if cut is None:
            await kill(self.engine, self.fs)
        else:
            await cut_power(self.engine, self.fs, cut)
        return await self.start()

    async def restart_without_adopting(self) -> Engine:
        """Cut the power: records of the coordinator that are not synced are lost. The disk is too
        full for an adoption while the broker starts, and has space right after it."""
        self.engine._store.partitions[A].flush()
        await cut_power(self.engine, self.fs, Unlucky())
        self.fill("__transaction_state-0")
        engine = await self.start()
        self.fs.clear_faults()
        return engine

    def leave_no_space_for_the_journal(self) -> None:
        """So what was acknowledged is in synced segments."""
        self.fs.fail("create", errno.ENOSPC, times=-1, path="/journal/")

    def fill(self, folder: str) -> None:
        """Refuse what is written to a partition."""
        self.fs.fail("write", errno.ENOSPC, times=-1, path=f"/{folder}/00000000000000000000.log")

    def append_orphan(self, producer_id: int) -> None:
        """Append a record of a transaction that no transactional id owns."""
        now_ms = self.engine.clock.now_ms()
        orphan = encode_batch(
            [NewRecord(b"k", b"orphan")],
            timestamp_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        self.engine._store.partitions[A].append(orphan, now_ms=now_ms)


@pytest.fixture
def world(loop_runner: asyncio.Runner, fs: FaultyFileSystem) -> Iterator[World]:
    world = World(fs)
    yield world
    loop_runner.run(world.engine.stop())


def state(engine: Engine) -> TransactionState:
    return engine.transactions.describe("x").state


# --- at any step ---------------------------------------------------------------------------------


class Story:
    """Three transactions over two topics and a group; the second is aborted."""

    def __init__(self) -> None:
        self.answered: list[bytes] = []

    async def tell(self, engine: Engine, version: TransactionVersion) -> None:
        producer = await Producer(engine, version=version).init()
        for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
            await producer.send("a", value, acks=Durability.WRITTEN)
            await producer.send("b", value)
            await producer.commit_offset("g", "a", int(value))
            await producer.end(commit)
            self.answered.append(value)

    async def check(self, engine: Engine) -> None:
        await settled(engine)
        seen = await committed(engine, "a")
        assert seen == await committed(engine, "b")
        assert seen in ([], [b"1"], [b"1", b"3"])
        promised = [value for value in self.answered if value != b"2"]
        assert seen[: len(promised)] == promised
        offset = engine.groups.committed("g", None).get(("a", 0))
        if seen:
            assert isinstance(offset, CommittedOffset)
            assert offset.offset == int(seen[-1])
        else:
            assert offset is None
        new = await Producer(engine).init()
        await new.transact("a", b"new")
        assert await committed(engine, "a") == [*seen, b"new"]
        for topic in ("a", "b"):
            found = await read(engine, topic)
            assert found.last_stable_offset == found.high_watermark


async def crash_at(step: int, version: TransactionVersion, cut: random.Random | None) -> bool:
    """Whether the story was longer than that."""
    fs = StepFileSystem()
    world = World(fs)
    engine = await world.begin()
    story = Story()
    fs.left = step
    crashed = False
    try:
        await story.tell(engine, version)
    except (CrashError, TidemillError):
        crashed = True
    engine = await world.restart(cut)
    await story.check(engine)
    await engine.stop()
    return crashed


@pytest.mark.slow
@both
@pytest.mark.parametrize("power", [True, False], ids=["process", "power"])
async def test_a_crash_at_any_step_leaves_each_transaction_whole_or_absent(
    version: TransactionVersion, power: bool
) -> None:
    # A normal run crashes at every second step: at the odd ones in one of the two ways.
    stride = 1 if IS_NIGHTLY else 2
    step = 0 if power else stride - 1
    while await crash_at(step, version, None if power else random.Random(step)):
        step += stride
    assert step > 20


# --- one by one ----------------------------------------------------------------------------------


@both
async def test_an_open_transaction_continues_after_a_clean_restart(
    world: World, version: TransactionVersion
) -> None:
    engine, producer = await world.producing(version)
    await producer.send("a", b"1")
    await producer.commit_offset("g", "a", 4)
    await engine.stop()
    engine = await world.start()
    assert (await read(engine, "a")).last_stable_offset == 0
    await producer.transact("a", b"2")
    assert await committed(engine, "a") == [b"1", b"2"]
    assert committed_offset(engine, "a") == 4


async def test_a_transaction_continues_if_only_its_coordinator_record_was_lost(
    world: World,
) -> None:
    engine, producer = await world.producing()
    written, again = (producer.batch("a", b"1") for _ in range(2))
    engine.records.append([written], Durability.WRITTEN, "x", V2)
    engine._store.partitions[A].flush()
    with capture_logs() as said:
        engine = await world.restart(Unlucky())
    assert "transaction.adopted" in [each["event"] for each in said]
    assert engine.transactions.describe("x").partitions == (A,)
    (repeated,) = await results_of(engine.records.append([again], Durability.SYNCED, "x", V2))
    assert offset_of(repeated) == 0
    await producer.commit()
    assert await committed(engine, "a") == [b"1"]


async def test_data_that_no_transactional_id_owns_is_aborted_at_start(world: World) -> None:
    await world.begin()
    for number in range(250):
        world.append_orphan(4_000_000 + number)
    engine = await world.restart()
    found = await read(engine, "a")
    assert found.last_stable_offset == found.high_watermark == 500
    assert await committed(engine, "a") == []


async def test_with_a_full_disk_the_broker_starts_and_repairs_transactions_later(
    world: World,
) -> None:
    world.leave_no_space_for_the_journal()
    engine, producer = await world.producing()
    world.append_orphan(4_000_000)
    engine.records.append([producer.batch("b", b"1")], Durability.WRITTEN, "x", V2)
    engine._store.partitions[B].flush()
    engine._store.partitions[A].flush()
    await cut_power(engine, world.fs, Unlucky())
    for folder in ("a-0", "__transaction_state-0"):
        world.fill(folder)
    engine = await world.start()
    assert (await read(engine, "a")).last_stable_offset == 0
    assert state(engine) is TransactionState.EMPTY
    world.fs.clear_faults()
    while (await read(engine, "a")).last_stable_offset < 2:
        await asyncio.sleep(0.005)
    await until(lambda: state(engine) is TransactionState.ONGOING)
    producer.sequences["b", 0] = 1
    await producer.commit()
    assert await committed(engine, "b") == [b"1"]


async def test_a_decision_is_not_finished_before_the_transaction_after_it_is_adopted(
    world: World,
) -> None:
    world.leave_no_space_for_the_journal()
    engine, producer = await world.producing()
    await producer.transact("a", b"1")
    engine.records.append([producer.batch("a", b"2")], Durability.WRITTEN, "x", V2)
    engine = await world.restart_without_adopting()
    assert state(engine) is TransactionState.PREPARE_COMMIT
    await settled(engine)
    assert await committed(engine, "a") == [b"1"]
    assert state(engine) is TransactionState.ONGOING
    await producer.abort()
    assert await committed(engine, "a") == [b"1"]


async def test_a_transaction_that_is_not_adopted_yet_does_not_become_part_of_the_next_one(
    world: World,
) -> None:
    world.leave_no_space_for_the_journal()
    engine, producer = await world.producing()
    await producer.send("b", b"never")
    engine.records.append([producer.batch("a", b"never")], Durability.WRITTEN, "x", V2)
    engine = await world.restart_without_adopting()
    successor = await Producer(engine).init()
    await successor.transact("a", b"kept")
    assert await committed(engine, "a") == [b"kept"]
    assert await committed(engine, "b") == []


@pytest.mark.parametrize("path", ["/a-0/", "/__consumer_offsets-0/"])
@both
async def test_missing_markers_are_written_after_a_kill(
    world: World, version: TransactionVersion, path: str
) -> None:
    engine, producer = await world.producing(version)
    await producer.send("a", b"1")
    await producer.send("b", b"1")
    await producer.commit_offset("g", "a", 4)
    world.fs.fail("write", errno.ENOSPC, times=-1, path=path)
    await producer.commit()
    assert state(engine) is TransactionState.PREPARE_COMMIT
    engine = await world.restart()
    await settled(engine)
    assert state(engine) is TransactionState.COMPLETE_COMMIT
    assert await committed(engine, "a") == await committed(engine, "b") == [b"1"]
    assert committed_offset(engine, "a", require_stable=True) == 4
    await producer.transact("a", b"2")
    assert await committed(engine, "a") == [b"1", b"2"]


async def test_an_offline_partition_blocks_its_transactional_id_until_it_is_deleted(
    world: World,
) -> None:
    engine, producer = await world.producing()
    await producer.send("a", b"1")
    await producer.send("b", b"1")
    await kill(engine, world.fs)
    world.fs.remove_tree(f"{DATA}/b-0")
    engine = await world.start()
    assert B in engine._store.offline
    assert await error_of(Producer(engine).init()) is ConcurrentTransactionsError
    assert state(engine) is TransactionState.PREPARE_ABORT
    assert (await read(engine, "a")).last_stable_offset == 2
    assert await engine.topics.delete(["b"]) == [None]
    await settled(engine)
    await (await Producer(engine).init()).send("a", b"2")


async def test_a_transaction_that_its_producer_left_open_times_out_after_a_restart(
    world: World,
) -> None:
    _, producer = await world.producing(timeout_ms=100)
    await producer.send("a", b"1")
    engine = await world.restart()
    await until(lambda: state(engine) is TransactionState.COMPLETE_ABORT)
    assert (await read(engine, "a")).last_stable_offset == 2


async def test_a_failed_sync_during_the_repair_ends_the_start() -> None:
    fs = FailingMarkers()
    world = World(fs)
    engine = await world.begin()
    world.append_orphan(4_000_000)
    await kill(engine, fs)
    assert await error_of(start(fs=fs)) is SyncFailedError
    assert "/a-0/" in fs.failed


async def test_a_transaction_larger_than_a_segment_continues_after_a_power_cut(
    world: World,
) -> None:
    engine, producer = await world.producing(V1)
    await producer.send("a", b"kept")
    # Missing partitions are skipped when the transaction ends: only their names count here.
    many = [TopicPartition(f"{number:05}" + "x" * 244, 0) for number in range(9000)]
    await engine._transaction_coordinator.add("x", producer.identity, many)
    log = engine._store.partitions[TopicPartition("__transaction_state", 0)]
    assert log.segments[-1].size > log.config.segment_bytes
    engine = await world.restart(Unlucky())
    assert len(engine.transactions.describe("x").partitions) == 9001
    await producer.transact("b", b"too")
    engine = await world.restart(Unlucky())
    assert await committed(engine, "a") == [b"kept"]
    assert await committed(engine, "b") == [b"too"]
