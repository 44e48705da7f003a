"""The door in one process: what it promises about records, topics and restarts."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable
from functools import partial
from pathlib import Path

import pytest

from tests.engine.support import offset_at, produce, query, running, values, write
from tests.support.faultyfs import FaultyFileSystem
from tests.support.written import offset_of
from tidemill import system
from tidemill.engine.api import (
    CommitRequest,
    Durability,
    InitProducer,
    NewTopic,
    OffsetToCommit,
    Position,
)
from tidemill.engine.engine import Engine
from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import TidemillError, TopicExistsError, UnknownTopicOrPartitionError
from tidemill.log.errors import (
    DataDirLostError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    StorageError,
)
from tidemill.settings import Log
from tidemill.state.internal_topics import CATALOG_TOPIC, SECURITY_TOPIC

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


@pytest.fixture
def engine(real_engine: Engine) -> Engine:
    return real_engine


async def test_acknowledged_records_are_readable(engine: Engine) -> None:
    await engine.topics.ensure("t")
    (result,) = await produce(engine, write("t", b"a", b"b"))
    assert offset_of(result) == 0
    (read,) = await engine.records.read(query(("t", 0, 0)))
    assert values(read) == [b"a", b"b"]
    assert (read.high_watermark, read.log_start_offset) == (2, 0)


async def test_a_long_poll_is_woken_by_an_append(engine: Engine) -> None:
    await engine.topics.ensure("t")
    poll = asyncio.ensure_future(engine.records.read(query(("t", 0, 0), wait_ms=20_000)))
    await asyncio.sleep(0)
    assert not poll.done()
    # acks=1 does not wait for the disk, but the reader that waits makes it hurry.
    engine.records.append([write("t", b"x")], Durability.WRITTEN)
    (read,) = await poll
    assert values(read) == [b"x"]


async def test_a_long_poll_waits_for_min_bytes(engine: Engine) -> None:
    await engine.topics.ensure("t")
    asked = query(("t", 0, 0), wait_ms=20_000, min_bytes=300)
    poll = asyncio.ensure_future(engine.records.read(asked))
    await produce(engine, write("t", b"x" * 100))
    await asyncio.sleep(0)
    assert not poll.done()
    await produce(engine, write("t", b"y" * 200))
    (read,) = await poll
    assert [len(value) for value in values(read)] == [100, 200]


async def test_an_unanswered_long_poll_ends_at_its_deadline(engine: Engine) -> None:
    await engine.topics.ensure("t")
    (read,) = await engine.records.read(query(("t", 0, 0), wait_ms=30))
    assert (bytes(read.records), read.error) == (b"", None)


async def test_an_error_in_one_partition_ends_the_wait_and_does_not_affect_the_others(
    engine: Engine,
) -> None:
    await engine.topics.ensure("t")
    await produce(engine, write("t", b"a"))
    reads = await engine.records.read(
        query(("t", 0, 0), ("none", 0, 0), ("t", 0, 99), wait_ms=20_000, min_bytes=10_000)
    )
    assert values(reads[0]) == [b"a"]
    assert isinstance(reads[1].error, UnknownTopicOrPartitionError)
    assert isinstance(reads[2].error, OffsetOutOfRangeError)


async def test_the_first_batch_is_given_even_if_it_is_larger_than_the_limit(engine: Engine) -> None:
    await engine.topics.create([NewTopic("t", 2)])
    await produce(engine, write("t", b"x" * 5000), write("t", b"y" * 5000, partition=1))
    asked = query(("t", 0, 0), ("t", 1, 0))
    asked.max_bytes = 100
    first, second = await engine.records.read(asked)
    assert [len(value) for value in values(first)] == [5000]
    assert bytes(second.records) == b""


async def test_latest_includes_records_that_were_not_synced(engine: Engine) -> None:
    await engine.topics.ensure("t")
    engine.records.append([write("t", b"a", b"b")], Durability.WRITTEN)
    latest_now = partial(engine.records.find_now, "t", [(0, Position.LATEST, None)])
    assert latest_now() == [None]
    latest = await engine.records.find_offset("t", 0, Position.LATEST)
    assert latest is not None
    assert latest.offset == 2
    assert latest_now() == [(2, latest.leader_epoch)]


async def test_offsets_that_are_known_without_a_wait_are_those_that_a_wait_finds(
    engine: Engine,
) -> None:
    await engine.inner_door().topics.create([NewTopic("t", 2)])
    await produce(engine, write("t", b"a", b"b", b"c"))
    await engine.records.delete_before("t", 0, 2)
    wanted: list[tuple[int, Position | int, int | None]] = [
        (0, Position.EARLIEST, None),
        (0, Position.LATEST, 0),
        (1, Position.LATEST, None),
    ]
    others: list[tuple[int, Position | int, int | None]] = [
        (0, Position.LATEST, 1),
        (0, Position.MAX_TIMESTAMP, None),
        (0, 0, None),
        (2, Position.LATEST, None),
        (-1, Position.EARLIEST, None),
    ]
    found = engine.records.find_now("t", wanted + others)
    assert found == [(2, 0), (3, 0), (0, 0), *[None] * 5]
    for (partition, at, epoch), known in zip(wanted, found[:3], strict=True):
        waited = await engine.records.find_offset("t", partition, at, leader_epoch=epoch)
        assert waited is not None
        assert (waited.offset, waited.leader_epoch) == known
    assert engine.records.find_now("missing", wanted) == [None] * 3


async def test_offsets_of_a_private_topic_are_not_known(engine: Engine) -> None:
    for topic, found in ((SECURITY_TOPIC, None), (CATALOG_TOPIC, (0, 0))):
        assert engine.records.find_now(topic, [(0, Position.EARLIEST, None)]) == [found]


async def test_records_below_a_deleted_prefix_are_out_of_range(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        await engine.topics.ensure("t")
        await produce(engine, write("t", b"a", b"b", b"c"))
        assert await engine.records.delete_before("t", 0, 2) == 2
        with pytest.raises(OffsetOutOfRangeError):
            await engine.records.delete_before("t", 0, 4)
    async with running(tmp_path) as engine:
        assert await offset_at(engine, Position.EARLIEST) == 2
        (read,) = await engine.records.read(query(("t", 0, 1)))
        assert isinstance(read.error, OffsetOutOfRangeError)


async def test_clients_can_not_write_to_internal_topics(engine: Engine) -> None:
    results = await produce(engine, write(OFFSETS, b"x"), write(TRANSACTIONS, b"x"))
    assert [type(result) for result in results] == [InvalidTopicError] * 2


async def test_two_concurrent_creations_make_one_topic(engine: Engine) -> None:
    first, second = await asyncio.gather(
        engine.topics.create([NewTopic("t", 2)]), engine.topics.create([NewTopic("t", 5)])
    )
    errors = [r for r in (*first, *second) if isinstance(r, TopicExistsError)]
    assert len(errors) == 1


async def test_a_topic_is_not_writable_before_it_is_in_the_catalog(
    tmp_path: Path, engine: Engine
) -> None:
    creation = asyncio.ensure_future(engine.topics.create([NewTopic("t", 2)]))
    while not (tmp_path / "t-1").exists():
        await asyncio.sleep(0)
    assert not creation.done()
    (early,) = await produce(engine, write("t", b"early"))
    assert isinstance(early, UnknownTopicOrPartitionError)
    await creation
    (result,) = await produce(engine, write("t", b"a"))
    assert offset_of(result) == 0


async def test_a_deleted_topic_is_gone_and_wakes_its_readers(engine: Engine) -> None:
    await engine.topics.ensure("t")
    await produce(engine, write("t", b"a"))
    offsets = (OffsetToCommit("t", 0, 1),)
    await engine.groups.commit(CommitRequest("g", -1, "", None, offsets))
    poll = asyncio.ensure_future(engine.records.read(query(("t", 0, 1), wait_ms=20_000)))
    await asyncio.sleep(0)
    assert await engine.topics.delete(["t", "none"]) != [None, None]
    (read,) = await poll
    assert isinstance(read.error, UnknownTopicOrPartitionError)
    assert engine.groups.committed("g", None) == {}
    await engine.topics.ensure("t")
    (read,) = await engine.records.read(query(("t", 0, 0)))
    assert read.high_watermark == 0


async def test_a_missing_folder_takes_the_partition_offline_and_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        await engine.topics.create([NewTopic("t", 2)])
        await produce(engine, write("t", b"a"), write("t", b"b", partition=1))
    shutil.rmtree(tmp_path / "t-0")
    async with running(tmp_path) as engine:
        lost, kept = await engine.records.read(query(("t", 0, 0), ("t", 1, 0)))
        assert isinstance(lost.error, StorageError)
        assert "t-0" in str(lost.error)
        assert values(kept) == [b"b"]
        assert isinstance((await produce(engine, write("t", b"c")))[0], TidemillError)
        assert await engine.topics.delete(["t"]) == [None]


async def test_a_folder_that_no_topic_owns_is_set_aside_with_its_records(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as engine:
        await engine.topics.ensure("foreign")
        await produce(engine, write("foreign", b"x"))
    async with running(tmp_path / "b") as engine:
        await engine.topics.ensure("own")
    shutil.copytree(tmp_path / "a" / "foreign-0", tmp_path / "b" / "foreign-0")
    async with running(tmp_path / "b") as engine:
        with pytest.raises(UnknownTopicOrPartitionError):
            engine.topics.get("foreign")
    (aside,) = (tmp_path / "b").glob("foreign-0*-stray")
    assert (aside / "00000000000000000000.log").stat().st_size > 0


async def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        async with running(tmp_path) as engine:
            seen += [(await engine.transactions.new_producer())[0] for _ in range(3)]
    assert len(set(seen)) == 9


async def test_stopping_ends_long_polls(engine: Engine) -> None:
    await engine.topics.ensure("t")
    poll = asyncio.ensure_future(engine.records.read(query(("t", 0, 0), wait_ms=20_000)))
    await asyncio.sleep(0)
    await engine.stop()
    (read,) = await poll
    assert bytes(read.records) == b""
    (result,) = await produce(engine, write("t", b"a"))
    assert isinstance(result, BrokerStoppingError)


async def test_retention_runs_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, log=Log(retention_check_ms=100)) as engine:
        configs = {"retention.ms": "1000", "segment.bytes": "1048576"}
        await engine.topics.create([NewTopic("t", 1, configs=configs)])
        for _ in range(4):
            await produce(engine, write("t", b"x" * 700_000))
        while await offset_at(engine, Position.EARLIEST) < 3:
            await asyncio.sleep(0.02)


async def test_compaction_runs_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, log=Log(cleaner_backoff_ms=100)) as engine:
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.01",
        }
        await engine.topics.create([NewTopic("t", 1, configs=configs)])
        for i in range(6):
            await produce(engine, write("t", b"%d" % i + b"x" * 700_000))
        left: list[bytes] = []
        while left != [b"4"]:  # the latest of the closed segments
            await asyncio.sleep(0.02)
            (read,) = await engine.records.read(query(("t", 0, 0)))
            left = [value[:1] for value in values(read)]
        (read,) = await engine.records.read(query(("t", 0, 5)))
        assert [value[:1] for value in values(read)] == [b"5"]


async def test_flush_messages_asks_for_a_sync_before_the_interval_does(tmp_path: Path) -> None:
    async with running(tmp_path, log=Log(sync_interval_ms=3_600_000)) as engine:
        await engine.topics.create([NewTopic("t", 1, configs={"flush.messages": "3"})])
        engine.records.append([write("t", b"a", b"b")], Durability.WRITTEN)
        for _ in range(20):
            await asyncio.sleep(0.001)
        (read,) = await engine.records.read(query(("t", 0, 0), min_bytes=0))
        assert read.high_watermark == 0
        engine.records.append([write("t", b"c")], Durability.WRITTEN)
        while read.high_watermark < 3:
            await asyncio.sleep(0.001)
            (read,) = await engine.records.read(query(("t", 0, 0), min_bytes=0))


async def test_a_failed_sync_fails_the_engine_for_any_caller(fs: FaultyFileSystem) -> None:
    async with running(fs=fs) as engine:
        fs.fail("sync", times=-1)
        (created,) = await engine.topics.create([NewTopic("t", 1)])
        assert isinstance(created, StorageError)
        assert isinstance(await engine.failed, StorageError)


async def test_no_record_is_acknowledged_once_the_data_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.housekeeping.FOLDER_CHECK_MS", 10)
    folder = tmp_path / "data"
    async with running(folder) as engine:
        await engine.topics.create([NewTopic("t", 1)])
        folder.rename(tmp_path / "gone")  # a thread may write a file just now
        failure = await asyncio.wait_for(asyncio.shield(engine.failed), 10)
        assert isinstance(failure, DataDirLostError)
        (refused,) = await produce(engine, write("t", b"lost"))
        assert isinstance(refused, DataDirLostError)


async def test_the_folders_of_a_large_topic_share_one_sync(fs: FaultyFileSystem) -> None:
    async with running(fs=fs) as engine:
        before = fs.syncs
        await engine.topics.create([NewTopic("t", 500)])
        assert fs.syncs - before < 500


async def test_creating_and_deleting_a_large_topic_lets_other_tasks_run(engine: Engine) -> None:
    async def longest_step(engine: Engine, work: Awaitable[object]) -> int:
        """Most folders that come or go in one turn of the loop."""
        task = asyncio.ensure_future(work)
        longest, before = 0, len(list(engine.storage.usage(None).partitions))
        while not task.done():
            await asyncio.sleep(0)
            now = len(list(engine.storage.usage(None).partitions))
            longest, before = max(longest, abs(now - before)), now
        return longest

    created = engine.topics.create([NewTopic("t", 100)])
    assert 0 < await longest_step(engine, created) <= 16
    assert 0 < await longest_step(engine, engine.topics.delete(["t"])) <= 16


def listed(engine: Engine) -> list[str]:
    return [topic.name for topic in engine.topics.all()]


async def test_internal_topics_are_listed_from_their_first_use_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as engine:
        assert listed(engine) == []
        for name in (OFFSETS, TRANSACTIONS):
            assert engine.topics.get(name).internal
            assert engine.configs.of_topic(name)
        await engine.topics.ensure("t")
        assert listed(engine) == ["t"]
        offset = OffsetToCommit("t", 0, 0)
        assert await engine.groups.commit(CommitRequest("g", -1, "", None, (offset,))) == [None]
        assert listed(engine) == [OFFSETS, "t"]
        await engine.transactions.init(InitProducer("id", 60_000))
        assert listed(engine) == [OFFSETS, TRANSACTIONS, "t"]
    async with running(tmp_path) as engine:
        assert listed(engine) == [OFFSETS, TRANSACTIONS, "t"]


LIMIT, PARTITIONS = 16, 64


async def test_files_are_synced_by_another_thread_before_they_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    datasync = system.datasync

    def watched(fd: int) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        datasync(fd)

    limits, log = {"open_files": LIMIT}, {"sync_interval_ms": 60_000}
    async with running(tmp_path, limits=limits, log=log) as engine:
        await engine.topics.create([NewTopic("t", PARTITIONS)])
        pool = engine._store.environment.pool
        monkeypatch.setattr(system, "datasync", watched)
        async with asyncio.timeout(300):
            for turn in range(4 * PARTITIONS):
                engine.records.append(
                    [write("t", b"v", partition=turn % PARTITIONS)], Durability.WRITTEN
                )
                while engine._relief is not None and not engine._relief.done():
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert len(pool) <= LIMIT + LIMIT // 4
        assert threads
        assert not any(threads)
        monkeypatch.undo()
