"""Plain records: appended as one batch, and optionally only at an expected offset."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from tests.engine.transactions.support import run, running
from tests.support.faultyfs import FaultyFileSystem
from tidemill.clock import ManualClock
from tidemill.engine.api import (
    AppendedRecords,
    Durability,
    NewRecord,
    NewTopic,
    PartitionRead,
    ReadQuery,
)
from tidemill.engine.engine import Engine
from tidemill.engine.errors import BrokerStoppingError, OffsetConflictError
from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.log.errors import (
    BatchTooLargeError,
    DiskFullError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    StorageError,
)
from tidemill.log.format.records import Record, decode_records
from tidemill.log.names import TopicPartition

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)


def with_topic(test: Callable[[Engine, FaultyFileSystem], Awaitable[None]], **configs: str) -> None:
    async def body() -> None:
        fs = FaultyFileSystem()
        async with running(fs, ManualClock(NOW_MS)) as engine:
            overrides = {name.replace("_", "."): value for name, value in configs.items()}
            (created,) = await engine.topics.create([NewTopic("t", 1, configs=overrides)])
            assert not isinstance(created, TidemillError)
            await test(engine, fs)

    run(body())


def value(text: str) -> list[NewRecord]:
    return [NewRecord(b"k", text.encode())]


async def stored(engine: Engine) -> list[Record]:
    (result,) = await engine.records.read(
        ReadQuery([PartitionRead("t", 0, 0, 1 << 20)], 0, 1, 1 << 20)
    )
    assert result.error is None
    data, found, position = memoryview(result.records), [], 0
    while position < len(data):
        found += decode_records(data, position)
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return found


async def error_of(work: Awaitable[object]) -> TidemillError | None:
    try:
        await work
    except TidemillError as error:
        return error
    return None


def test_records_are_stored_with_key_value_headers_and_timestamp() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        records = [
            NewRecord(b"k", b"v", (("name", b"1"), ("name", None)), NOW_MS - 5),
            NewRecord(None, b"v2"),
            NewRecord(b"k3", None),
        ]
        assert await engine.records.append_records("t", 0, records) == AppendedRecords(0, 2)
        assert await engine.records.append_records("t", 0, value("x")) == AppendedRecords(3, 3)
        assert await stored(engine) == [
            Record(0, NOW_MS - 5, b"k", b"v", (("name", b"1"), ("name", None))),
            Record(1, NOW_MS, None, b"v2"),
            Record(2, NOW_MS, b"k3", None),
            Record(3, NOW_MS, b"k", b"x"),
        ]

    with_topic(test)


def test_the_broker_s_time_is_returned_where_the_topic_uses_it() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        records = [NewRecord(b"k", b"v", timestamp=5)]
        assert await engine.records.append_records("t", 0, records) == AppendedRecords(0, 0, NOW_MS)
        assert [record.timestamp for record in await stored(engine)] == [NOW_MS]

    with_topic(test, message_timestamp_type="LogAppendTime")


def test_the_call_returns_after_the_sync_and_on_request_before() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        log = engine._store.partitions[TP]
        await engine.records.append_records("t", 0, value("a"), durability=Durability.WRITTEN)
        assert (log.log_end_offset, log.high_watermark) == (1, 0)
        await engine.records.append_records("t", 0, value("b"))
        assert (log.log_end_offset, log.high_watermark) == (2, 2)

    with_topic(test)


# --- expected offset -----------------------------------------------------------------------------


def test_records_are_appended_at_the_expected_offset() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        append = engine.records.append_records
        assert await append("t", 0, value("a"), expected_offset=0) == AppendedRecords(0, 0)
        assert await append("t", 0, value("b") * 2, expected_offset=1) == AppendedRecords(1, 2)
        assert await append("t", 0, value("c"), expected_offset=3) == AppendedRecords(3, 3)

    with_topic(test)


@pytest.mark.parametrize("expected", [0, 1, 3, -1])
def test_a_conflict_has_the_end_offset_and_nothing_is_written(expected: int) -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        append = engine.records.append_records
        await append("t", 0, value("a") * 2)
        error = await error_of(append("t", 0, value("b"), expected_offset=expected))
        assert isinstance(error, OffsetConflictError)
        assert (error.expected_offset, error.end_offset) == (expected, 2)
        assert str(error) == f"t-0: expected end offset {expected}, but the log ends at 2"
        assert [record.value for record in await stored(engine)] == [b"a", b"a"]

    with_topic(test)


def test_of_concurrent_writers_with_the_same_expectation_exactly_one_succeeds() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        for offset in range(5):
            outcomes = await asyncio.gather(
                *(
                    engine.records.append_records("t", 0, value(f"{n}"), expected_offset=offset)
                    for n in range(8)
                ),
                return_exceptions=True,
            )
            (winner,) = (n for n, o in enumerate(outcomes) if isinstance(o, AppendedRecords))
            conflicts = [o.end_offset for o in outcomes if isinstance(o, OffsetConflictError)]
            assert conflicts == [offset + 1] * 7
            assert (await stored(engine))[-1].value == str(winner).encode()
        assert len(await stored(engine)) == 5

    with_topic(test)


def test_writers_that_retry_after_a_conflict_lose_no_update() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        async def increment() -> None:
            while True:
                records = await stored(engine)
                total = int(records[-1].value or b"0") + 1 if records else 1
                at = len(records)
                try:
                    await engine.records.append_records(
                        "t", 0, value(str(total)), expected_offset=at
                    )
                except OffsetConflictError:
                    continue
                return

        await asyncio.gather(*(increment() for _ in range(12)))
        assert [int(r.value or b"") for r in await stored(engine)] == list(range(1, 13))

    with_topic(test)


# --- errors --------------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_is_not_written() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        error = await error_of(engine.records.append_records("t", 0, value("x" * 2000)))
        assert isinstance(error, BatchTooLargeError)
        assert await stored(engine) == []

    with_topic(test, max_message_bytes="1000")


def test_a_compacted_topic_needs_keys() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        records = [NewRecord(b"k", b"v"), NewRecord(None, b"v")]
        error = await error_of(engine.records.append_records("t", 0, records))
        assert isinstance(error, InvalidRecordError)
        assert await stored(engine) == []

    with_topic(test, cleanup_policy="compact")


@pytest.mark.parametrize(
    ("topic", "partition", "records", "kind"),
    [
        ("t", 0, [], InvalidRecordError),
        ("t", 0, [NewRecord(b"k", b"v", timestamp=NOW_MS * 2)], InvalidTimestampError),
        ("t", 1, value("x"), UnknownTopicOrPartitionError),
        ("none", 0, value("x"), UnknownTopicOrPartitionError),
        ("__consumer_offsets", 0, value("x"), InvalidTopicError),
    ],
)
def test_invalid_appends_write_nothing(
    topic: str, partition: int, records: list[NewRecord], kind: type[TidemillError]
) -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        assert isinstance(
            await error_of(engine.records.append_records(topic, partition, records)), kind
        )
        assert await stored(engine) == []

    with_topic(test)


def test_an_offline_partition_refuses_with_its_own_error() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        failure = StorageError("damaged")
        engine._store.partitions[TP].go_offline(failure)
        assert await error_of(engine.records.append_records("t", 0, value("x"))) is failure

    with_topic(test)


def test_a_full_disk_is_reported_and_a_retry_succeeds() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        fs.fail("write", errno.ENOSPC, path=f"/{TP}/")
        error = await error_of(engine.records.append_records("t", 0, value("x"), expected_offset=0))
        assert isinstance(error, DiskFullError)
        again = await engine.records.append_records("t", 0, value("x"), expected_offset=0)
        assert again == AppendedRecords(0, 0)

    with_topic(test)


def test_a_failed_sync_fails_the_call() -> None:
    async def test(engine: Engine, fs: FaultyFileSystem) -> None:
        fs.fail("sync", path=f"/{TP}/", times=-1)
        assert isinstance(
            await error_of(engine.records.append_records("t", 0, value("x"))), StorageError
        )
        assert engine.failed.done()

    with_topic(test)


def test_a_stopped_engine_appends_nothing() -> None:
    async def body() -> None:
        async with running(FaultyFileSystem()) as engine:
            await engine.topics.create([NewTopic("t", 1)])
        error = await error_of(engine.records.append_records("t", 0, value("x")))
        assert isinstance(error, BrokerStoppingError)

    run(body())
