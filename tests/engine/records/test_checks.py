"""Batches whose check takes long: the loop stays free, and a client's batches keep their order."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.records.support import Bench
from tests.engine.support import at_once, later, results_of
from tests.support.logs import TP, read_records
from tests.support.written import offset_of
from tidemill.engine.api import Durability, PartitionWrite, WriteResult
from tidemill.engine.errors import BrokerBusyError, BrokerStoppingError
from tidemill.engine.records import checks
from tidemill.engine.records.checks import QUICK_COMPRESSED, QUICK_RECORDS, WriteOrder
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import DecompressedTooLargeError, InvalidRecordError
from tidemill.log.format.records import NewRecord, encode_batch

LONG = 4 * QUICK_RECORDS


def batch(count: int, *, codec: int = 0, sequence: int = -1, size: int = 1) -> PartitionWrite:
    records = encode_batch(
        [NewRecord(b"%d" % count, bytes(index % 3 + size)) for index in range(count)],
        timestamp_ms=0,
        codec=codec,
        producer_id=7 if sequence >= 0 else -1,
        producer_epoch=0 if sequence >= 0 else -1,
        base_sequence=sequence,
    )
    return PartitionWrite(*TP, memoryview(records))


async def append(bench: Bench, write: PartitionWrite, order: WriteOrder) -> WriteResult:
    (result,) = await results_of(bench.append(write, order=order))
    return result


async def test_short_batches_are_appended_during_the_call(bench: Bench) -> None:
    for write in (batch(QUICK_RECORDS), batch(5, codec=4)):
        answer = at_once(bench.append(write))
        assert isinstance(answer[0], tuple)


@pytest.mark.parametrize(
    "writes",
    [
        [batch(LONG)],
        [batch(QUICK_RECORDS // 2)] * 3,
        [batch(1, codec=4)] * (QUICK_COMPRESSED + 1),
        [batch(1, codec=1, size=1 << 20)],
    ],
    ids=["many records", "many in several batches", "many batches", "large"],
)
async def test_long_checks_leave_the_loop_to_others(
    writes: list[PartitionWrite], bench: Bench
) -> None:
    copies = [PartitionWrite(*TP, memoryview(bytearray(each.records))) for each in writes]
    answer = later(bench.append(*copies))
    assert bench.log.log_end_offset == 0
    for write in copies:
        write.records[:] = bytes(len(write.records))  # the buffer is used for the next request
    results = await answer
    assert [type(result) for result in results] == [tuple] * len(writes)
    bench.log.flush()
    assert len(read_records(bench.log)) == offset_of(results[-1]) + _count(writes[-1])


def _count(write: PartitionWrite) -> int:
    return int.from_bytes(write.records[57:61], "big")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_batches_of_a_client_keep_their_order(idempotent: bool, bench: Bench) -> None:
    counts = [LONG, 1, 2 * LONG, 3, 2, QUICK_RECORDS + 1, 4]
    order = WriteOrder()
    sequence = 0
    pending = []
    for count in counts:
        write = batch(count, sequence=sequence if idempotent else -1)
        pending.append(asyncio.ensure_future(append(bench, write, order)))
        await asyncio.sleep(0)
        sequence += count
    results = await asyncio.gather(*pending)
    assert [type(result) for result in results] == [tuple] * len(counts)
    assert [offset_of(result) for result in results] == [
        sum(counts[:index]) for index in range(len(counts))
    ]
    assert order.is_free


async def test_another_client_does_not_wait_for_a_long_check(bench: Bench) -> None:
    slow = asyncio.ensure_future(append(bench, batch(LONG), WriteOrder()))
    await asyncio.sleep(0)
    answer = at_once(bench.append(batch(2), order=WriteOrder()))
    assert offset_of(answer[0]) == 0
    assert offset_of(await slow) == 2


async def test_a_refused_batch_lets_the_next_ones_pass(bench: Bench) -> None:
    order = WriteOrder()
    bomb = batch(1, codec=4, size=80 << 20)
    first = asyncio.ensure_future(append(bench, bomb, order))
    second = asyncio.ensure_future(append(bench, batch(2), order))
    assert isinstance(await first, DecompressedTooLargeError)
    assert offset_of(await second) == 0


async def test_configs_that_change_during_a_check_count(bench: Bench) -> None:
    records = encode_batch([NewRecord(None, b"x")] * LONG, timestamp_ms=0)
    write = PartitionWrite(*TP, memoryview(records))
    answer = later(bench.append(write))
    await asyncio.sleep(0)
    bench.log.config = parse_config({"cleanup.policy": "compact"})
    (result,) = await answer
    assert isinstance(result, InvalidRecordError)
    assert len(result.bad_records) == LONG
    assert bench.log.log_end_offset == 0


async def test_a_topic_that_is_deleted_during_a_check_is_reported(bench: Bench) -> None:
    answer = later(bench.append(batch(LONG)))
    bench.store.delete(TP)
    (result,) = await answer
    assert "no partition" in str(result)


async def test_the_bytes_that_wait_for_a_check_are_limited(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    write = batch(LONG)
    monkeypatch.setattr(checks, "MAX_WAITING_BYTES", 2 * len(write.records) + 1)
    waiting = [later(bench.append(write)) for _ in range(2)]
    refused = at_once(bench.append(write))
    assert isinstance(refused[0], BrokerBusyError)
    await asyncio.gather(*waiting)
    assert isinstance(await append(bench, write, WriteOrder()), tuple)


async def test_a_stop_ends_checks_and_refuses_their_batches(bench: Bench) -> None:
    answer = later(bench.appender.append([batch(LONG)], Durability.SYNCED))
    bench.slices.stop()
    (result,) = await answer
    assert isinstance(result, BrokerStoppingError)
    assert bench.log.log_end_offset == 0
