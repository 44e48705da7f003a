"""Produce and lookups, with a disk that syncs when the test says so."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from uuid import UUID

import pytest

from tests.broker.transactional import visible
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, open_store, write
from tidemill.broker.api import (
    Acks,
    FetchQuery,
    Isolation,
    PartitionRead,
    PartitionWrite,
    ProducerIdentity,
    ReadResult,
    TransactionVersion,
    WriteResult,
)
from tidemill.broker.data import Admission, DataPlane
from tidemill.broker.flusher import Countdown, Flusher
from tidemill.broker.waiters import Waiters
from tidemill.clock import ManualClock
from tidemill.errors import (
    BatchTooLargeError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    DiskFullError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    TidemillError,
)
from tidemill.log.batch import Buffer, iter_headers
from tidemill.log.compaction import compact
from tidemill.log.config import LogConfig
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.log.records import NewRecord, encode_batch
from tidemill.log.slice import Slice
from tidemill.log.transactions import Marker


class HeldDisk:
    """Stands for the flusher: nothing is durable before ``sync``."""

    def __init__(self) -> None:
        self.waiting: list[tuple[PartitionLog, Countdown]] = []

    def written(self, log: PartitionLog) -> None:
        pass

    def request(self, log: PartitionLog) -> None:
        pass

    def countdown(self) -> Countdown:
        return Countdown(asyncio.get_running_loop())

    def wait(self, log: PartitionLog, offset: int, countdown: Countdown) -> None:
        countdown.remaining += 1
        self.waiting.append((log, countdown))

    def sync(self) -> None:
        waiting, self.waiting = self.waiting, []
        for log, countdown in waiting:
            log.flush()
            countdown.hit()


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = HeldDisk()
        self.fs = FaultyFileSystem()
        store = open_store("/data", self.clock, self.fs)
        self.log = store.create(TP, LogConfig.parse({}), UUID(int=1))
        self.journal = store.create(TopicPartition("journal", 0), LogConfig.parse({}), UUID(int=2))
        self.admission: Admission | TidemillError = None
        self.asked: list[tuple[str, ProducerIdentity, TopicPartition, TransactionVersion]] = []
        self.data = DataPlane(
            store,
            cast(Flusher, self.disk),
            Waiters(),
            self.clock,
            fetch_bytes=1 << 20,
            admit=self.admit,
        )

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
        acks: Acks,
        sequence: int,
        *,
        transactional: bool = False,
        transactional_id: str | None = None,
        version: TransactionVersion = TransactionVersion.V2,
    ) -> list[WriteResult] | Awaitable[list[WriteResult]]:
        write = self.batch(sequence, transactional)
        return self.data.produce([write], acks, transactional_id, version)

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

    def error(
        self, sequence: int, version: TransactionVersion | None = None
    ) -> type[TidemillError] | None:
        """What a batch is answered with, as part of a transaction where a version is named."""
        if version is None:
            answer = self.produce(Acks.WRITTEN, sequence)
        else:
            answer = self.produce(
                Acks.WRITTEN, sequence, transactional=True, transactional_id="x", version=version
            )
        assert isinstance(answer, list)
        return None if answer[0].error is None else type(answer[0].error)

    async def read(self, offset: int, max_bytes: int, isolation: Isolation) -> ReadResult:
        part = PartitionRead(*TP, offset, max_bytes)
        (result,) = await self.data.fetch(FetchQuery([part], 0, 1, 1 << 20, isolation))
        return result


def run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def body() -> None:
        await asyncio.wait_for(test(Bench()), 20)

    asyncio.run(body())


def test_a_repetition_is_not_acknowledged_before_its_first_copy_is_durable() -> None:
    async def test(bench: Bench) -> None:
        assert isinstance(bench.produce(Acks.WRITTEN, 0), list)
        answer = bench.produce(Acks.DURABLE, 0)
        assert not isinstance(answer, list)
        repeated = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        assert not repeated.done()
        bench.disk.sync()
        (result,) = await repeated
        assert (result.base_offset, result.error) == (0, None)
        assert bench.log.log_end_offset == 1
        assert isinstance(bench.produce(Acks.DURABLE, 0), list)  # it is on disk: no wait

    run(test)


def test_lookups_by_time_in_many_partitions_leave_the_loop_to_others() -> None:
    async def test(bench: Bench) -> None:
        write(bench.log, [(b"k", b"v")], bench.clock.now_ms())

        async def lookups() -> None:
            for _ in range(50):
                found = await bench.data.list_offset(*TP, 0, Isolation.READ_UNCOMMITTED)
                assert found.offset == 0

        task, turns = asyncio.ensure_future(lookups()), 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 50

    run(test)


# --- several batches in flight -------------------------------------------------------------------

every_kind = pytest.mark.parametrize(
    "version", [None, *TransactionVersion], ids=["idempotent", "V1", "V2"]
)


@every_kind
def test_batches_behind_one_that_the_disk_refused_wait_for_it(
    version: TransactionVersion | None,
) -> None:
    async def test(bench: Bench) -> None:
        bench.fs.fail("write", errno.ENOSPC, path=f"/{TP}/")
        assert [bench.error(number, version) for number in range(5)] == [DiskFullError] * 5
        assert [bench.error(number, version) for number in range(5)] == [None] * 5
        assert bench.log.log_end_offset == 5

    run(test)


@pytest.mark.parametrize("version", list(TransactionVersion))
@pytest.mark.parametrize(
    "refusal", [ConcurrentTransactionsError("wait"), CoordinatorNotAvailableError("full")]
)
def test_batches_behind_one_that_the_coordinator_refused_wait_for_it(
    version: TransactionVersion, refusal: TidemillError
) -> None:
    async def test(bench: Bench) -> None:
        bench.admission = refusal
        assert bench.error(0, version) is type(refusal)
        bench.admission = None
        assert [bench.error(number, version) for number in range(1, 5)] == [type(refusal)] * 4
        assert [bench.error(number, version) for number in range(5)] == [None] * 5

    run(test)


@every_kind
def test_several_refusals_in_turn_are_answered_in_order(
    version: TransactionVersion | None,
) -> None:
    async def test(bench: Bench) -> None:
        bench.fs.fail("write", errno.ENOSPC, times=3, path=f"/{TP}/")
        for _ in range(3):
            assert [bench.error(number, version) for number in range(5)] == [DiskFullError] * 5
        assert [bench.error(number, version) for number in range(5)] == [None] * 5

    run(test)


def test_a_batch_of_the_same_request_waits_too() -> None:
    async def test(bench: Bench) -> None:
        bench.fs.fail("write", errno.ENOSPC, path=f"/{TP}/")
        for expected in (DiskFullError, type(None)):
            answer = bench.data.produce([bench.batch(0), bench.batch(1)], Acks.WRITTEN)
            assert isinstance(answer, list)
            assert [type(result.error) for result in answer] == [expected] * 2

    run(test)


@every_kind
def test_of_a_known_producer_the_batches_behind_a_refused_one_are_out_of_order(
    version: TransactionVersion | None,
) -> None:
    async def test(bench: Bench) -> None:
        assert bench.error(0, version) is None
        bench.fs.fail("write", errno.ENOSPC, path=f"/{TP}/")
        assert bench.error(1, version) is DiskFullError
        assert [bench.error(number, version) for number in range(2, 5)] == (
            [OutOfOrderSequenceError] * 3
        )
        assert [bench.error(number, version) for number in range(1, 5)] == [None] * 4

    run(test)


def test_what_was_given_up_holds_nothing_back() -> None:
    async def test(bench: Bench) -> None:
        bench.log.config = LogConfig.parse({"max.message.bytes": "10"})
        assert bench.error(0) is BatchTooLargeError
        bench.log.config = LogConfig.parse({})
        assert bench.error(1) is None

    run(test)


def test_an_unknown_producer_goes_on_but_where_each_transaction_has_its_epoch() -> None:
    async def test(bench: Bench) -> None:
        assert bench.error(3, TransactionVersion.V2) is OutOfOrderSequenceError
        assert bench.log.log_end_offset == 0
        assert bench.error(3, TransactionVersion.V1) is None

    run(test)


# --- transactions --------------------------------------------------------------------------------


def test_batches_of_no_transaction_are_nothing_to_the_coordinator() -> None:
    async def test(bench: Bench) -> None:
        bench.admission = InvalidProducerEpochError("fenced")
        for transactional_id in (None, "x"):
            answer = bench.produce(Acks.WRITTEN, 0, transactional_id=transactional_id)
            assert isinstance(answer, list)
            assert answer[0].error is None
        assert bench.asked == []

    run(test)


def test_a_batch_of_a_transaction_is_appended_only_where_it_is_admitted() -> None:
    async def test(bench: Bench) -> None:
        answer = bench.produce(Acks.WRITTEN, 0, transactional=True)
        assert isinstance(answer, list)
        assert isinstance(answer[0].error, InvalidRecordError)
        bench.admission = InvalidProducerEpochError("fenced")
        answer = bench.produce(Acks.WRITTEN, 0, transactional=True, transactional_id="x")
        assert isinstance(answer, list)
        assert answer[0].error is bench.admission
        assert bench.asked == [("x", ProducerIdentity(7, 0), TP, TransactionVersion.V2)]
        assert bench.log.log_end_offset == 0

    run(test)


def test_a_write_is_not_acknowledged_before_its_place_in_the_transaction_is_durable() -> None:
    async def test(bench: Bench) -> None:
        write(bench.journal, [(b"k", b"v")], bench.clock.now_ms(), sync=False)
        bench.admission = (bench.journal, 1)
        answer = bench.produce(Acks.DURABLE, 0, transactional=True, transactional_id="x")
        assert not isinstance(answer, list)
        waiting = asyncio.ensure_future(answer)
        (data, journal) = bench.disk.waiting
        assert [data[0], journal[0]] == [bench.log, bench.journal]
        bench.disk.waiting = [data]
        bench.disk.sync()
        await asyncio.sleep(0)
        assert not waiting.done()
        bench.disk.waiting = [journal]
        bench.disk.sync()
        (result,) = await waiting
        assert (result.base_offset, result.error) == (0, None)

    run(test)


def test_readers_are_told_of_the_aborted_transactions_in_what_they_read_and_no_others() -> None:
    async def test(bench: Bench) -> None:
        for number in range(3):
            bench.produce(Acks.WRITTEN, number, transactional=True, transactional_id="x")
            bench.log.append_marker(Marker(7, 0, commit=False), now_ms=bench.clock.now_ms())
        bench.log.flush()
        whole = await bench.read(0, 1 << 20, Isolation.READ_COMMITTED)
        assert whole.aborted == ((7, 0), (7, 2), (7, 4))
        sizes = [header.size for _, header in iter_headers(whole.records)]
        middle = await bench.read(2, sum(sizes[2:4]), Isolation.READ_COMMITTED)
        assert middle.aborted == ((7, 2),)
        cut = await bench.read(2, sum(sizes[2:4]) + 20, Isolation.READ_COMMITTED)
        assert cut.aborted == ((7, 2),)
        dirty = await bench.read(0, 1 << 20, Isolation.READ_UNCOMMITTED)
        assert dirty.aborted == ()

    run(test)


@pytest.mark.parametrize("taken_away_by", ["compaction", "retention"])
def test_readers_get_no_aborted_records_whose_index_vanishes_while_they_are_read_from_disk(
    taken_away_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, load = threading.Event(), Slice.load

    def slow(piece: Slice) -> Buffer:
        assert gone.wait(20)
        return load(piece)

    monkeypatch.setattr(Slice, "load", slow)

    async def test(bench: Bench) -> None:
        bench.log.config = LogConfig.parse({"cleanup.policy": "compact"})
        bench.produce(Acks.WRITTEN, 0, transactional=True, transactional_id="x")
        bench.log.append_marker(Marker(7, 0, commit=False), now_ms=bench.clock.now_ms())
        bench.log.roll(bench.clock.now_ms())
        bench.log.flush()
        bench.fs.cold = True
        reading = asyncio.ensure_future(bench.read(0, 1 << 20, Isolation.READ_COMMITTED))
        await asyncio.sleep(0)
        if taken_away_by == "retention":
            bench.log.delete_records_before(2)
        else:
            for work in compact(bench.log, bench.clock.now_ms()):
                if work is not None:
                    work.run()
        gone.set()
        result = await reading
        assert (result.error, visible(result)) == (None, [])

    run(test)
