"""Transactions through the door: what readers see, who is fenced, what an answer promises."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pytest

from tests.engine.support import offset_at, results_of, running, until, write
from tests.engine.transactions.support import (
    V1,
    V2,
    Producer,
    committed,
    committed_offset,
    error_of,
    noted,
    read,
    visible,
)
from tests.support.effort import rounds
from tests.support.faultyfs import FaultyFileSystem
from tidemill.clock import ManualClock
from tidemill.engine.api import (
    CommitRequest,
    Durability,
    InitProducer,
    Isolation,
    NewTopic,
    OffsetToCommit,
    Position,
    ProducerIdentity,
    ReadQuery,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.engine.engine import Engine
from tidemill.engine.errors import BrokerStoppingError, OperationNotAttemptedError
from tidemill.engine.records.read import Reader
from tidemill.engine.transactions.markers import Markers
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.errors import InvalidProducerEpochError, InvalidTopicError, InvalidTxnStateError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    UnstableOffsetCommitError,
)
from tidemill.state.transactions.format import encode_key, encode_value

both = pytest.mark.parametrize("version", [V1, V2])


async def topics(engine: Engine, *names: str, partitions: int = 1) -> None:
    await engine.topics.create([NewTopic(name, partitions) for name in names])


async def producing(
    engine: Engine,
    *names: str,
    partitions: int = 1,
    version: TransactionVersion = V2,
    timeout_ms: int = 60_000,
) -> Producer:
    """Create topics, and start a transactional producer."""
    await topics(engine, *names, partitions=partitions)
    return await Producer(engine, version=version, timeout_ms=timeout_ms).init()


def state(engine: Engine, transactional_id: str = "x") -> TransactionState:
    return engine.transactions.describe(transactional_id).state


# --- what readers see ----------------------------------------------------------------------------


@both
async def test_a_transaction_is_seen_whole_when_its_commit_is_answered(
    version: TransactionVersion, engine: Engine
) -> None:
    producer = await producing(engine, "a", "b", version=version)
    for number in range(3):
        await producer.send("a", b"%d" % number)
        await producer.send("b", b"%d" % number, b"!")
        assert len(await committed(engine, "a")) == number
        await producer.commit()
        assert len(await committed(engine, "a")) == number + 1
        assert len(await committed(engine, "b")) == 2 * number + 2


async def test_one_record_adds_all_partitions_of_a_request(engine: Engine) -> None:
    producer = await producing(engine, "a", partitions=500)
    log = engine._transaction_coordinator._state_log.log
    before = log.log_end_offset
    writes = [producer.batch("a", b"1", partition=number) for number in range(500)]
    for _ in range(2):  # the second time none is new
        results = await results_of(engine.records.append(writes, Durability.SYNCED, "x", V2))
        assert [type(result) for result in results] == [tuple] * 500
        assert log.log_end_offset == before + 1
    assert len(engine.transactions.describe("x").partitions) == 500
    await producer.commit()
    assert await committed(engine, "a", 499) == [b"1"]


@both
async def test_a_refused_partition_of_a_request_leaves_the_others_in_the_transaction(
    version: TransactionVersion, engine: Engine
) -> None:
    producer = await producing(engine, "a", partitions=2, version=version)
    if version is V1:
        await producer.add(("a", 1))
    writes = [producer.batch(name, b"1", partition=1) for name in ("gone", "a")]
    results = await results_of(engine.records.append(writes, Durability.SYNCED, "x", version))
    assert [type(result) for result in results] == [UnknownTopicOrPartitionError, tuple]
    await producer.commit()
    assert await committed(engine, "a", 1) == [b"1"]


async def test_readers_of_committed_records_wait_at_the_first_open_transaction(
    engine: Engine,
) -> None:
    await topics(engine, "a")
    first = await Producer(engine, "first").init()
    second = await Producer(engine, "second").init()
    await first.send("a", b"1")
    await second.transact("a", b"2")
    assert await committed(engine, "a") == []
    dirty = await read(engine, "a", isolation=Isolation.READ_UNCOMMITTED)
    assert (dirty.high_watermark, dirty.aborted) == (3, ())
    assert await offset_at(engine, Position.LATEST, "a", Isolation.READ_COMMITTED) == 0
    wanted = [(0, Position.LATEST, None)]
    assert engine.records.find_now("a", wanted, Isolation.READ_COMMITTED) == [(0, 0)]
    (info,) = [p for p in engine.records.producers("a", 0) if p.transaction_start is not None]
    assert (info.producer_id, info.transaction_start) == (first.identity.producer_id, 0)
    poll = asyncio.ensure_future(read(engine, "a", wait_ms=20_000))
    await asyncio.sleep(0)
    assert not poll.done()
    await first.commit()
    assert (await poll).last_stable_offset > 0
    assert await committed(engine, "a") == [b"1", b"2"]


async def write_plain(engine: Engine, acks: Durability) -> None:
    plain = write("a", b"plain", timestamp_ms=engine.clock.now_ms())
    (result,) = await results_of(engine.records.append([plain], acks))
    assert isinstance(result, tuple)


async def test_other_writes_do_not_wake_readers_that_wait_for_the_end_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    looks: list[Isolation] = []
    plan = Reader._plan

    def counted(self: Reader, query: ReadQuery) -> object:
        looks.append(query.isolation)
        return plan(self, query)

    monkeypatch.setattr(Reader, "_plan", counted)
    producer = await producing(engine, "a")
    await producer.send("a", b"open")
    polls = [asyncio.ensure_future(read(engine, "a", wait_ms=50_000)) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(50):
        await write_plain(engine, Durability.SYNCED)
    assert len(looks) == len(polls)
    await producer.commit()
    for result in await asyncio.gather(*polls):
        assert len(visible(result)) == 51
    assert len(looks) == 2 * len(polls)


@pytest.mark.usefixtures("no_extents")
async def test_readers_that_wait_for_the_end_of_a_transaction_cause_no_sync(
    fs: FaultyFileSystem,
) -> None:
    async with running(fs=fs, log={"sync_interval_ms": 50_000}) as engine:
        producer = await producing(engine, "a")
        await producer.send("a", b"open")
        poll = asyncio.ensure_future(read(engine, "a", wait_ms=50_000))
        await asyncio.sleep(0)
        await noted(engine)
        before = fs.syncs
        for _ in range(20):
            await write_plain(engine, Durability.WRITTEN)
            await asyncio.sleep(0.001)  # a sync would take its chance
        assert fs.syncs == before
        await producer.commit()
        assert len(visible(await poll)) == 21
        # At the end of the log a reader waits for the disk again.
        tail = asyncio.ensure_future(read(engine, "a", offset=22, wait_ms=50_000))
        await asyncio.sleep(0)
        await write_plain(engine, Durability.WRITTEN)
        assert visible(await tail) == [b"plain"]


# --- offsets -------------------------------------------------------------------------------------


@both
async def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    version: TransactionVersion, engine: Engine
) -> None:
    producer = await producing(engine, "a", version=version)
    for commit, offset in ((False, 5), (True, 7), (False, 9)):
        before = engine.groups.committed("g", [("a", 0)])
        await producer.commit_offset("g", "a", offset)
        assert engine.groups.committed("g", [("a", 0)]) == before
        unstable = engine.groups.committed("g", [("a", 0)], require_stable=True)
        assert isinstance(unstable["a", 0], UnstableOffsetCommitError)
        await producer.end(commit)
    assert committed_offset(engine, "a", require_stable=True) == 7


async def test_offsets_of_unknown_partitions_are_refused_one_by_one(engine: Engine) -> None:
    producer = await producing(engine, "a")
    offsets = (OffsetToCommit("none", 0, 1), OffsetToCommit("a", 0, 2))
    commit = CommitRequest("g", -1, "", None, offsets)
    request = TxnOffsetCommit("x", producer.identity, commit, V2)
    unknown, fine = await engine.transactions.commit_offsets(request)
    assert isinstance(unknown, UnknownTopicOrPartitionError)
    assert fine is None
    stale = replace(request, producer=ProducerIdentity(producer.identity.producer_id, 99))
    refused = await error_of(engine.transactions.commit_offsets(stale))
    assert refused is InvalidProducerEpochError


# --- who may write -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transactional_id", "shift", "error"),
    [
        ("another", (0, 0), InvalidProducerIdMappingError),
        ("x", (1, 0), InvalidProducerIdMappingError),
        ("x", (0, 1), InvalidProducerEpochError),
    ],
    ids=["transactional id", "producer id", "epoch"],
)
async def test_a_producer_of_another_id_or_epoch_writes_nothing(
    engine: Engine, transactional_id: str, shift: tuple[int, int], error: type[TidemillError]
) -> None:
    producer = await producing(engine, "a")
    producer.transactional_id = transactional_id
    producer.identity = ProducerIdentity(
        producer.identity.producer_id + shift[0], producer.identity.epoch + shift[1]
    )
    assert type(await producer.try_send("a", b"x")) is error
    assert (await read(engine, "a")).high_watermark == 0
    assert state(engine) is TransactionState.EMPTY


async def test_a_producer_of_the_old_protocol_announces_its_partitions(engine: Engine) -> None:
    producer = await producing(engine, "a", "b", version=V1)
    await producer.add(("a", 0))
    assert isinstance(await producer.try_send("a", b"x"), tuple)
    refused = await producer.try_send("b", b"x")
    assert isinstance(refused, TransactionAbortableError)
    known, unknown = await engine.transactions.verify_partitions(
        "x", producer.identity, [("a", 0), ("b", 0)]
    )
    assert known is None
    assert isinstance(unknown, TransactionAbortableError)


async def test_partitions_are_added_all_or_none(engine: Engine) -> None:
    producer = await producing(engine, "a", version=V1)
    partitions = [("a", 0), ("none", 0), ("__transaction_state", 0)]
    errors = await engine.transactions.add_partitions("x", producer.identity, partitions)
    assert [type(error) for error in errors] == [
        OperationNotAttemptedError,
        UnknownTopicOrPartitionError,
        InvalidTopicError,
    ]
    assert state(engine) is TransactionState.EMPTY


# --- fencing -------------------------------------------------------------------------------------


@both
async def test_a_new_producer_aborts_and_fences_its_predecessor(
    version: TransactionVersion, engine: Engine
) -> None:
    await topics(engine, "a")
    old = await Producer(engine, version=version).init()
    await old.send("a", b"lost")
    new = await Producer(engine, version=version).init()
    assert new.identity.epoch > old.identity.epoch
    late = await old.try_send("a", b"late")
    assert isinstance(late, InvalidProducerEpochError)
    assert await error_of(old.commit()) is ProducerFencedError
    await new.transact("a", b"new")
    assert await committed(engine, "a") == [b"new"]


async def test_producers_that_start_together_get_an_epoch_each_and_the_last_one_is_valid(
    engine: Engine,
) -> None:
    await topics(engine, "a")
    await (await Producer(engine).init()).send("a", b"lost")
    producers = [Producer(engine) for _ in range(20)]
    await asyncio.gather(*(producer.init() for producer in producers))
    identities = [producer.identity for producer in producers]
    assert len(set(identities)) == 20
    last = max(producers, key=lambda producer: producer.identity)
    for producer in producers:
        result = await producer.try_send("a", b"x")
        assert isinstance(result, tuple) == (producer is last)
    await last.commit()
    assert await committed(engine, "a") == [b"x"]


async def test_a_transaction_that_is_open_for_too_long_is_aborted(engine: Engine) -> None:
    await topics(engine, "a")
    slow = await Producer(engine, timeout_ms=30).init()
    other = await Producer(engine, "other").init()
    await slow.send("a", b"slow")
    await other.transact("a", b"other")
    await until(lambda: state(engine) is TransactionState.COMPLETE_ABORT)
    assert await error_of(slow.send("a", b"late")) is InvalidProducerEpochError
    assert await committed(engine, "a") == [b"other"]
    again = await Producer(engine).init()
    await again.transact("a", b"again")
    assert await committed(engine, "a") == [b"other", b"again"]


async def test_many_transactions_that_time_out_together_are_all_aborted(engine: Engine) -> None:
    await topics(engine, "a")
    producers = [await Producer(engine, f"{number}", timeout_ms=20).init() for number in range(50)]
    for producer in producers:
        await producer.send("a", b"x", acks=Durability.WRITTEN)
    aborted = partial(engine.transactions.listings, [TransactionState.COMPLETE_ABORT])
    await until(lambda: len(aborted()) == len(producers))
    assert await committed(engine, "a") == []
    assert (await read(engine, "a")).last_stable_offset == 100


# --- ends ----------------------------------------------------------------------------------------


async def test_an_end_continues_after_its_caller_is_cancelled(engine: Engine) -> None:
    producer = await producing(engine, "a")
    await producer.send("a", b"x")
    end = asyncio.ensure_future(producer.commit())
    await asyncio.sleep(0)
    end.cancel()
    await until(lambda: state(engine) is TransactionState.COMPLETE_COMMIT)
    assert await committed(engine, "a") == [b"x"]


async def test_a_commit_syncs_writes_that_did_not_wait_for_the_disk(fs: FaultyFileSystem) -> None:
    async with running(fs=fs, log={"sync_interval_ms": 3_600_000}) as engine:
        producer = await producing(engine, "a")
        await producer.send("a", b"x", acks=Durability.WRITTEN)
        log = engine._store.partitions[TopicPartition("a", 0)]
        assert log.high_watermark == 0
        decision = engine._store.partitions[TopicPartition("__transaction_state", 0)]
        before = decision.log_end_offset
        end = asyncio.ensure_future(producer.commit())
        while decision.log_end_offset == before:
            await asyncio.sleep(0)
        assert log.high_watermark == 1
        await end


async def test_no_marker_is_written_before_its_decision_is_durable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind: list[int] = []
    write_markers = Markers.write

    async def spy(
        self: Markers, marker: Marker, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, TidemillError]:
        log = self._store.partitions[TopicPartition("__transaction_state", 0)]
        behind.append(log.log_end_offset - log.high_watermark)
        return await write_markers(self, marker, partitions)

    monkeypatch.setattr(Markers, "write", spy)
    producer = await producing(engine, "a")
    for end in (producer.commit, producer.abort, Producer(engine).init):
        await producer.send("a", b"x")
        await end()
    await (await Producer(engine, timeout_ms=20).init()).send("a", b"x")
    await until(lambda: len(behind) == 4)
    assert behind == [0, 0, 0, 0]


async def test_an_end_can_be_repeated_after_its_answer(engine: Engine) -> None:
    producer = await producing(engine, "a")
    await producer.send("a", b"x")
    first = producer.identity
    await producer.commit()
    again = await engine.transactions.end("x", first, True, V2)
    assert again == producer.identity
    other_way = engine.transactions.end("x", first, False, V2)
    assert await error_of(other_way) is InvalidTxnStateError


async def test_after_the_last_epoch_the_producer_gets_a_new_id(engine: Engine) -> None:
    producer = await producing(engine, "a")
    first = producer.identity.producer_id
    # 32,766 starts of the producer, made short
    machine = engine._transaction_coordinator.machine
    almost = replace(machine.stored()["x"], producer=ProducerIdentity(first, 32_765))
    machine.replay(encode_key("x"), encode_value(almost))
    producer.identity = almost.producer
    for number in range(4):
        await producer.send("a", b"%d" % number)
        await producer.commit()
    assert producer.identity.producer_id != first
    assert await committed(engine, "a") == [b"0", b"1", b"2", b"3"]


async def test_deleted_topics_do_not_block_an_end(engine: Engine) -> None:
    producer = await producing(engine, "a", "b")
    await producer.send("a", b"x")
    await producer.send("b", b"x")
    assert await engine.topics.delete(["a"]) == [None]
    assert engine.transactions.describe("x").partitions == (TopicPartition("b", 0),)
    await producer.commit()
    assert await committed(engine, "b") == [b"x"]
    assert state(engine) is TransactionState.COMPLETE_COMMIT


async def test_a_topic_can_be_deleted_while_its_transaction_ends(engine: Engine) -> None:
    await topics(engine, "a", "b", partitions=3)
    for round_ in range(5):
        producer = await Producer(engine, f"{round_}").init()
        await topics(engine, "gone")
        for number in range(3):
            await producer.send("a", b"x", partition=number)
        await producer.send("gone", b"x")
        deletion = asyncio.ensure_future(engine.topics.delete(["gone"]))
        for _ in range(round_):
            await asyncio.sleep(0)
        await asyncio.gather(producer.commit(), deletion)
        assert state(engine, f"{round_}") is TransactionState.COMPLETE_COMMIT
    assert len(await committed(engine, "a", 2)) == 5


# --- a disk that refuses -------------------------------------------------------------------------


async def test_a_partition_that_takes_no_marker_gets_it_later(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    producer = await producing(engine, "a", "b")
    await producer.send("a", b"x")
    await producer.send("b", b"x")
    fs.fail("write", errno.ENOSPC, times=-1, path="/b-0/")
    await producer.commit()
    assert await committed(engine, "a") == [b"x"]
    assert await committed(engine, "b") == []
    assert state(engine) is TransactionState.PREPARE_COMMIT
    refused = await producer.try_send("a", b"next")
    assert isinstance(refused, ConcurrentTransactionsError)
    assert await error_of(Producer(engine).init()) is ConcurrentTransactionsError
    fs.clear_faults()
    await until(lambda: state(engine) is TransactionState.COMPLETE_COMMIT)
    assert await committed(engine, "b") == [b"x"]
    await producer.transact("a", b"next")
    assert await committed(engine, "a") == [b"x", b"next"]


async def test_a_commit_whose_decision_can_not_be_written_fails_and_can_be_retried(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    producer = await producing(engine, "a")
    await producer.send("a", b"x")
    fs.fail("write", errno.ENOSPC, times=-1, path="/__transaction_state-0/")
    assert await error_of(producer.commit()) is CoordinatorNotAvailableError
    assert await error_of(Producer(engine, "new").init()) is CoordinatorNotAvailableError
    assert state(engine) is TransactionState.ONGOING
    assert await committed(engine, "a") == []
    fs.clear_faults()
    await producer.commit()
    assert await committed(engine, "a") == [b"x"]


async def test_a_full_disk_refuses_a_write_whose_partition_can_not_be_added(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    producer = await producing(engine, "a")
    fs.fail("write", errno.ENOSPC, times=-1, path="/__transaction_state-0/")
    result = await producer.try_send("a", b"x")
    assert isinstance(result, CoordinatorNotAvailableError)
    assert (await read(engine, "a")).high_watermark == 0
    fs.clear_faults()
    await producer.transact("a", b"x")
    assert await committed(engine, "a") == [b"x"]


async def test_a_timeout_that_can_not_be_written_is_retried(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, fs: FaultyFileSystem
) -> None:
    monkeypatch.setattr("tidemill.engine.transactions.coordinator.LAST_RETRY_MS", 20)
    producer = await producing(engine, "a", timeout_ms=30)
    await producer.send("a", b"x")
    fs.fail("write", errno.ENOSPC, times=2, path="/__transaction_state-0/")
    await until(lambda: state(engine) is TransactionState.COMPLETE_ABORT)
    assert (await read(engine, "a")).last_stable_offset == 2


# --- stopping, and how much there may be ---------------------------------------------------------


async def test_waiting_requests_get_an_error_when_the_broker_stops(engine: Engine) -> None:
    producer = await producing(engine, "a")
    await producer.send("a", b"x")
    async with engine._transaction_coordinator._tasks.lock("x"):
        end = asyncio.ensure_future(error_of(producer.commit()))
        add = asyncio.ensure_future(error_of(producer.add(("a", 0))))
        init = asyncio.ensure_future(error_of(Producer(engine).init()))
        await asyncio.sleep(0.01)
        await engine.stop()
    assert {await end, await add, await init} == {BrokerStoppingError}
    assert await error_of(producer.commit()) is BrokerStoppingError


async def test_many_transactional_ids_work_side_by_side_and_leave_no_locks(engine: Engine) -> None:
    count = rounds("TRANSACTIONAL_IDS", 200, 1000)
    await topics(engine, "a", partitions=10)

    async def work(number: int) -> None:
        producer = await Producer(engine, f"p{number}").init()
        await producer.send("a", b"%d" % number, partition=number % 10)
        await producer.end(number % 2 == 0)

    await asyncio.gather(*(work(number) for number in range(count)))
    seen = [value for number in range(10) for value in await committed(engine, "a", number)]
    assert sorted(map(int, seen)) == list(range(0, count, 2))
    assert len(engine._transaction_coordinator._tasks) == 0


# --- admin ---------------------------------------------------------------------------------------


async def test_transactions_are_listed_and_described(engine: Engine) -> None:
    await topics(engine, "a")
    producer = await Producer(engine, "open").init()
    await Producer(engine, "idle").init()
    await producer.send("a", b"x")
    (listed,) = engine.transactions.listings([TransactionState.ONGOING])
    assert listed.transactional_id == "open"
    found = engine.transactions.describe("open")
    assert found.producer == producer.identity
    assert found.partitions == (TopicPartition("a", 0),)
    with pytest.raises(TransactionalIdNotFoundError):
        engine.transactions.describe("none")


async def test_an_operator_ends_a_transaction_on_the_named_partitions(engine: Engine) -> None:
    producer = await producing(engine, "a", "b")
    await producer.send("a", b"x")
    await producer.send("b", b"x")
    marker = Marker(*producer.identity, commit=False)
    partitions = [TopicPartition("a", 0), TopicPartition("none", 0)]
    ((done, unknown),) = await engine.transactions.write_markers([(marker, partitions)])
    assert done is None
    assert isinstance(unknown, UnknownTopicOrPartitionError)
    assert (await read(engine, "a")).last_stable_offset == 2
    assert (await read(engine, "b")).last_stable_offset == 0


@both
async def test_a_made_up_coordinator_epoch_does_not_fence_the_coordinator(
    version: TransactionVersion, engine: Engine
) -> None:
    producer = await producing(engine, "a", version=version)
    await producer.send("a", b"by hand")
    marker = Marker(*producer.identity, commit=False, coordinator_epoch=5)
    await engine.transactions.write_markers([(marker, [TopicPartition("a", 0)])])
    await producer.abort()
    await producer.transact("a", b"kept")
    assert await committed(engine, "a") == [b"kept"]
    found = await read(engine, "a")
    assert found.last_stable_offset == found.high_watermark


@both
@pytest.mark.parametrize("epoch", [-1, -32768, 1, 32766, 32767])
@pytest.mark.parametrize("commit", [True, False])
async def test_an_operator_s_marker_with_another_epoch_changes_nothing(
    version: TransactionVersion, epoch: int, commit: bool, engine: Engine
) -> None:
    producer = await producing(engine, "a", "in", "idle", version=version)
    await producer.send("a", b"x")
    await producer.commit_offset("g", "in", 7)
    asked = [TopicPartition(name, 0) for name in ("a", "__consumer_offsets", "idle", "none")]
    logs = [log for tp in asked if (log := engine._store.partitions.get(tp)) is not None]
    ends = [log.log_end_offset for log in logs]
    marker = Marker(producer.identity.producer_id, epoch, commit)
    (errors,) = await engine.transactions.write_markers([(marker, asked)])
    # Where nothing is open, there is nothing that a sensible marker could be wrong about.
    idle = None if epoch in (1, 32766) else InvalidProducerEpochError
    assert [None if error is None else type(error) for error in errors] == [
        InvalidProducerEpochError,
        InvalidProducerEpochError,
        idle,
        UnknownTopicOrPartitionError,
    ]
    assert [log.log_end_offset for log in logs] == ends
    await producer.transact("a", b"y")
    await producer.transact("a", b"z")
    assert await committed(engine, "a") == [b"x", b"y", b"z"]
    assert committed_offset(engine, "in") == 7


async def test_unused_transactional_ids_expire(fs: FaultyFileSystem) -> None:
    clock = ManualClock()
    async with running(fs=fs, clock=clock) as engine:
        await topics(engine, "a")
        await Producer(engine, "idle").init()
        clock.advance(3_600_000)
        used = await Producer(engine, "used", timeout_ms=900_000).init()
        clock.advance(604_800_000 - 3_600_000)
        await engine._housekeeping.expire()
        assert [each.transactional_id for each in engine.transactions.listings()] == ["used"]
        await used.transact("a", b"x")
        request = InitProducer("idle", 60_000)
        assert (await engine.transactions.init(request)).epoch == 0
