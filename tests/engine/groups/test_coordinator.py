"""Groups over their journal: what is answered when, with a disk whose pace the test decides."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from tests.engine.support import HeldDisk
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_store
from tidemill.clock import ManualClock
from tidemill.engine.api import CommitRequest, CommittedOffset, JoinRequest, OffsetToCommit
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.flusher import Flusher
from tidemill.engine.groups.assembly import group_configs
from tidemill.engine.groups.coordinator import GroupCoordinator
from tidemill.engine.state_log import StateLog
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import DiskFullError, InvalidProducerEpochError, StorageError
from tidemill.log.format.markers import Marker
from tidemill.log.names import TopicPartition
from tidemill.settings import Groups
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.errors import CoordinatorNotAvailableError, UnstableOffsetCommitError
from tidemill.state.types import ProducerIdentity, TxnOffsetCommit

PRODUCER = ProducerIdentity(7, 0)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = HeldDisk()
        self.fs = FaultyFileSystem()
        store = open_store("/data", self.clock, self.fs)
        config = parse_config({"cleanup.policy": "compact", "segment.bytes": "1048576"})
        log = store.create(TopicPartition("__consumer_offsets", 0), config, UUID(int=1))
        self.journal = StateLog(log, cast(Flusher, self.disk), self.clock)
        self.groups = self.coordination()

    def coordination(self) -> GroupCoordinator:
        configs = group_configs(Groups())
        groups = GroupCoordinator(self.journal, Groups(), self.clock, Catalog(), configs)
        groups.recover()
        return groups

    def commit(self, *topics: str, offset: int = 5) -> asyncio.Task[Any]:
        request = _commit_of(topics, offset)
        return asyncio.ensure_future(self.groups.commit(request))

    def commit_in_transaction(
        self, *topics: str, offset: int = 6, epoch: int = 0
    ) -> asyncio.Task[Any]:
        producer = PRODUCER._replace(epoch=epoch)
        request = TxnOffsetCommit("tx", producer, _commit_of(topics, offset))
        return asyncio.ensure_future(self.groups.commit_in_transaction(request))

    def end(self, *, commit: bool, epoch: int = 0) -> asyncio.Task[None]:
        marker = Marker(PRODUCER.producer_id, epoch, commit)
        return asyncio.ensure_future(self.groups.write_marker(marker))

    async def synced(self, *work: Awaitable[Any]) -> list[Any]:
        """Sync until all work is done; return its results."""
        tasks = [asyncio.ensure_future(each) for each in work]
        while not all(task.done() for task in tasks):
            await turns()
            self.disk.sync()
        return [task.result() for task in tasks]

    def unstable(self, *topics: str) -> set[str]:
        found = self.groups.fetch("g", [(topic, 0) for topic in topics], require_stable=True)
        return {at[0] for at, each in found.items() if isinstance(each, UnstableOffsetCommitError)}

    def seen(self) -> dict[tuple[str, int], int]:
        """Return the offsets of group ``g``."""
        found = self.groups.fetch("g", None)
        return {at: each.offset for at, each in found.items() if isinstance(each, CommittedOffset)}

    def seen_after_a_restart(self) -> dict[tuple[str, int], int]:
        self.groups = self.coordination()
        return self.seen()


def _commit_of(topics: Sequence[str], offset: int) -> CommitRequest:
    offsets = tuple(OffsetToCommit(topic, 0, offset, -1, "") for topic in topics)
    return CommitRequest("g", -1, "", None, offsets)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_commit_is_neither_answered_nor_seen_before_it_is_durable(bench: Bench) -> None:
    commit = bench.commit("t")
    await turns()
    assert not commit.done()
    assert bench.groups.fetch("g", None) == {}
    bench.disk.sync()
    assert await commit == [None]
    assert bench.seen() == {("t", 0): 5}


async def test_a_commit_in_flight_is_dropped_with_its_topic(bench: Bench) -> None:
    commit = bench.commit("t")
    await turns()
    await bench.synced(bench.groups.forget_topics(["t"]))
    assert await commit == [None]
    assert bench.groups.fetch("g", None) == {}


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_commit_in_flight_does_not_expire_with_the_offset_before_it(
    in_transaction: bool, bench: Bench
) -> None:
    await bench.synced(bench.commit("t"))
    bench.clock.advance(8 * 24 * 3600 * 1000)
    again = (bench.commit_in_transaction if in_transaction else bench.commit)("t", offset=6)
    await turns()
    await bench.synced(again, bench.groups.expire_offsets())
    if in_transaction:
        await bench.synced(bench.end(commit=True))
    assert bench.seen() == bench.seen_after_a_restart() == {("t", 0): 6}


async def test_more_offsets_than_fit_one_batch_are_committed_and_forgotten(bench: Bench) -> None:
    topics = [f"{number:05}" + "x" * 200 for number in range(1500)]
    assert await bench.synced(bench.commit(*topics)) == [[None] * len(topics)]
    assert bench.coordination().fetch("g", None).keys() == {(topic, 0) for topic in topics}
    await bench.synced(bench.groups.forget_topics(topics))
    assert bench.coordination().fetch("g", None) == {}


async def test_after_a_stop_nothing_is_written_any_more(bench: Bench) -> None:
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


# --- transactions --------------------------------------------------------------------------------


async def test_a_commit_in_a_transaction_is_answered_when_durable_and_seen_with_its_marker(
    bench: Bench,
) -> None:
    commit = bench.commit_in_transaction("t", "u")
    await turns()
    assert not commit.done()
    assert bench.unstable("t", "u") == set()  # the offsets are not pending yet
    bench.disk.sync()
    assert await commit == [None, None]
    assert bench.seen() == {}
    assert bench.unstable("t", "u") == {"t", "u"}
    end = bench.end(commit=True)
    await turns()
    assert not end.done()
    assert bench.seen() == {}
    bench.disk.sync()
    await end
    assert bench.seen() == {("t", 0): 6, ("u", 0): 6}
    assert bench.unstable("t", "u") == set()


async def test_an_aborted_transaction_keeps_the_offset_committed_before(bench: Bench) -> None:
    await bench.synced(bench.commit("t"), bench.commit_in_transaction("t"))
    await bench.synced(bench.end(commit=False))
    assert bench.unstable("t") == set()
    assert bench.seen() == bench.seen_after_a_restart() == {("t", 0): 5}


async def test_an_open_transaction_outlives_a_restart_and_its_marker_still_decides(
    bench: Bench,
) -> None:
    await bench.synced(bench.commit("t"), bench.commit_in_transaction("t", "u"))
    await bench.synced(bench.commit("u"))
    assert bench.seen_after_a_restart() == {("t", 0): 5, ("u", 0): 5}
    assert bench.unstable("t", "u") == {"t", "u"}
    await bench.synced(bench.end(commit=True))
    # The offset of u was written later.
    assert bench.seen() == bench.seen_after_a_restart() == {("t", 0): 6, ("u", 0): 5}


async def test_a_repeated_marker_waits_for_the_first_one(bench: Bench) -> None:
    await bench.synced(bench.commit_in_transaction("t"))
    first = bench.end(commit=True)
    await turns()
    end = bench.journal.log.log_end_offset
    again = bench.end(commit=True)
    await turns()
    assert not again.done()
    await bench.synced(first, again)
    assert bench.journal.log.log_end_offset == end
    assert bench.seen() == {("t", 0): 6}


async def test_a_marker_of_a_fenced_epoch_is_refused(bench: Bench) -> None:
    await bench.synced(bench.commit_in_transaction("t", epoch=3))
    with pytest.raises(InvalidProducerEpochError):
        await bench.end(commit=True, epoch=2)
    assert bench.seen() == {}
    assert bench.unstable("t") == {"t"}


async def test_a_commit_does_not_restore_offsets_of_a_deleted_topic(bench: Bench) -> None:
    await bench.synced(bench.commit("t"), bench.commit_in_transaction("t", "u"))
    await bench.synced(bench.groups.forget_topics(["t"]))
    for groups in (bench.groups, bench.coordination()):
        bench.groups = groups
        assert bench.unstable("t", "u") == {"u"}
    await bench.synced(bench.end(commit=True))
    assert bench.seen() == bench.seen_after_a_restart() == {("u", 0): 6}


async def test_more_offsets_than_fit_one_batch_are_committed_in_one_transaction(
    bench: Bench,
) -> None:
    topics = [f"{number:05}" + "x" * 200 for number in range(1500)]
    await bench.synced(bench.commit_in_transaction(*topics))
    bench.groups = bench.coordination()
    assert bench.unstable(*topics) == set(topics)
    await bench.synced(bench.end(commit=True))
    assert bench.seen().keys() == {(topic, 0) for topic in topics}


async def test_a_disk_that_refuses_leaves_the_transaction_as_it_was(bench: Bench) -> None:
    await bench.synced(bench.commit_in_transaction("t"))
    bench.fs.fail("write", errno.ENOSPC, times=2)
    with pytest.raises(CoordinatorNotAvailableError):
        await bench.commit_in_transaction("u")
    with pytest.raises(DiskFullError):
        await bench.end(commit=True)
    assert bench.unstable("t", "u") == {"t"}
    bench.fs.clear_faults()
    await bench.synced(bench.end(commit=True))
    assert bench.seen() == {("t", 0): 6}


async def test_after_a_stop_no_transaction_is_ended(bench: Bench) -> None:
    await bench.synced(bench.commit_in_transaction("t"))
    end = bench.end(commit=True)
    await turns()
    bench.groups.stop(BrokerStoppingError("stopping"))
    with pytest.raises(BrokerStoppingError):
        await end
    with pytest.raises(BrokerStoppingError):
        await bench.end(commit=True)
