"""Transactions over restarts: clean stops, kills and power cuts at any step, and the repair."""

from __future__ import annotations

import errno
import os
import random

import pytest
from structlog.testing import capture_logs

from tests.engine.transactions.support import (
    DATA,
    V1,
    V2,
    Producer,
    committed,
    cut_power,
    error_of,
    kill,
    read,
    start,
    until,
)
from tests.support.effort import IS_NIGHTLY
from tests.support.faultyfs import CrashError, FaultyFileSystem, Unlucky
from tests.support.written import offset_of
from tidemill.engine.api import (
    CommittedOffset,
    Durability,
    NewTopic,
    ProducerIdentity,
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


async def restart(engine: Engine, fs: FaultyFileSystem, cut: random.Random | None = None) -> Engine:
    """Kill it, or (``cut``) the machine, and start another."""
    if cut is None:
        await kill(engine, fs)
    else:
        await cut_power(engine, fs, cut)
    return await start(fs)


async def settled(engine: Engine) -> None:
    async def done() -> bool:
        return not engine._transaction_coordinator.machine.all_unfinished()

    await until(done)


def state(engine: Engine) -> TransactionState:
    return engine.transactions.describe("x").state


def without_journal(fs: FaultyFileSystem) -> None:
    """Leave no space for the journal, so that what was acknowledged is in synced segments."""
    fs.fail("create", errno.ENOSPC, times=-1, path="/journal/")


async def begin(fs: FaultyFileSystem) -> Engine:
    engine = await start(fs)
    await engine.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
    return engine


async def producing(
    version: TransactionVersion = V2,
) -> tuple[FaultyFileSystem, Engine, Producer]:
    """Start a broker with topics, and a transactional producer."""
    fs = FaultyFileSystem()
    engine = await begin(fs)
    return fs, engine, await Producer(engine, version=version).init()


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
        await new.send("a", b"new")
        await new.commit()
        assert await committed(engine, "a") == [*seen, b"new"]
        for topic in ("a", "b"):
            found = await read(engine, topic)
            assert found.last_stable_offset == found.high_watermark


async def crash_at(step: int, version: TransactionVersion, cut: random.Random | None) -> bool:
    """Whether the story was longer than that."""
    fs = StepFileSystem()
    engine = await begin(fs)
    story = Story()
    fs.left = step
    crashed = False
    try:
        await story.tell(engine, version)
    except (CrashError, TidemillError):
        crashed = True
    engine = await restart(engine, fs, cut)
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
    version: TransactionVersion,
) -> None:
    fs, engine, producer = await producing(version)
    await producer.send("a", b"1")
    await producer.commit_offset("g", "a", 4)
    await engine.stop()
    producer.engine = engine = await start(fs)
    assert (await read(engine, "a")).last_stable_offset == 0
    await producer.send("a", b"2")
    await producer.commit()
    assert await committed(engine, "a") == [b"1", b"2"]
    offset = engine.groups.committed("g", None)["a", 0]
    assert isinstance(offset, CommittedOffset)
    assert offset.offset == 4
    await engine.stop()


async def test_a_transaction_continues_if_only_its_coordinator_record_was_lost() -> None:
    fs, engine, producer = await producing()
    written = producer.batch("a", b"1")
    again = producer.batch("a", b"1")
    engine.records.append([written], Durability.WRITTEN, "x", V2)
    engine._store.partitions[A].flush()
    with capture_logs() as said:
        producer.engine = engine = await restart(engine, fs, Unlucky())
    assert "transaction.adopted" in [each["event"] for each in said]
    assert engine.transactions.describe("x").partitions == (A,)
    answer = engine.records.append([again], Durability.SYNCED, "x", V2)
    (repeated,) = answer if isinstance(answer, list) else await answer
    assert offset_of(repeated) == 0
    await producer.commit()
    assert await committed(engine, "a") == [b"1"]
    await engine.stop()


async def test_data_that_no_transactional_id_owns_is_aborted_at_start() -> None:
    fs = FaultyFileSystem()
    engine = await begin(fs)
    for number in range(250):
        orphan = encode_batch(
            [NewRecord(b"k", b"orphan")],
            timestamp_ms=engine.clock.now_ms(),
            producer_id=4_000_000 + number,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        engine._store.partitions[A].append(orphan, now_ms=engine.clock.now_ms())
    engine = await restart(engine, fs)
    found = await read(engine, "a")
    assert found.last_stable_offset == found.high_watermark == 500
    assert await committed(engine, "a") == []
    await engine.stop()


async def test_with_a_full_disk_the_broker_starts_and_repairs_transactions_later() -> None:
    fs = FaultyFileSystem()
    without_journal(fs)
    engine = await begin(fs)
    orphan = encode_batch(
        [NewRecord(b"k", b"orphan")],
        timestamp_ms=engine.clock.now_ms(),
        producer_id=4_000_000,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    engine._store.partitions[A].append(orphan, now_ms=engine.clock.now_ms())
    producer = await Producer(engine).init()
    engine.records.append([producer.batch("b", b"1")], Durability.WRITTEN, "x", V2)
    engine._store.partitions[B].flush()
    engine._store.partitions[A].flush()
    await cut_power(engine, fs, Unlucky())
    for folder in ("a-0", "__transaction_state-0"):
        path = f"/{folder}/00000000000000000000.log"
        fs.fail("write", errno.ENOSPC, times=-1, path=path)
    producer.engine = engine = await start(fs)
    assert (await read(engine, "a")).last_stable_offset == 0
    assert state(engine) is TransactionState.EMPTY
    fs.clear_faults()

    async def repaired() -> bool:
        stable = (await read(engine, "a")).last_stable_offset
        return stable == 2 and state(engine) is TransactionState.ONGOING

    await until(repaired)
    producer.sequences["b", 0] = 1
    await producer.commit()
    assert await committed(engine, "b") == [b"1"]
    await engine.stop()


async def start_without_adopting(engine: Engine, fs: FaultyFileSystem) -> Engine:
    """Cut the power: records of the coordinator that are not synced are lost. The disk is too full
    for an adoption while the broker starts, and has space right after it."""
    engine._store.partitions[A].flush()
    await cut_power(engine, fs, Unlucky())
    path = "/__transaction_state-0/00000000000000000000.log"
    fs.fail("write", errno.ENOSPC, times=-1, path=path)
    engine = await start(fs)
    fs.clear_faults()
    return engine


async def test_a_decision_is_not_finished_before_the_transaction_after_it_is_adopted() -> None:
    fs = FaultyFileSystem()
    without_journal(fs)
    engine = await begin(fs)
    producer = await Producer(engine).init()
    await producer.send("a", b"1")
    await producer.commit()
    engine.records.append([producer.batch("a", b"2")], Durability.WRITTEN, "x", V2)
    producer.engine = engine = await start_without_adopting(engine, fs)
    assert state(engine) is TransactionState.PREPARE_COMMIT
    await settled(engine)
    assert await committed(engine, "a") == [b"1"]
    assert state(engine) is TransactionState.ONGOING
    await producer.abort()
    assert await committed(engine, "a") == [b"1"]
    await engine.stop()


async def test_a_transaction_that_is_not_adopted_yet_does_not_become_part_of_the_next_one() -> None:
    fs = FaultyFileSystem()
    without_journal(fs)
    engine = await begin(fs)
    producer = await Producer(engine).init()
    await producer.send("b", b"never")
    engine.records.append([producer.batch("a", b"never")], Durability.WRITTEN, "x", V2)
    engine = await start_without_adopting(engine, fs)
    successor = await Producer(engine).init()
    await successor.send("a", b"kept")
    await successor.commit()
    assert await committed(engine, "a") == [b"kept"]
    assert await committed(engine, "b") == []
    await engine.stop()


@pytest.mark.parametrize("path", ["/a-0/", "/__consumer_offsets-0/"])
@both
async def test_missing_markers_are_written_after_a_kill(
    version: TransactionVersion, path: str
) -> None:
    fs, engine, producer = await producing(version)
    await producer.send("a", b"1")
    await producer.send("b", b"1")
    await producer.commit_offset("g", "a", 4)
    fs.fail("write", errno.ENOSPC, times=-1, path=path)
    await producer.commit()
    assert state(engine) is TransactionState.PREPARE_COMMIT
    producer.engine = engine = await restart(engine, fs)
    await settled(engine)
    assert state(engine) is TransactionState.COMPLETE_COMMIT
    assert await committed(engine, "a") == await committed(engine, "b") == [b"1"]
    offset = engine.groups.committed("g", None, require_stable=True)["a", 0]
    assert isinstance(offset, CommittedOffset)
    assert offset.offset == 4
    await producer.send("a", b"2")
    await producer.commit()
    assert await committed(engine, "a") == [b"1", b"2"]
    await engine.stop()


async def test_an_offline_partition_blocks_its_transactional_id_until_it_is_deleted() -> None:
    fs, engine, producer = await producing()
    await producer.send("a", b"1")
    await producer.send("b", b"1")
    await kill(engine, fs)
    fs.remove_tree(f"{DATA}/b-0")
    engine = await start(fs)
    assert B in engine._store.offline
    assert await error_of(Producer(engine).init()) is ConcurrentTransactionsError
    assert state(engine) is TransactionState.PREPARE_ABORT
    assert (await read(engine, "a")).last_stable_offset == 2
    assert await engine.topics.delete(["b"]) == [None]
    await settled(engine)
    await (await Producer(engine).init()).send("a", b"2")
    await engine.stop()


async def test_a_transaction_that_its_producer_left_open_times_out_after_a_restart() -> None:
    fs = FaultyFileSystem()
    engine = await begin(fs)
    producer = await Producer(engine, timeout_ms=100).init()
    await producer.send("a", b"1")
    engine = await restart(engine, fs)

    async def aborted() -> bool:
        return state(engine) is TransactionState.COMPLETE_ABORT

    await until(aborted)
    assert (await read(engine, "a")).last_stable_offset == 2
    await engine.stop()


async def test_a_failed_sync_during_the_repair_ends_the_start() -> None:
    fs = FailingMarkers()
    engine = await begin(fs)
    producer = await Producer(engine).init()
    identity = producer.identity
    producer.identity = ProducerIdentity(identity.producer_id + 1_000_000, identity.epoch)
    orphan = producer.batch("a", b"1").records
    engine._store.partitions[A].append(orphan, now_ms=engine.clock.now_ms())
    await kill(engine, fs)
    assert await error_of(start(fs)) is SyncFailedError
    assert "/a-0/" in fs.failed


async def test_a_transaction_larger_than_a_segment_continues_after_a_power_cut() -> None:
    fs, engine, producer = await producing(V1)
    await producer.send("a", b"kept")
    # Missing partitions are skipped when the transaction ends: only their names count here.
    many = [TopicPartition(f"{number:05}" + "x" * 244, 0) for number in range(9000)]
    await engine._transaction_coordinator.add("x", producer.identity, many)
    log = engine._store.partitions[TopicPartition("__transaction_state", 0)]
    assert log.segments[-1].size > log.config.segment_bytes
    engine = await restart(engine, fs, Unlucky())
    assert len(engine.transactions.describe("x").partitions) == 9001
    producer.engine = engine
    await producer.send("b", b"too")
    await producer.commit()
    engine = await restart(engine, fs, Unlucky())
    assert await committed(engine, "a") == [b"kept"]
    assert await committed(engine, "b") == [b"too"]
    await engine.stop()
