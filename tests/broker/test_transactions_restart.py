"""Transactions over restarts: clean ones, kills and power cuts at any step, what a start heals."""

from __future__ import annotations

import errno
import os
import random

import pytest
from structlog.testing import capture_logs

from tests.broker.transactional import (
    DATA,
    V1,
    V2,
    Producer,
    committed,
    cut_power,
    error_of,
    kill,
    read,
    run,
    start,
    until,
)
from tests.support.faultyfs import CrashError, FaultyFileSystem, Unlucky
from tidemill.broker.api import (
    Acks,
    CommittedOffset,
    NewTopic,
    ProducerIdentity,
    TransactionState,
    TransactionVersion,
)
from tidemill.broker.broker import Broker
from tidemill.errors import ConcurrentTransactionsError, SyncFailedError, TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.records import NewRecord, encode_batch

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
    """What is written to partition a-0 can't be synced; what is there already can."""

    failed = ""

    def write_into(self, node: object, data: bytes, position: int, path: str) -> int:
        if path.endswith("/a-0/00000000000000000000.log") and position:
            self.failed = path
            self.fail("sync", times=-1, path=path)
        return super().write_into(node, data, position, path)  # type: ignore[arg-type]


async def restart(broker: Broker, fs: FaultyFileSystem, cut: random.Random | None = None) -> Broker:
    """Kill it, or (``cut``) the machine, and start another."""
    if cut is None:
        await kill(broker, fs)
    else:
        await cut_power(broker, fs, cut)
    return await start(fs)


async def settled(broker: Broker) -> None:
    async def done() -> bool:
        return not broker._transactions.machine.all_unfinished()

    await until(done)


def state(broker: Broker) -> TransactionState:
    return broker.describe_transaction("x").state


async def begin(fs: FaultyFileSystem) -> Broker:
    broker = await start(fs)
    await broker.create_topics([NewTopic("a", 1), NewTopic("b", 1)])
    return broker


# --- at any step ---------------------------------------------------------------------------------


class Story:
    """Three transactions over two topics and a group; the second is aborted."""

    def __init__(self) -> None:
        self.answered: list[bytes] = []

    async def tell(self, broker: Broker, version: TransactionVersion) -> None:
        producer = await Producer(broker, version=version).init()
        for value, commit in ((b"1", True), (b"2", False), (b"3", True)):
            await producer.send("a", value, acks=Acks.WRITTEN)
            await producer.send("b", value)
            await producer.commit_offset("g", "a", int(value))
            await producer.end(commit)
            self.answered.append(value)

    async def check(self, broker: Broker) -> None:
        await settled(broker)
        seen = await committed(broker, "a")
        assert seen == await committed(broker, "b")
        assert seen in ([], [b"1"], [b"1", b"3"])
        promised = [value for value in self.answered if value != b"2"]
        assert seen[: len(promised)] == promised
        offset = broker.fetch_offsets("g", None).get(("a", 0))
        if seen:
            assert isinstance(offset, CommittedOffset)
            assert offset.offset == int(seen[-1])
        else:
            assert offset is None
        new = await Producer(broker).init()
        await new.send("a", b"new")
        await new.commit()
        assert await committed(broker, "a") == [*seen, b"new"]
        for topic in ("a", "b"):
            found = await read(broker, topic)
            assert found.last_stable_offset == found.high_watermark


async def crash_at(step: int, version: TransactionVersion, cut: random.Random | None) -> bool:
    """Whether the story was longer than that."""
    fs = StepFileSystem()
    broker = await begin(fs)
    story = Story()
    fs.left = step
    crashed = False
    try:
        await story.tell(broker, version)
    except (CrashError, TidemillError):
        crashed = True
    broker = await restart(broker, fs, cut)
    await story.check(broker)
    await broker.stop()
    return crashed


@both
@pytest.mark.parametrize("power", [True, False], ids=["process", "power"])
def test_a_crash_at_any_step_leaves_each_transaction_whole_or_absent(
    version: TransactionVersion, power: bool
) -> None:
    async def test() -> None:
        step = 0
        while await crash_at(step, version, None if power else random.Random(step)):
            step += 1
        assert step > 20

    run(test())


# --- one by one ----------------------------------------------------------------------------------


@both
def test_an_open_transaction_goes_on_after_a_clean_restart(version: TransactionVersion) -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker, version=version).init()
        await producer.send("a", b"1")
        await producer.commit_offset("g", "a", 4)
        await broker.stop()
        producer.broker = broker = await start(fs)
        assert (await read(broker, "a")).last_stable_offset == 0
        await producer.send("a", b"2")
        await producer.commit()
        assert await committed(broker, "a") == [b"1", b"2"]
        offset = broker.fetch_offsets("g", None)["a", 0]
        assert isinstance(offset, CommittedOffset)
        assert offset.offset == 4
        await broker.stop()

    run(test())


def test_a_transaction_whose_record_was_lost_while_its_data_was_not_goes_on() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker).init()
        written = producer.batch("a", b"1")
        again = producer.batch("a", b"1")
        broker.produce([written], Acks.WRITTEN, "x", V2)
        broker._store.partitions[A].flush()
        with capture_logs() as said:
            producer.broker = broker = await restart(broker, fs, Unlucky())
        assert "transaction.adopted" in [each["event"] for each in said]
        assert broker.describe_transaction("x").partitions == (A,)
        answer = broker.produce([again], Acks.DURABLE, "x", V2)
        (repeated,) = answer if isinstance(answer, list) else await answer
        assert (repeated.error, repeated.base_offset) == (None, 0)
        await producer.commit()
        assert await committed(broker, "a") == [b"1"]
        await broker.stop()

    run(test())


def test_data_that_no_transactional_id_owns_is_aborted_at_start() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        for number in range(250):
            orphan = encode_batch(
                [NewRecord(b"k", b"orphan")],
                timestamp_ms=broker.clock.now_ms(),
                producer_id=4_000_000 + number,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            broker._store.partitions[A].append(orphan, now_ms=broker.clock.now_ms())
        broker = await restart(broker, fs)
        found = await read(broker, "a")
        assert found.last_stable_offset == found.high_watermark == 500
        assert await committed(broker, "a") == []
        await broker.stop()

    run(test())


def test_a_full_disk_does_not_keep_the_broker_from_starting_nor_from_healing_later() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        orphan = encode_batch(
            [NewRecord(b"k", b"orphan")],
            timestamp_ms=broker.clock.now_ms(),
            producer_id=4_000_000,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        broker._store.partitions[A].append(orphan, now_ms=broker.clock.now_ms())
        producer = await Producer(broker).init()
        broker.produce([producer.batch("b", b"1")], Acks.WRITTEN, "x", V2)
        broker._store.partitions[B].flush()
        broker._store.partitions[A].flush()
        await cut_power(broker, fs, Unlucky())
        for folder in ("a-0", "__transaction_state-0"):
            path = f"/{folder}/00000000000000000000.log"
            fs.fail("write", errno.ENOSPC, times=-1, path=path)
        producer.broker = broker = await start(fs)
        assert (await read(broker, "a")).last_stable_offset == 0
        assert state(broker) is TransactionState.EMPTY
        fs.heal()

        async def healed() -> bool:
            stable = (await read(broker, "a")).last_stable_offset
            return stable == 2 and state(broker) is TransactionState.ONGOING

        await until(healed)
        producer.sequences["b", 0] = 1
        await producer.commit()
        assert await committed(broker, "b") == [b"1"]
        await broker.stop()

    run(test())


async def start_without_adopting(broker: Broker, fs: FaultyFileSystem) -> Broker:
    """Cut the power: records of the coordinator that are not synced are lost. The disk is too full
    for an adoption while the broker starts, and has room right after it."""
    broker._store.partitions[A].flush()
    await cut_power(broker, fs, Unlucky())
    path = "/__transaction_state-0/00000000000000000000.log"
    fs.fail("write", errno.ENOSPC, times=-1, path=path)
    broker = await start(fs)
    fs.heal()
    return broker


def test_a_decision_is_not_finished_before_the_transaction_after_it_is_adopted() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker).init()
        await producer.send("a", b"1")
        await producer.commit()
        broker.produce([producer.batch("a", b"2")], Acks.WRITTEN, "x", V2)
        producer.broker = broker = await start_without_adopting(broker, fs)
        assert state(broker) is TransactionState.PREPARE_COMMIT
        await settled(broker)
        assert await committed(broker, "a") == [b"1"]
        assert state(broker) is TransactionState.ONGOING
        await producer.abort()
        assert await committed(broker, "a") == [b"1"]
        await broker.stop()

    run(test())


def test_a_transaction_that_is_not_adopted_yet_does_not_become_part_of_the_next_one() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker).init()
        await producer.send("b", b"never")
        broker.produce([producer.batch("a", b"never")], Acks.WRITTEN, "x", V2)
        broker = await start_without_adopting(broker, fs)
        successor = await Producer(broker).init()
        await successor.send("a", b"kept")
        await successor.commit()
        assert await committed(broker, "a") == [b"kept"]
        assert await committed(broker, "b") == []
        await broker.stop()

    run(test())


@pytest.mark.parametrize("path", ["/a-0/", "/__consumer_offsets-0/"])
@both
def test_markers_that_a_kill_left_out_are_written_after_it(
    version: TransactionVersion, path: str
) -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker, version=version).init()
        await producer.send("a", b"1")
        await producer.send("b", b"1")
        await producer.commit_offset("g", "a", 4)
        fs.fail("write", errno.ENOSPC, times=-1, path=path)
        await producer.commit()
        assert state(broker) is TransactionState.PREPARE_COMMIT
        producer.broker = broker = await restart(broker, fs)
        await settled(broker)
        assert state(broker) is TransactionState.COMPLETE_COMMIT
        assert await committed(broker, "a") == await committed(broker, "b") == [b"1"]
        offset = broker.fetch_offsets("g", None, require_stable=True)["a", 0]
        assert isinstance(offset, CommittedOffset)
        assert offset.offset == 4
        await producer.send("a", b"2")
        await producer.commit()
        assert await committed(broker, "a") == [b"1", b"2"]
        await broker.stop()

    run(test())


def test_a_partition_that_is_offline_holds_up_its_transactional_id_until_it_is_deleted() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker).init()
        await producer.send("a", b"1")
        await producer.send("b", b"1")
        await kill(broker, fs)
        fs.remove_tree(f"{DATA}/b-0")
        broker = await start(fs)
        assert B in broker._store.offline
        assert await error_of(Producer(broker).init()) is ConcurrentTransactionsError
        assert state(broker) is TransactionState.PREPARE_ABORT
        assert (await read(broker, "a")).last_stable_offset == 2
        assert await broker.delete_topics(["b"]) == [None]
        await settled(broker)
        await (await Producer(broker).init()).send("a", b"2")
        await broker.stop()

    run(test())


def test_a_transaction_that_its_producer_left_open_times_out_after_a_restart() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker, timeout_ms=100).init()
        await producer.send("a", b"1")
        broker = await restart(broker, fs)

        async def aborted() -> bool:
            return state(broker) is TransactionState.COMPLETE_ABORT

        await until(aborted)
        assert (await read(broker, "a")).last_stable_offset == 2
        await broker.stop()

    run(test())


def test_a_disk_that_fails_while_a_start_heals_ends_the_start() -> None:
    async def test() -> None:
        fs = FailingMarkers()
        broker = await begin(fs)
        producer = await Producer(broker).init()
        identity = producer.identity
        producer.identity = ProducerIdentity(identity.producer_id + 1_000_000, identity.epoch)
        orphan = producer.batch("a", b"1").records
        broker._store.partitions[A].append(orphan, now_ms=broker.clock.now_ms())
        await kill(broker, fs)
        assert await error_of(start(fs)) is SyncFailedError
        assert "/a-0/" in fs.failed

    run(test())


def test_a_transaction_that_does_not_fit_a_segment_goes_on_after_a_power_cut() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        broker = await begin(fs)
        producer = await Producer(broker, version=V1).init()
        await producer.send("a", b"kept")
        # Partitions that nobody has are skipped at the end: only their names count here.
        many = [TopicPartition(f"{number:05}" + "x" * 244, 0) for number in range(9000)]
        await broker._transactions.add("x", producer.identity, many)
        log = broker._store.partitions[TopicPartition("__transaction_state", 0)]
        assert log.segments[-1].size > log.config.segment_bytes
        broker = await restart(broker, fs, Unlucky())
        assert len(broker.describe_transaction("x").partitions) == 9001
        producer.broker = broker
        await producer.send("b", b"too")
        await producer.commit()
        broker = await restart(broker, fs, Unlucky())
        assert await committed(broker, "a") == [b"kept"]
        assert await committed(broker, "b") == [b"too"]
        await broker.stop()

    run(test())
