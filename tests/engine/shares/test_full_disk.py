"""Share groups on a disk that refuses: what members acknowledged is written when there is space."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.support import Disk, running, until
from tests.support.logs import append_records
from tidemill.engine.api import NewTopic
from tidemill.engine.engine import Engine
from tidemill.engine.internal_topics import SHARE_STATE
from tidemill.engine.shares import core
from tidemill.engine.shares.api import AckBatch, PartitionAcks, ShareQuery, ShareRead
from tidemill.log.format.records import NewRecord
from tidemill.state.errors import CoordinatorNotAvailableError
from tidemill.state.share_groups.types import ShareHeartbeat

COUNT = 10


async def started(engine: Engine) -> ShareRead:
    """Write records to a topic, and let a member of a group acquire all; return its partition."""
    door = engine.door()
    (topic,) = await door.topics.create([NewTopic("t", 1)])
    await join(engine)
    read = ShareRead(topic.topic_id, 0)  # type: ignore[union-attr]
    query = ShareQuery("g", "m", [read], 0, COUNT, 1 << 20)
    (before,) = await door.shares.fetch(query)  # the group begins at the end
    assert not before.acquired
    await append_records(engine, "t", 0, [NewRecord(None, b"x")] * COUNT)
    query.max_wait_ms = 60_000
    (found,) = await door.shares.fetch(query)
    assert [(run.first, run.last) for run in found.acquired] == [(0, COUNT - 1)]
    return read


async def join(engine: Engine) -> None:
    heartbeat = ShareHeartbeat("g", "m", 0, "client", "host", None, ("t",))
    await engine.door().groups.share_heartbeat(heartbeat)


def accept(read: ShareRead, last: int = COUNT - 1) -> list[PartitionAcks]:
    return [PartitionAcks(*read, [AckBatch(0, last, [1])])]


async def start_of(engine: Engine) -> int:
    (offset,) = await engine.door().shares.offsets("g", None)
    return offset.start


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_what_could_not_be_written_is_written_later_or_when_the_broker_stops(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setattr(core, "RETRY_S", 3600.0 if is_stopped else 0.01)
    async with running(tmp_path) as engine:
        read = await started(engine)
        disk.refuses.add(SHARE_STATE.topic)
        with pytest.raises(CoordinatorNotAvailableError, match="no space left"):
            await engine.door().shares.acknowledge("g", "m", accept(read))
        disk.refuses.clear()
        log = engine._store.partitions[SHARE_STATE]
        before = log.log_end_offset
        await until(lambda: is_stopped or log.log_end_offset > before)
    async with running(tmp_path) as engine:
        assert await start_of(engine) == COUNT


async def test_the_state_of_a_deleted_topic_is_not_written_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "RETRY_S", 3600.0)
    async with running(tmp_path) as engine:
        read = await started(engine)
        disk.refuses.add(SHARE_STATE.topic)
        with pytest.raises(CoordinatorNotAvailableError):
            await engine.door().shares.acknowledge("g", "m", accept(read))
        disk.refuses.clear()
        assert await engine.door().topics.delete(["t"]) == [None]
    async with running(tmp_path) as engine:
        await join(engine)
        assert await engine.door().shares.offsets("g", None) == []
