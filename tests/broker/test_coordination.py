"""Groups over their journal: what is answered when, with a disk whose pace the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_store
from tidemill.broker.api import CommitRequest, CommittedOffset, JoinRequest, OffsetToCommit
from tidemill.broker.coordination import GroupCoordination
from tidemill.broker.flusher import Flusher
from tidemill.broker.journal import Journal
from tidemill.clock import ManualClock
from tidemill.errors import BrokerStoppingError, StorageError
from tidemill.log.config import LogConfig
from tidemill.log.names import TopicPartition
from tidemill.log.partition import PartitionLog
from tidemill.settings import Groups

Done = Callable[[Exception | None], None]


class SlowDisk:
    """Stands for the flusher: nothing is durable before ``sync``."""

    def __init__(self) -> None:
        self.waiting: list[Done] = []

    def written(self, log: PartitionLog) -> None:
        pass

    def call_when_durable(self, log: PartitionLog, offset: int, done: Done) -> None:
        self.waiting.append(done)

    def sync(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(error)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = SlowDisk()
        store = open_store("/data", self.clock, FaultyFileSystem())
        config = LogConfig.parse({"cleanup.policy": "compact", "segment.bytes": "1048576"})
        log = store.create(TopicPartition("__consumer_offsets", 0), config, UUID(int=1))
        self.journal = Journal(log, cast(Flusher, self.disk), self.clock)
        self.groups = self.coordination()

    def coordination(self) -> GroupCoordination:
        groups = GroupCoordination(self.journal, Groups(), self.clock)
        groups.recover()
        return groups

    def commit(self, *topics: str) -> asyncio.Task[Any]:
        offsets = tuple(OffsetToCommit(topic, 0, 5, -1, "") for topic in topics)
        return asyncio.ensure_future(self.groups.commit(CommitRequest("g", -1, "", None, offsets)))

    def seen(self, group_id: str = "g") -> dict[tuple[str, int], int]:
        found = self.groups.fetch(group_id, None)
        return {at: each.offset for at, each in found.items() if isinstance(each, CommittedOffset)}


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await asyncio.wait_for(test(Bench()), 20)

    asyncio.run(body())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_commit_is_neither_answered_nor_seen_before_it_is_durable() -> None:
    async def test(bench: Bench) -> None:
        commit = bench.commit("t")
        await turns()
        assert not commit.done()
        assert bench.groups.fetch("g", None) == {}
        bench.disk.sync()
        assert await commit == [None]
        assert bench.seen() == {("t", 0): 5}

    run(test)


def test_a_commit_on_its_way_to_the_disk_does_not_outlive_its_topic() -> None:
    async def test(bench: Bench) -> None:
        commit = bench.commit("t")
        await turns()
        forgotten = asyncio.ensure_future(bench.groups.forget_topics(["t"]))
        while not forgotten.done():
            await turns()
            bench.disk.sync()
        assert await commit == [None]
        assert bench.groups.fetch("g", None) == {}

    run(test)


def test_more_offsets_than_fit_one_batch_are_committed_and_forgotten() -> None:
    async def test(bench: Bench) -> None:
        topics = [f"{number:05}" + "x" * 200 for number in range(6000)]
        commit = bench.commit(*topics)
        await turns()
        bench.disk.sync()
        assert await commit == [None] * len(topics)
        assert bench.coordination().fetch("g", None).keys() == {(topic, 0) for topic in topics}
        forgotten = asyncio.ensure_future(bench.groups.forget_topics(topics))
        while not forgotten.done():
            await turns()
            bench.disk.sync()
        await forgotten
        assert bench.coordination().fetch("g", None) == {}

    run(test)


def test_after_a_stop_nothing_is_written_any_more() -> None:
    async def test(bench: Bench) -> None:
        protocols = (("range", b""),)
        request = JoinRequest("m", "", None, "c", "h", 10_000, 10_000, "consumer", protocols, False)
        join = asyncio.ensure_future(bench.groups.join(request))
        commit = bench.commit("t")
        await turns()
        bench.groups.stop(BrokerStoppingError("stopping"))
        answers = await asyncio.gather(join, commit, return_exceptions=True)
        assert [type(answer) for answer in answers] == [BrokerStoppingError] * 2
        bench.disk.sync(StorageError("the disk is gone"))
        assert bench.groups._timer is None
        end = bench.journal.log.log_end_offset
        with pytest.raises(BrokerStoppingError):
            await bench.commit("t")
        assert bench.journal.log.log_end_offset == end

    run(test)
