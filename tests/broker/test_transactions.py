"""Transactions through the door: what readers see, who is fenced, what an answer promises."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.broker.transactional import (
    V1,
    V2,
    Producer,
    committed,
    error_of,
    read,
    run,
    running,
    until,
    visible,
)
from tests.support.faultyfs import FaultyFileSystem
from tidemill.broker.api import (
    LATEST,
    Acks,
    CommitRequest,
    CommittedOffset,
    FetchQuery,
    InitProducer,
    Isolation,
    NewTopic,
    OffsetToCommit,
    PartitionWrite,
    ProducerIdentity,
    TransactionState,
    TransactionVersion,
    TxnOffsetCommit,
)
from tidemill.broker.broker import Broker
from tidemill.broker.data import DataPlane
from tidemill.broker.markers import Markers
from tidemill.clock import ManualClock
from tidemill.errors import (
    BrokerStoppingError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTopicError,
    InvalidTxnStateError,
    OperationNotAttemptedError,
    ProducerFencedError,
    TidemillError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from tidemill.log.names import TopicPartition
from tidemill.log.records import NewRecord, encode_batch
from tidemill.log.transactions import Marker
from tidemill.state.transactions_format import encode_key, encode_value

both = pytest.mark.parametrize("version", [V1, V2])


async def topics(broker: Broker, *names: str, partitions: int = 1) -> None:
    await broker.create_topics([NewTopic(name, partitions) for name in names])


def state(broker: Broker, transactional_id: str = "x") -> TransactionState:
    return broker.describe_transaction(transactional_id).state


# --- what readers see ----------------------------------------------------------------------------


@both
def test_a_transaction_is_seen_whole_when_its_commit_is_answered(
    version: TransactionVersion,
) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", "b")
            producer = await Producer(broker, version=version).init()
            for number in range(3):
                await producer.send("a", b"%d" % number)
                await producer.send("b", b"%d" % number, b"!")
                assert len(await committed(broker, "a")) == number
                await producer.commit()
                assert len(await committed(broker, "a")) == number + 1
                assert len(await committed(broker, "b")) == 2 * number + 2

    run(test())


def test_the_partitions_of_one_request_join_with_one_record() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", partitions=500)
            producer = await Producer(broker).init()
            journal = broker._transactions._journal.log
            before = journal.log_end_offset
            writes = [producer.batch("a", b"1", partition=number) for number in range(500)]
            for _ in range(2):  # the second time none is new
                answer = broker.produce(writes, Acks.DURABLE, "x", V2)
                results = answer if isinstance(answer, list) else await answer
                assert [result.error for result in results] == [None] * 500
                assert journal.log_end_offset == before + 1
            assert len(broker.describe_transaction("x").partitions) == 500
            await producer.commit()
            assert await committed(broker, "a", 499) == [b"1"]

    run(test())


@both
def test_what_is_refused_of_a_request_leaves_the_rest_in_the_transaction(
    version: TransactionVersion,
) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", partitions=2)
            producer = await Producer(broker, version=version).init()
            if version is V1:
                await producer.add(("a", 1))
            writes = [producer.batch(name, b"1", partition=1) for name in ("gone", "a")]
            answer = broker.produce(writes, Acks.DURABLE, "x", version)
            results = answer if isinstance(answer, list) else await answer
            assert [type(result.error) for result in results] == [
                UnknownTopicOrPartitionError,
                type(None),
            ]
            await producer.commit()
            assert await committed(broker, "a", 1) == [b"1"]

    run(test())


@both
def test_an_aborted_transaction_is_named_to_its_readers(version: TransactionVersion) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker, version=version).init()
            await producer.send("a", b"never")
            await producer.abort()
            await producer.send("a", b"kept")
            await producer.commit()
            result = await read(broker, "a")
            assert len(result.aborted) == 1
            assert await committed(broker, "a") == [b"kept"]
            assert (await read(broker, "a", offset=2)).aborted == ()
            dirty = await read(broker, "a", isolation=Isolation.READ_UNCOMMITTED)
            assert dirty.aborted == ()

    run(test())


def test_readers_of_committed_records_wait_at_the_first_open_transaction() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            first = await Producer(broker, "first").init()
            second = await Producer(broker, "second").init()
            await first.send("a", b"1")
            await second.send("a", b"2")
            await second.commit()
            assert await committed(broker, "a") == []
            found = await broker.list_offset("a", 0, LATEST, Isolation.READ_COMMITTED)
            assert found.offset == 0
            (info,) = [p for p in broker.producers("a", 0) if p.current_txn_start_offset >= 0]
            assert (info.producer_id, info.current_txn_start_offset) == (
                first.identity.producer_id,
                0,
            )
            poll = asyncio.ensure_future(read(broker, "a", wait_ms=20_000))
            await asyncio.sleep(0)
            assert not poll.done()
            await first.commit()
            assert (await poll).last_stable_offset > 0
            assert await committed(broker, "a") == [b"1", b"2"]

    run(test())


def test_an_open_transaction_costs_other_producers_nothing() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"open")
            batch = encode_batch([NewRecord(b"k", b"plain")], timestamp_ms=broker.clock.now_ms())
            answer = broker.produce([PartitionWrite("a", 0, memoryview(batch))], Acks.DURABLE)
            assert not isinstance(answer, list)
            (result,) = await answer
            assert result.error is None
            dirty = await read(broker, "a", isolation=Isolation.READ_UNCOMMITTED)
            assert dirty.high_watermark == 2

    run(test())


async def write_plain(broker: Broker, topic: str, acks: Acks) -> None:
    batch = encode_batch([NewRecord(b"k", b"plain")], timestamp_ms=broker.clock.now_ms())
    answer = broker.produce([PartitionWrite(topic, 0, memoryview(batch))], acks)
    (result,) = answer if isinstance(answer, list) else await answer
    assert result.error is None


def test_what_others_write_does_not_wake_readers_who_wait_for_the_end_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Isolation] = []
    plan = DataPlane._plan

    def counted(self: DataPlane, query: FetchQuery) -> object:
        looks.append(query.isolation)
        return plan(self, query)

    monkeypatch.setattr(DataPlane, "_plan", counted)

    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"open")
            polls = [asyncio.ensure_future(read(broker, "a", wait_ms=50_000)) for _ in range(3)]
            await asyncio.sleep(0)
            for _ in range(50):
                await write_plain(broker, "a", Acks.DURABLE)
            assert len(looks) == len(polls)
            await producer.commit()
            for result in await asyncio.gather(*polls):
                assert len(visible(result)) == 51
            assert len(looks) == 2 * len(polls)

    run(test())


def test_readers_who_wait_for_the_end_of_a_transaction_do_not_hurry_the_disk() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(fs, log={"sync_interval_ms": 50_000}) as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"open")
            poll = asyncio.ensure_future(read(broker, "a", wait_ms=50_000))
            await asyncio.sleep(0)
            before = fs.syncs
            for _ in range(20):
                await write_plain(broker, "a", Acks.WRITTEN)
                await asyncio.sleep(0.001)  # a sync would take its chance
            assert fs.syncs == before
            await producer.commit()
            assert len(visible(await poll)) == 21
            # At the end of the log a reader waits for the disk again.
            tail = asyncio.ensure_future(read(broker, "a", offset=22, wait_ms=50_000))
            await asyncio.sleep(0)
            await write_plain(broker, "a", Acks.WRITTEN)
            assert visible(await tail) == [b"plain"]

    run(test())


# --- offsets -------------------------------------------------------------------------------------


@both
def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    version: TransactionVersion,
) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker, version=version).init()
            for commit, offset in ((False, 5), (True, 7), (False, 9)):
                before = broker.fetch_offsets("g", [("a", 0)])
                await producer.commit_offset("g", "a", offset)
                assert broker.fetch_offsets("g", [("a", 0)]) == before
                unstable = broker.fetch_offsets("g", [("a", 0)], require_stable=True)
                assert isinstance(unstable["a", 0], UnstableOffsetCommitError)
                await producer.end(commit)
            found = broker.fetch_offsets("g", [("a", 0)], require_stable=True)["a", 0]
            assert isinstance(found, CommittedOffset)
            assert found.offset == 7

    run(test())


def test_offsets_of_unknown_partitions_are_refused_one_by_one() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            offsets = (OffsetToCommit("none", 0, 1), OffsetToCommit("a", 0, 2))
            commit = CommitRequest("g", -1, "", None, offsets)
            request = TxnOffsetCommit("x", producer.identity, commit, V2)
            unknown, fine = await broker.commit_transaction_offsets(request)
            assert isinstance(unknown, UnknownTopicOrPartitionError)
            assert fine is None
            stale = replace(request, producer=ProducerIdentity(producer.identity.producer_id, 99))
            refused = await error_of(broker.commit_transaction_offsets(stale))
            assert refused is InvalidProducerEpochError

    run(test())


# --- who may write -------------------------------------------------------------------------------


def test_a_batch_of_a_transaction_needs_its_transactional_id() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            answer = broker.produce([producer.batch("a", b"x")], Acks.DURABLE)
            assert isinstance(answer, list)
            assert isinstance(answer[0].error, InvalidRecordError)
            producer.transactional_id = "another"
            result = await producer.try_send("a", b"x")
            assert isinstance(result.error, InvalidProducerIdMappingError)
            assert (await read(broker, "a")).high_watermark == 0

    run(test())


def test_a_producer_of_another_id_or_epoch_writes_nothing() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            identity = producer.identity
            producer.identity = ProducerIdentity(identity.producer_id + 1, identity.epoch)
            result = await producer.try_send("a", b"x")
            assert isinstance(result.error, InvalidProducerIdMappingError)
            producer.identity = ProducerIdentity(identity.producer_id, identity.epoch + 1)
            result = await producer.try_send("a", b"x")
            assert isinstance(result.error, InvalidProducerEpochError)
            assert (await read(broker, "a")).high_watermark == 0
            assert state(broker) is TransactionState.EMPTY

    run(test())


def test_a_producer_of_the_old_protocol_announces_its_partitions() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", "b")
            producer = await Producer(broker, version=V1).init()
            await producer.add(("a", 0))
            assert (await producer.try_send("a", b"x")).error is None
            refused = await producer.try_send("b", b"x")
            assert isinstance(refused.error, TransactionAbortableError)
            known, unknown = await broker.verify_partitions(
                "x", producer.identity, [("a", 0), ("b", 0)]
            )
            assert known is None
            assert isinstance(unknown, TransactionAbortableError)

    run(test())


def test_partitions_are_added_all_or_none() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker, version=V1).init()
            partitions = [("a", 0), ("none", 0), ("__transaction_state", 0)]
            errors = await broker.add_partitions("x", producer.identity, partitions)
            assert [type(error) for error in errors] == [
                OperationNotAttemptedError,
                UnknownTopicOrPartitionError,
                InvalidTopicError,
            ]
            assert state(broker) is TransactionState.EMPTY

    run(test())


def test_clients_can_not_write_to_the_coordinators_topic() -> None:
    async def test() -> None:
        async with running() as broker:
            assert broker.topic("__transaction_state").internal
            producer = await Producer(broker).init()
            result = await producer.try_send("__transaction_state", b"x")
            assert isinstance(result.error, InvalidTopicError)

    run(test())


# --- fencing -------------------------------------------------------------------------------------


@both
def test_a_new_producer_aborts_and_fences_its_predecessor(version: TransactionVersion) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            old = await Producer(broker, version=version).init()
            await old.send("a", b"lost")
            new = await Producer(broker, version=version).init()
            assert new.identity.epoch > old.identity.epoch
            late = await old.try_send("a", b"late")
            assert isinstance(late.error, InvalidProducerEpochError)
            assert await error_of(old.commit()) is ProducerFencedError
            await new.send("a", b"new")
            await new.commit()
            assert await committed(broker, "a") == [b"new"]

    run(test())


def test_producers_that_start_at_once_get_an_epoch_each_and_the_last_one_stays() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            await (await Producer(broker).init()).send("a", b"lost")
            producers = [Producer(broker) for _ in range(20)]
            await asyncio.gather(*(producer.init() for producer in producers))
            identities = [producer.identity for producer in producers]
            assert len(set(identities)) == 20
            last = max(producers, key=lambda producer: producer.identity)
            for producer in producers:
                result = await producer.try_send("a", b"x")
                assert (result.error is None) == (producer is last)
            await last.commit()
            assert await committed(broker, "a") == [b"x"]

    run(test())


def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            slow = await Producer(broker, timeout_ms=30).init()
            other = await Producer(broker, "other").init()
            await slow.send("a", b"slow")
            await other.send("a", b"other")
            await other.commit()

            async def aborted() -> bool:
                return state(broker) is TransactionState.COMPLETE_ABORT

            await until(aborted)
            assert await error_of(slow.send("a", b"late")) is InvalidProducerEpochError
            assert await committed(broker, "a") == [b"other"]
            await slow.init()
            await slow.send("a", b"again")
            await slow.commit()
            assert await committed(broker, "a") == [b"other", b"again"]

    run(test())


def test_many_timeouts_at_once_are_all_kept() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producers = [
                await Producer(broker, f"{number}", timeout_ms=20).init() for number in range(50)
            ]
            for producer in producers:
                await producer.send("a", b"x", acks=Acks.WRITTEN)

            async def aborted() -> bool:
                listed = broker.list_transactions([TransactionState.COMPLETE_ABORT])
                return len(listed) == len(producers)

            await until(aborted)
            assert await committed(broker, "a") == []
            assert (await read(broker, "a")).last_stable_offset == 100

    run(test())


# --- ends ----------------------------------------------------------------------------------------


def test_an_end_goes_on_when_its_caller_goes_away() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            end = asyncio.ensure_future(producer.commit())
            await asyncio.sleep(0)
            end.cancel()

            async def complete() -> bool:
                return state(broker) is TransactionState.COMPLETE_COMMIT

            await until(complete)
            assert await committed(broker, "a") == [b"x"]

    run(test())


def test_a_commit_covers_what_was_written_without_waiting_for_the_disk() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(fs, log={"sync_interval_ms": 3_600_000}) as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"x", acks=Acks.WRITTEN)
            log = broker._store.partitions[TopicPartition("a", 0)]
            assert log.high_watermark == 0
            decision = broker._store.partitions[TopicPartition("__transaction_state", 0)]
            before = decision.log_end_offset
            end = asyncio.ensure_future(producer.commit())
            while decision.log_end_offset == before:
                await asyncio.sleep(0)
            assert log.high_watermark == 1
            await end

    run(test())


def test_no_marker_is_written_before_its_decision_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind: list[int] = []
    write = Markers.write

    async def spy(
        self: Markers, marker: Marker, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, TidemillError]:
        log = self._store.partitions[TopicPartition("__transaction_state", 0)]
        behind.append(log.log_end_offset - log.high_watermark)
        return await write(self, marker, partitions)

    monkeypatch.setattr(Markers, "write", spy)

    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker, timeout_ms=60_000).init()
            for end in (producer.commit, producer.abort, Producer(broker).init):
                await producer.send("a", b"x")
                await end()
            await (await Producer(broker, timeout_ms=20).init()).send("a", b"x")

            async def aborted() -> bool:
                return len(behind) == 4

            await until(aborted)

    run(test())
    assert behind == [0, 0, 0, 0]


def test_an_end_that_was_answered_may_be_asked_for_again() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            first = producer.identity
            await producer.commit()
            again = await broker.end_transaction("x", first, True, V2)
            assert again == producer.identity
            other_way = broker.end_transaction("x", first, False, V2)
            assert await error_of(other_way) is InvalidTxnStateError

    run(test())


def test_epochs_that_are_used_up_give_a_fresh_producer_id() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            first = producer.identity.producer_id
            # 32,766 starts of the producer, made short
            machine = broker._transactions.machine
            almost = replace(machine.stored()["x"], producer=ProducerIdentity(first, 32_765))
            machine.replay(encode_key("x"), encode_value(almost))
            producer.identity = almost.producer
            for number in range(4):
                await producer.send("a", b"%d" % number)
                await producer.commit()
            assert producer.identity.producer_id != first
            assert await committed(broker, "a") == [b"0", b"1", b"2", b"3"]

    run(test())


def test_topics_that_were_deleted_do_not_hold_up_an_end() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", "b")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            await producer.send("b", b"x")
            assert await broker.delete_topics(["a"]) == [None]
            assert broker.describe_transaction("x").partitions == (TopicPartition("b", 0),)
            await producer.commit()
            assert await committed(broker, "b") == [b"x"]
            assert state(broker) is TransactionState.COMPLETE_COMMIT

    run(test())


def test_a_topic_may_be_deleted_while_its_transaction_ends() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", "b", partitions=3)
            for round_ in range(5):
                producer = await Producer(broker, f"{round_}").init()
                await topics(broker, "gone")
                for number in range(3):
                    await producer.send("a", b"x", partition=number)
                await producer.send("gone", b"x")
                deletion = asyncio.ensure_future(broker.delete_topics(["gone"]))
                for _ in range(round_):
                    await asyncio.sleep(0)
                await asyncio.gather(producer.commit(), deletion)
                assert state(broker, f"{round_}") is TransactionState.COMPLETE_COMMIT
            assert len(await committed(broker, "a", 2)) == 5

    run(test())


# --- a disk that refuses -------------------------------------------------------------------------


def test_a_partition_that_takes_no_marker_gets_it_later() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(fs) as broker:
            await topics(broker, "a", "b")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            await producer.send("b", b"x")
            fs.fail("write", 28, times=-1, path="/b-0/")
            await producer.commit()
            assert await committed(broker, "a") == [b"x"]
            assert await committed(broker, "b") == []
            assert state(broker) is TransactionState.PREPARE_COMMIT
            refused = await producer.try_send("a", b"next")
            assert isinstance(refused.error, ConcurrentTransactionsError)
            assert await error_of(Producer(broker).init()) is ConcurrentTransactionsError
            fs.heal()

            async def complete() -> bool:
                return state(broker) is TransactionState.COMPLETE_COMMIT

            await until(complete)
            assert await committed(broker, "b") == [b"x"]
            await producer.send("a", b"next")
            await producer.commit()
            assert await committed(broker, "a") == [b"x", b"next"]

    run(test())


def test_a_commit_that_can_not_be_decided_is_refused_and_may_be_tried_again() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(fs) as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            fs.fail("write", 28, times=-1, path="/__transaction_state-0/")
            assert await error_of(producer.commit()) is CoordinatorNotAvailableError
            assert await error_of(Producer(broker, "new").init()) is CoordinatorNotAvailableError
            assert state(broker) is TransactionState.ONGOING
            assert await committed(broker, "a") == []
            fs.heal()
            await producer.commit()
            assert await committed(broker, "a") == [b"x"]

    run(test())


def test_a_full_disk_refuses_a_write_whose_partition_can_not_be_added() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(fs) as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            fs.fail("write", 28, times=-1, path="/__transaction_state-0/")
            result = await producer.try_send("a", b"x")
            assert isinstance(result.error, CoordinatorNotAvailableError)
            assert (await read(broker, "a")).high_watermark == 0
            fs.heal()
            await producer.send("a", b"x")
            await producer.commit()
            assert await committed(broker, "a") == [b"x"]

    run(test())


def test_a_timeout_that_can_not_be_written_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.broker.transactions.LAST_RETRY_MS", 20)

    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(fs) as broker:
            await topics(broker, "a")
            producer = await Producer(broker, timeout_ms=30).init()
            await producer.send("a", b"x")
            fs.fail("write", 28, times=2, path="/__transaction_state-0/")

            async def aborted() -> bool:
                return state(broker) is TransactionState.COMPLETE_ABORT

            await until(aborted)
            assert (await read(broker, "a")).last_stable_offset == 2

    run(test())


# --- stopping, and how much there may be ---------------------------------------------------------


def test_a_broker_that_stops_tells_those_who_wait() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            async with broker._transactions._in_order.lock("x"):
                end = asyncio.ensure_future(error_of(producer.commit()))
                add = asyncio.ensure_future(error_of(producer.add(("a", 0))))
                init = asyncio.ensure_future(error_of(Producer(broker).init()))
                await asyncio.sleep(0.01)
                await broker.stop()
            assert {await end, await add, await init} == {BrokerStoppingError}
            assert await error_of(producer.commit()) is BrokerStoppingError

    run(test())


def test_a_thousand_transactional_ids_work_side_by_side_and_leave_no_locks() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", partitions=10)

            async def work(number: int) -> None:
                producer = await Producer(broker, f"p{number}").init()
                await producer.send("a", b"%d" % number, partition=number % 10)
                await producer.end(number % 2 == 0)

            await asyncio.gather(*(work(number) for number in range(1000)))
            seen = [value for number in range(10) for value in await committed(broker, "a", number)]
            assert sorted(map(int, seen)) == list(range(0, 1000, 2))
            assert len(broker._transactions._in_order) == 0

    run(test())


# --- admin ---------------------------------------------------------------------------------------


def test_transactions_are_listed_and_described() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker, "open").init()
            await Producer(broker, "idle").init()
            await producer.send("a", b"x")
            (listed,) = broker.list_transactions([TransactionState.ONGOING])
            assert listed.transactional_id == "open"
            found = broker.describe_transaction("open")
            assert found.producer == producer.identity
            assert found.partitions == (TopicPartition("a", 0),)
            with pytest.raises(TransactionalIdNotFoundError):
                broker.describe_transaction("none")

    run(test())


def test_a_transaction_is_ended_by_hand_on_the_partitions_that_are_named() -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", "b")
            producer = await Producer(broker).init()
            await producer.send("a", b"x")
            await producer.send("b", b"x")
            marker = Marker(*producer.identity, commit=False)
            partitions = [TopicPartition("a", 0), TopicPartition("none", 0)]
            ((done, unknown),) = await broker.write_markers([(marker, partitions)])
            assert done is None
            assert isinstance(unknown, UnknownTopicOrPartitionError)
            assert (await read(broker, "a")).last_stable_offset == 2
            assert (await read(broker, "b")).last_stable_offset == 0

    run(test())


@both
def test_no_coordinator_epoch_that_an_operator_makes_up_outranks_the_coordinator(
    version: TransactionVersion,
) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a")
            producer = await Producer(broker, version=version).init()
            await producer.send("a", b"by hand")
            marker = Marker(*producer.identity, commit=False, coordinator_epoch=5)
            await broker.write_markers([(marker, [TopicPartition("a", 0)])])
            await producer.abort()
            await producer.send("a", b"kept")
            await producer.commit()
            assert await committed(broker, "a") == [b"kept"]
            found = await read(broker, "a")
            assert found.last_stable_offset == found.high_watermark

    run(test())


@both
@pytest.mark.parametrize("epoch", [-1, -32768, 1, 32766, 32767])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_by_hand_in_an_epoch_that_is_not_the_transactions_changes_nothing(
    version: TransactionVersion, epoch: int, commit: bool
) -> None:
    async def test() -> None:
        async with running() as broker:
            await topics(broker, "a", "in", "idle")
            producer = await Producer(broker, version=version).init()
            await producer.send("a", b"x")
            await producer.commit_offset("g", "in", 7)
            asked = [
                TopicPartition(name, 0) for name in ("a", "__consumer_offsets", "idle", "none")
            ]
            logs = [log for tp in asked if (log := broker._store.partitions.get(tp)) is not None]
            ends = [log.log_end_offset for log in logs]
            marker = Marker(producer.identity.producer_id, epoch, commit)
            (errors,) = await broker.write_markers([(marker, asked)])
            # Where nothing is open, there is nothing that a sensible marker could be wrong about.
            idle = None if epoch in (1, 32766) else InvalidProducerEpochError
            assert [None if error is None else type(error) for error in errors] == [
                InvalidProducerEpochError,
                InvalidProducerEpochError,
                idle,
                UnknownTopicOrPartitionError,
            ]
            assert [log.log_end_offset for log in logs] == ends
            await producer.send("a", b"y")
            await producer.commit()
            await producer.send("a", b"z")
            await producer.commit()
            assert await committed(broker, "a") == [b"x", b"y", b"z"]
            offset = broker.fetch_offsets("g", [("in", 0)])["in", 0]
            assert isinstance(offset, CommittedOffset)
            assert offset.offset == 7

    run(test())


def test_ids_that_nobody_uses_are_forgotten() -> None:
    async def test() -> None:
        clock = ManualClock()
        async with running(clock=clock) as broker:
            await topics(broker, "a")
            await Producer(broker, "idle").init()
            clock.advance(3_600_000)
            used = await Producer(broker, "used", timeout_ms=900_000).init()
            clock.advance(604_800_000 - 3_600_000)
            await broker._housekeeping.expire()
            assert [each.transactional_id for each in broker.list_transactions()] == ["used"]
            await used.send("a", b"x")
            await used.commit()
            request = InitProducer("idle", 60_000)
            assert (await broker.init_transactional_producer(request)).epoch == 0

    run(test())
