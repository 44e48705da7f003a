"""The door in one process: what it promises about records, topics and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tidemill.broker.api import (
    EARLIEST,
    LATEST,
    Acks,
    CommitRequest,
    CommittedOffset,
    FetchQuery,
    Isolation,
    NewTopic,
    OffsetToCommit,
    PartitionRead,
    PartitionWrite,
    ReadResult,
    TopicInfo,
    WriteResult,
)
from tidemill.broker.broker import Broker
from tidemill.errors import (
    BrokerStoppingError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from tidemill.log.batch import iter_headers
from tidemill.log.files import FileSystem
from tidemill.log.records import NewRecord, decode_records, encode_batch
from tidemill.settings import Log, Settings

NOW = 1_700_000_000_000


@contextlib.asynccontextmanager
async def running(
    folder: Path, fs: FileSystem | None = None, **overrides: object
) -> AsyncIterator[Broker]:
    settings = Settings.model_validate({"data_dir": folder, **overrides})
    broker = Broker(settings, fs=fs)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 30)

    asyncio.run(bounded())


def write(topic: str, *values: bytes, partition: int = 0) -> PartitionWrite:
    batch = encode_batch([NewRecord(b"k", value) for value in values], timestamp_ms=NOW)
    return PartitionWrite(topic, partition, memoryview(batch))


async def produce(broker: Broker, *writes: PartitionWrite) -> list[WriteResult]:
    answer = broker.produce(list(writes), Acks.DURABLE)
    return answer if isinstance(answer, list) else await answer


def query(*parts: tuple[str, int, int], wait_ms: int = 0, min_bytes: int = 1) -> FetchQuery:
    reads = [PartitionRead(topic, number, offset, 1 << 20) for topic, number, offset in parts]
    return FetchQuery(reads, wait_ms, min_bytes, 1 << 20)


def values(result: ReadResult) -> list[bytes | None]:
    data = memoryview(result.records)
    return [
        None if record.value is None else bytes(record.value)
        for position, header in iter_headers(data)
        for record in decode_records(data[position : position + header.size])
    ]


def test_what_is_acknowledged_is_readable(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            (result,) = await produce(broker, write("t", b"a", b"b"))
            assert (result.base_offset, result.error) == (0, None)
            (read,) = await broker.fetch(query(("t", 0, 0)))
            assert values(read) == [b"a", b"b"]
            assert (read.high_watermark, read.log_start_offset) == (2, 0)

    run(test)


def test_records_survive_a_clean_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.create_topics([NewTopic("t", 3)])
            await produce(broker, write("t", b"a", partition=2))
            cluster = broker.cluster_id
        async with running(tmp_path) as broker:
            assert broker.cluster_id == cluster
            assert broker.topic("t").partitions == 3
            (read,) = await broker.fetch(query(("t", 2, 0)))
            assert values(read) == [b"a"]

    run(test)


def test_a_long_poll_is_woken_by_an_append(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            poll = asyncio.ensure_future(broker.fetch(query(("t", 0, 0), wait_ms=20_000)))
            await asyncio.sleep(0)
            assert not poll.done()
            # acks=1 does not wait for the disk, but the reader that waits makes it hurry.
            broker.produce([write("t", b"x")], Acks.WRITTEN)
            (read,) = await poll
            assert values(read) == [b"x"]

    run(test)


def test_a_long_poll_waits_for_min_bytes(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            poll = asyncio.ensure_future(
                broker.fetch(query(("t", 0, 0), wait_ms=20_000, min_bytes=300))
            )
            await produce(broker, write("t", b"x" * 100))
            await asyncio.sleep(0)
            assert not poll.done()
            await produce(broker, write("t", b"y" * 200))
            (read,) = await poll
            assert [len(v or b"") for v in values(read)] == [100, 200]

    run(test)


def test_an_unanswered_long_poll_ends_at_its_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            (read,) = await broker.fetch(query(("t", 0, 0), wait_ms=30))
            assert (bytes(read.records), read.error) == (b"", None)

    run(test)


def test_an_error_in_one_partition_answers_at_once_and_spares_the_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            await produce(broker, write("t", b"a"))
            reads = await broker.fetch(
                query(("t", 0, 0), ("none", 0, 0), ("t", 0, 99), wait_ms=20_000, min_bytes=10_000)
            )
            assert values(reads[0]) == [b"a"]
            assert isinstance(reads[1].error, UnknownTopicOrPartitionError)
            assert isinstance(reads[2].error, OffsetOutOfRangeError)

    run(test)


def test_the_first_batch_is_given_even_if_it_is_larger_than_the_limit(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.create_topics([NewTopic("t", 2)])
            await produce(broker, write("t", b"x" * 5000), write("t", b"y" * 5000, partition=1))
            asked = query(("t", 0, 0), ("t", 1, 0))
            asked.max_bytes = 100
            first, second = await broker.fetch(asked)
            assert [len(v or b"") for v in values(first)] == [5000]
            assert bytes(second.records) == b""

    run(test)


def test_latest_sees_what_was_just_written_without_a_sync(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            broker.produce([write("t", b"a", b"b")], Acks.WRITTEN)
            latest = await broker.list_offset("t", 0, LATEST, Isolation.READ_UNCOMMITTED)
            assert latest.offset == 2

    run(test)


def test_records_below_a_deleted_prefix_are_out_of_range(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            await produce(broker, write("t", b"a", b"b", b"c"))
            assert await broker.delete_records("t", 0, 2) == 2
            with pytest.raises(OffsetOutOfRangeError):
                await broker.delete_records("t", 0, 4)
        async with running(tmp_path) as broker:
            earliest = await broker.list_offset("t", 0, EARLIEST, Isolation.READ_UNCOMMITTED)
            assert earliest.offset == 2
            (read,) = await broker.fetch(query(("t", 0, 1)))
            assert isinstance(read.error, OffsetOutOfRangeError)

    run(test)


def test_clients_can_not_write_to_internal_topics(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            (result,) = await produce(broker, write("__consumer_offsets", b"x"))
            assert isinstance(result.error, InvalidTopicError)

    run(test)


def test_two_creations_at_once_make_one_topic(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            first, second = await asyncio.gather(
                broker.create_topics([NewTopic("t", 2)]), broker.create_topics([NewTopic("t", 5)])
            )
            errors = [r for r in (*first, *second) if isinstance(r, TopicExistsError)]
            assert len(errors) == 1

    run(test)


def test_nobody_writes_to_a_topic_before_the_catalog_knows_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            creation = asyncio.ensure_future(broker.create_topics([NewTopic("t", 2)]))
            while not (tmp_path / "t-1").exists():
                await asyncio.sleep(0)
            assert not creation.done()
            (early,) = await produce(broker, write("t", b"early"))
            assert isinstance(early.error, UnknownTopicOrPartitionError)
            await creation
            (result,) = await produce(broker, write("t", b"a"))
            assert (result.base_offset, result.error) == (0, None)

    run(test)


def test_a_deleted_topic_is_gone_and_wakes_its_readers(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            await produce(broker, write("t", b"a"))
            offsets = (OffsetToCommit("t", 0, 1),)
            await broker.commit_offsets(CommitRequest("g", -1, "", None, offsets))
            poll = asyncio.ensure_future(broker.fetch(query(("t", 0, 1), wait_ms=20_000)))
            await asyncio.sleep(0)
            assert await broker.delete_topics(["t", "none"]) != [None, None]
            (read,) = await poll
            assert isinstance(read.error, UnknownTopicOrPartitionError)
            assert broker.fetch_offsets("g", None) == {}
            await broker.ensure_topic("t")
            (read,) = await broker.fetch(query(("t", 0, 0)))
            assert read.high_watermark == 0

    run(test)


def test_a_missing_folder_takes_the_partition_offline_and_no_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.create_topics([NewTopic("t", 2)])
            await produce(broker, write("t", b"a"), write("t", b"b", partition=1))
        shutil.rmtree(tmp_path / "t-0")
        async with running(tmp_path) as broker:
            lost, kept = await broker.fetch(query(("t", 0, 0), ("t", 1, 0)))
            assert isinstance(lost.error, StorageError)
            assert "t-0" in str(lost.error)
            assert values(kept) == [b"b"]
            assert (await produce(broker, write("t", b"c")))[0].error is not None
            assert await broker.delete_topics(["t"]) == [None]

    run(test)


def test_a_folder_that_no_topic_owns_is_set_aside_with_its_records(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path / "a") as broker:
            await broker.ensure_topic("foreign")
            await produce(broker, write("foreign", b"x"))
        async with running(tmp_path / "b") as broker:
            await broker.ensure_topic("own")
        shutil.copytree(tmp_path / "a" / "foreign-0", tmp_path / "b" / "foreign-0")
        async with running(tmp_path / "b") as broker:
            with pytest.raises(UnknownTopicOrPartitionError):
                broker.topic("foreign")
        (aside,) = (tmp_path / "b").glob("foreign-0*-stray")
        assert (aside / "00000000000000000000.log").stat().st_size > 0

    run(test)


def test_committed_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            offsets = (OffsetToCommit("t", 0, 7, metadata="note"),)
            assert await broker.commit_offsets(CommitRequest("g", -1, "", None, offsets)) == [None]
        async with running(tmp_path) as broker:
            (committed,) = broker.fetch_offsets("g", None).values()
            assert isinstance(committed, CommittedOffset)
            assert (committed.offset, committed.metadata) == (7, "note")

    run(test)


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    async def test() -> None:
        seen: list[int] = []
        for _ in range(3):
            async with running(tmp_path) as broker:
                seen += [(await broker.init_producer_id(None))[0] for _ in range(3)]
        assert len(set(seen)) == 9

    run(test)


def test_stopping_ends_long_polls_with_what_there_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path) as broker:
            await broker.ensure_topic("t")
            poll = asyncio.ensure_future(broker.fetch(query(("t", 0, 0), wait_ms=20_000)))
            await asyncio.sleep(0)
        (read,) = await poll
        assert bytes(read.records) == b""
        (result,) = await produce(broker, write("t", b"a"))
        assert isinstance(result.error, BrokerStoppingError)

    run(test)


def test_retention_runs_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        log = Log(retention_check_ms=100)
        async with running(tmp_path, log=log) as broker:
            configs = {"retention.ms": "1000", "segment.bytes": "1048576"}
            (topic,) = await broker.create_topics([NewTopic("t", 1, configs=configs)])
            assert isinstance(topic, TopicInfo)
            for _ in range(4):
                await produce(broker, write("t", b"x" * 700_000))
            while True:
                start = await broker.list_offset("t", 0, EARLIEST, Isolation.READ_UNCOMMITTED)
                if start.offset >= 3:
                    break
                await asyncio.sleep(0.02)

    run(test)


def test_compaction_runs_by_itself(tmp_path: Path) -> None:
    async def test() -> None:
        log = Log(cleaner_backoff_ms=100)
        async with running(tmp_path, log=log) as broker:
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": "1048576",
                "min.cleanable.dirty.ratio": "0.01",
            }
            (topic,) = await broker.create_topics([NewTopic("t", 1, configs=configs)])
            assert isinstance(topic, TopicInfo)
            for i in range(6):
                await produce(broker, write("t", b"%d" % i + b"x" * 700_000))
            while True:
                (read,) = await broker.fetch(query(("t", 0, 0)))
                left = [v[:1] for v in values(read) if v is not None]
                if left == [b"4"]:  # the latest of the closed segments
                    break
                await asyncio.sleep(0.02)
            (read,) = await broker.fetch(query(("t", 0, 5)))
            assert [v[:1] for v in values(read) if v is not None] == [b"5"]

    run(test)


def test_flush_messages_asks_for_a_sync_before_the_interval_does(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(tmp_path, log=Log(sync_interval_ms=3_600_000)) as broker:
            await broker.create_topics([NewTopic("t", 1, configs={"flush.messages": "3"})])
            broker.produce([write("t", b"a", b"b")], Acks.WRITTEN)
            for _ in range(20):
                await asyncio.sleep(0.001)
            (read,) = await broker.fetch(query(("t", 0, 0), min_bytes=0))
            assert read.high_watermark == 0
            broker.produce([write("t", b"c")], Acks.WRITTEN)
            while read.high_watermark < 3:
                await asyncio.sleep(0.001)
                (read,) = await broker.fetch(query(("t", 0, 0), min_bytes=0))

    run(test)


def test_a_failed_sync_ends_the_broker_whoever_asked_for_it() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(Path("/data"), fs=fs) as broker:
            fs.fail("sync", times=-1)
            (created,) = await broker.create_topics([NewTopic("t", 1)])
            assert isinstance(created, StorageError)
            assert isinstance(await broker.failed, StorageError)
            assert created is not None

    run(test)


def test_the_folders_of_a_large_topic_share_one_sync() -> None:
    async def test() -> None:
        fs = FaultyFileSystem()
        async with running(Path("/data"), fs=fs) as broker:
            before = fs.syncs
            await broker.create_topics([NewTopic("t", 500)])
            assert fs.syncs - before < 500

    run(test)


def test_a_large_topic_comes_and_goes_without_holding_up_the_others(tmp_path: Path) -> None:
    async def longest_step(broker: Broker, work: Awaitable[object]) -> int:
        """Most folders that come or go in one turn of the loop."""
        task = asyncio.ensure_future(work)
        longest, before = 0, len(broker.log_dirs(None).partitions)
        while not task.done():
            await asyncio.sleep(0)
            now = len(broker.log_dirs(None).partitions)
            longest, before = max(longest, abs(now - before)), now
        return longest

    async def test() -> None:
        async with running(tmp_path) as broker:
            created = broker.create_topics([NewTopic("t", 100)])
            assert 0 < await longest_step(broker, created) <= 16
            assert 0 < await longest_step(broker, broker.delete_topics(["t"])) <= 16

    run(test)
