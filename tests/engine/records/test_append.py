"""Appends of batches: acknowledgements, several in flight, and transactions."""

from __future__ import annotations

import asyncio
import errno
import traceback

import pytest

from tests.engine.records.support import Bench
from tests.engine.support import at_once, later
from tests.support.logs import TP, write
from tests.support.written import offset_of
from tidemill.engine.api import (
    Durability,
    Isolation,
    PartitionWrite,
    ProducerIdentity,
    TransactionVersion,
)
from tidemill.errors import TidemillError
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import (
    BatchTooLargeError,
    DiskFullError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    StorageError,
)
from tidemill.log.names import TopicPartition
from tidemill.state.errors import ConcurrentTransactionsError, CoordinatorNotAvailableError


async def test_a_repeated_batch_is_not_acknowledged_before_the_first_copy_is_durable(
    bench: Bench,
) -> None:
    at_once(bench.produce(Durability.WRITTEN, 0))
    repeated = asyncio.ensure_future(later(bench.produce(Durability.SYNCED, 0)))
    await asyncio.sleep(0)
    assert not repeated.done()
    bench.disk.sync()
    (result,) = await repeated
    assert offset_of(result) == 0
    assert bench.log.log_end_offset == 1
    at_once(bench.produce(Durability.SYNCED, 0))  # it is on disk: no wait


# --- several batches in flight -------------------------------------------------------------------

every_kind = pytest.mark.parametrize(
    "version", [None, *TransactionVersion], ids=["idempotent", "V1", "V2"]
)


@every_kind
@pytest.mark.parametrize("refusals", [1, 3])
async def test_batches_after_one_that_the_disk_refused_are_refused_until_it_is_retried(
    refusals: int, version: TransactionVersion | None, bench: Bench
) -> None:
    bench.fs.fail("write", errno.ENOSPC, times=refusals, path=f"/{TP}/")
    for _ in range(refusals):
        assert [bench.error(number, version) for number in range(5)] == [DiskFullError] * 5
    assert [bench.error(number, version) for number in range(5)] == [None] * 5
    assert bench.log.log_end_offset == 5


@pytest.mark.parametrize("version", list(TransactionVersion))
@pytest.mark.parametrize(
    "refusal", [ConcurrentTransactionsError("wait"), CoordinatorNotAvailableError("full")]
)
async def test_batches_after_one_that_the_coordinator_refused_are_refused_until_it_is_retried(
    version: TransactionVersion, refusal: TidemillError, bench: Bench
) -> None:
    bench.admission = refusal
    assert bench.error(0, version) is type(refusal)
    bench.admission = None
    assert [bench.error(number, version) for number in range(1, 5)] == [type(refusal)] * 4
    assert [bench.error(number, version) for number in range(5)] == [None] * 5


async def test_a_batch_of_the_same_request_waits_too(bench: Bench) -> None:
    bench.fs.fail("write", errno.ENOSPC, path=f"/{TP}/")
    for expected in (DiskFullError, tuple):
        results = at_once(bench.append(bench.batch(0), bench.batch(1)))
        assert [type(result) for result in results] == [expected] * 2


@every_kind
async def test_after_a_refused_batch_of_a_known_producer_the_next_ones_are_out_of_order(
    version: TransactionVersion | None, bench: Bench
) -> None:
    assert bench.error(0, version) is None
    bench.fs.fail("write", errno.ENOSPC, path=f"/{TP}/")
    assert bench.error(1, version) is DiskFullError
    assert [bench.error(number, version) for number in range(2, 5)] == (
        [OutOfOrderSequenceError] * 3
    )
    assert [bench.error(number, version) for number in range(1, 5)] == [None] * 4


async def test_a_batch_that_is_invalid_for_good_does_not_block_the_next_one(bench: Bench) -> None:
    bench.log.config = parse_config({"max.message.bytes": "10"})
    assert bench.error(0) is BatchTooLargeError
    bench.log.config = parse_config({})
    assert bench.error(1) is None


async def test_an_unknown_producer_continues_its_sequence_with_v1_and_not_with_v2(
    bench: Bench,
) -> None:
    assert bench.error(3, TransactionVersion.V2) is OutOfOrderSequenceError
    assert bench.log.log_end_offset == 0
    assert bench.error(3, TransactionVersion.V1) is None


# --- transactions --------------------------------------------------------------------------------


async def test_the_coordinator_is_not_asked_about_batches_outside_transactions(
    bench: Bench,
) -> None:
    bench.admission = InvalidProducerEpochError("fenced")
    for transactional_id in (None, "x"):
        answer = bench.appender.append([bench.batch(0)], Durability.WRITTEN, transactional_id)
        (result,) = at_once(answer)
        assert isinstance(result, tuple)
    assert bench.asked == []


async def test_a_batch_of_a_transaction_is_appended_only_where_it_is_admitted(bench: Bench) -> None:
    (result,) = at_once(bench.append(bench.batch(0, transactional=True)))
    assert isinstance(result, InvalidRecordError)
    bench.admission = InvalidProducerEpochError("fenced")
    assert bench.error(0, TransactionVersion.V2) is InvalidProducerEpochError
    assert bench.asked == [("x", ProducerIdentity(7, 0), TP, TransactionVersion.V2)]
    assert bench.log.log_end_offset == 0


async def test_a_write_is_not_acknowledged_before_its_partition_is_durably_in_the_transaction(
    bench: Bench,
) -> None:
    write(bench.journal, [(b"k", b"v")], bench.clock.now_ms(), sync=False)
    bench.admission = (bench.journal, 1)
    answer = later(bench.produce(Durability.SYNCED, 0, transactional=True))
    waiting = asyncio.ensure_future(answer)
    data, journal = bench.disk.waiting
    assert [data[0], journal[0]] == [bench.log, bench.journal]
    bench.disk.waiting = [data]
    bench.disk.sync()
    await asyncio.sleep(0)
    assert not waiting.done()
    bench.disk.waiting = [journal]
    bench.disk.sync()
    (result,) = await waiting
    assert offset_of(result) == 0


async def test_an_offline_partition_keeps_no_requests_that_it_has_refused(bench: Bench) -> None:
    failure, damage = StorageError("broken"), StorageError("damaged")
    write(bench.log, [(b"k", b"v")], bench.clock.now_ms())
    bench.log.go_offline(failure)
    damaged = TopicPartition("damaged", 0)
    bench.store.environment.offline[damaged] = damage
    depths = set()
    for sequence in range(3):
        assert bench.error(sequence) is StorageError
        other = PartitionWrite(*damaged, bench.batch(sequence).records)
        assert bench.append(other) == [damage]
        assert (await bench.read(0, 100, Isolation.READ_UNCOMMITTED)).error is failure
        depths.add(tuple(len(list(traceback.walk_tb(e.__traceback__))) for e in (failure, damage)))
    assert len(depths) == 1
