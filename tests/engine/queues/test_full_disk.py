"""Queues on a full disk: publishers wait, what is done is freed, and nothing confirmed is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.engine.queues.harness import Client, connected, turns
from tests.engine.support import Disk, until
from tidemill.engine.internal_topics import QUEUE_STATE
from tidemill.engine.queues import declarations, disk_space, letters
from tidemill.engine.queues.live import ack_log

VALUE = bytes(30_000)


@pytest.fixture
def disk(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """One whose space is looked at for each message."""
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: disk.free)
    monkeypatch.setattr(disk_space, "CHECK_MS", 0)
    monkeypatch.setattr(ack_log, "RETRY_S", 0.01)
    monkeypatch.setattr(declarations, "SEGMENT_BYTES", 1 << 20)
    return disk


async def test_publishers_wait_until_there_is_space(disk: Disk, client: Client) -> None:
    await client.declare("q")
    assert await client.publish("q", b"a") == [True]
    assert client.publisher.hold_ms() == 0
    disk.refuses.add("q")
    disk.free = disk_space.RESERVED_BYTES - 1
    assert await client.publish("q", b"b") == [False]
    assert client.publisher.hold_ms() > 0
    assert client.publisher.is_disk_full
    disk.refuses.clear()
    assert client.publisher.hold_ms() > 0
    disk.free = disk_space.RESERVED_BYTES
    assert client.publisher.hold_ms() == 0
    assert not client.publisher.is_disk_full
    assert await client.publish("q", b"c") == [True]
    assert await client.drain("q") == [b"a", b"c"]


async def test_messages_leave_space_for_acknowledgements(disk: Disk, client: Client) -> None:
    await client.declare("q")
    assert await client.publish("q", b"a") == [True]
    disk.free = disk_space.RESERVED_BYTES - 1
    assert await client.publish("q", b"b") == [False]
    assert disk.refused == 0  # it was not tried
    reader = await client.consume("q")
    reader.acknowledge(await reader.wait(1))
    await client.queues.stored()


async def test_messages_are_refused_while_the_data_folder_is_gone(
    disk: Disk, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.declare("q")

    def vanished(folder: str) -> int:
        raise FileNotFoundError(2, "No such file or directory", folder)

    with monkeypatch.context() as patched:
        patched.setattr(disk_space, "free_bytes", vanished)
        with capture_logs() as logs:
            assert await client.publish("q", b"a") == [False]
        assert "No such file or directory" in logs[0]["error"]
        assert not client.publisher.is_disk_full
    assert await client.publish("q", b"b") == [True]
    assert await client.drain("q") == [b"b"]


async def test_what_is_done_is_freed_although_that_can_not_be_stored(
    tmp_path: Path, disk: Disk
) -> None:
    async with connected(tmp_path) as client:
        await client.declare("q")
        for _ in range(10):
            assert await client.publish("q", *[VALUE] * 10) == [True] * 10
        reader, got = await client.take(100, "q")
        disk.refuses.add(QUEUE_STATE.topic)
        reader.acknowledge(got[:90])
        log = client.live("q").lanes[0].log
        await until(lambda: log.log_start_offset > 50)
        assert log.log_start_offset <= 90
        before = disk.refused
        await until(lambda: disk.refused > before)  # it is tried again
        disk.refuses.clear()
        await turns()
    async with connected(tmp_path) as client:
        assert client.ready("q") == 10


async def test_after_a_crash_what_was_freed_is_gone_and_the_rest_is_there(
    tmp_path: Path, disk: Disk
) -> None:
    async with connected(tmp_path) as client:
        await client.declare("q")
        for number in range(100):
            assert await client.publish("q", b"%d" % number + VALUE) == [True]
        reader, got = await client.take(100, "q")
        disk.refuses.add(QUEUE_STATE.topic)  # until the end: no acknowledgement is ever stored
        reader.acknowledge(got[:60])
        log = client.live("q").lanes[0].log
        await until(lambda: log.log_start_offset > 20)
    disk.refuses.clear()
    async with connected(tmp_path) as client:
        left = [int(value.removesuffix(VALUE)) for value in await client.drain("q")]
        assert left[-40:] == list(range(60, 100))
        assert 20 < left[0] <= 60


async def test_a_letter_that_waits_for_the_disk_comes_once_to_each_of_its_queues(
    disk: Disk, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "RETRY_S", 0.01)
    await client.declare("jobs", {"x-dead-letter-exchange": "amq.fanout"})
    for name in ("dead", "dead too"):
        await client.declare(name)
        await client.queues.bind(name, "amq.fanout", "", {}, client.owner)
    await client.publish("jobs", b"bad")
    reader, got = await client.take(1)
    disk.refuses.add(QUEUE_STATE.topic)
    reader.reject(got)
    await until(lambda: disk.refused >= 2)
    disk.refuses.clear()
    await until(lambda: client.queues.describe("jobs").dead == 1)
    await turns(20)
    assert await client.drain("dead") == await client.drain("dead too") == [b"bad"]
