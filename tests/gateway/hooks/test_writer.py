"""The writer of a hook: each id once, by one gateway, over failures of the broker and of itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.broker_process import BrokerProcess
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.connect.base.errors import RecordRefusedError, RecordTooLargeError
from tidemill.gateway.errors import (
    HookFencedError,
    HookOverloadedError,
    HookUnavailableError,
)
from tidemill.gateway.hooks import writer as module
from tidemill.gateway.hooks.mapping import Record
from tidemill.gateway.hooks.settings import HookEntry
from tidemill.gateway.hooks.writer import ID_HEADER, Writer


def a_hook(**more: Any) -> HookEntry:
    name = f"hook-{uuid.uuid4().hex[:8]}"
    return HookEntry.model_validate({"name": name, "topic": name, "verifier": "none", **more})


@contextlib.asynccontextmanager
async def running(kafka: Kafka, entry: HookEntry) -> AsyncIterator[Writer]:
    writer = Writer(kafka, entry)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        writer.stop()
        await asyncio.wait([task], timeout=10)
        task.cancel()


async def until_ready(writer: Writer) -> None:
    async with asyncio.timeout(30):
        while not writer.is_ready:
            await asyncio.sleep(0.01)


def stored(kafka: Kafka, topic: str, isolation: str = "read_committed") -> list[Message]:
    ends = end_offsets(kafka, "tests", topic)
    follower = Follower.of(kafka, "tests", ends, isolation)
    found: list[Message] = []
    with contextlib.closing(follower):
        while follower.behind(ends):
            found += follower.poll(0.1)
    return found


def record(number: int, *, with_id: bool = True) -> Record:
    id_ = f"it:{number}".encode() if with_id else None
    return Record(b"k", b"%d" % number, (("h", b"x"),), id_)


async def test_a_record_is_stored_once_and_a_restart_remembers_it(kafka: Kafka) -> None:
    entry = a_hook()
    async with running(kafka, entry) as writer:
        assert await writer.store(record(1))
        assert not await writer.store(record(1))
        both = await asyncio.gather(*(writer.store(record(2)) for _ in range(20)))
        assert sorted(both) == [False] * 19 + [True]
        assert await writer.store(record(3, with_id=False))
        assert await writer.store(record(3, with_id=False))
    async with running(kafka, entry) as writer:
        assert not await writer.store(record(1))
        assert not await writer.store(record(2))
    found = stored(kafka, entry.topic)
    assert [(each.key(), each.value()) for each in found] == [
        (b"k", number) for number in (b"1", b"2", b"3", b"3")
    ]
    assert found[0].headers() == [(ID_HEADER, b"it:1"), ("h", b"x")]
    assert found[2].headers() == [("h", b"x")]


async def test_what_waits_is_stored_together(kafka: Kafka) -> None:
    entry = a_hook(partitions=3)
    async with running(kafka, entry) as writer:
        results = await asyncio.gather(*(writer.store(record(n)) for n in range(3000)))
    assert results == [True] * 3000
    assert sorted(int(each.value() or b"") for each in stored(kafka, entry.topic)) == [*range(3000)]
    # 3000 records in two transactions: markers take few offsets.
    ends = end_offsets(kafka, "tests", entry.topic)
    assert sum(ends.values()) <= 3010


async def test_a_second_gateway_fences_the_first(kafka: Kafka) -> None:
    entry = a_hook()
    async with running(kafka, entry) as first:
        assert await first.store(record(1))
        async with running(kafka, entry) as second:
            assert not await second.store(record(1))
            assert await second.store(record(2))
            with pytest.raises(HookFencedError, match="another gateway"):
                await first.store(record(3))
            assert first.is_fenced
            with pytest.raises(HookFencedError):
                await first.store(record(4))
            assert await second.store(record(3))
    values = [each.value() for each in stored(kafka, entry.topic)]
    assert values == [b"1", b"2", b"3"]


async def test_a_commit_with_an_unknown_outcome_is_looked_up(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker commits, and the answer is lost; or it does not commit."""
    entry, commit, lost = a_hook(), Writer._commit, [True, False]
    unreachable = kafka.unreachable("commit", "lost")

    def fail(self: Writer, producer: Any, records: list[Record]) -> None:
        if not lost:
            commit(self, producer, records)
        elif lost.pop(0):
            commit(self, producer, records)
            raise unreachable
        else:
            raise unreachable

    monkeypatch.setattr(Writer, "_commit", fail)
    async with running(kafka, entry) as writer:
        results = await asyncio.gather(
            *(writer.store(record(n)) for n in range(3)),
            writer.store(record(9, with_id=False)),
            return_exceptions=True,
        )
        assert results[:3] == [True] * 3
        assert isinstance(results[3], HookUnavailableError)
        assert "outcome is not known" in str(results[3])
        # The second failure is before the commit: the record is written after it.
        assert await writer.store(record(4))
    values = [each.value() or b"" for each in stored(kafka, entry.topic)]
    assert sorted(values[:4]) == [b"0", b"1", b"2", b"9"]
    assert values[4:] == [b"4"]


async def test_a_record_that_is_too_large_fails_alone(kafka: Kafka) -> None:
    entry = a_hook()
    large = Record(None, b"x" * 600_000, (), b"it:large")
    async with running(kafka, entry) as writer:
        await until_ready(writer)
        with pytest.raises(RecordTooLargeError, match="larger than topic"):
            await writer.store(replace(large, value=b"x" * 1_100_000))
        # The limit becomes lower while the gateway runs.
        limit = ConfigEntry(
            "max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, entry.topic, incremental_configs=[limit])
        admin = kafka.admin("tests")  # a client that is collected gets no answers
        admin.incremental_alter_configs([resource])[resource].result(10)
        values = [Record(None, bytes([65 + n]) * 300, (), b"it:%d" % n) for n in range(6)]
        noise = Record(None, os.urandom(2000), (), b"it:noise")
        calls = [writer.store(each) for each in (*values[:3], noise, *values[3:])]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results.pop(3), RecordTooLargeError)
    assert results == [True] * 6
    assert [each.value() for each in stored(kafka, entry.topic)] == [each.value for each in values]


async def test_a_record_that_the_broker_refuses_fails_alone(kafka: Kafka) -> None:
    """A compacted topic takes no record without a key."""
    entry = a_hook()
    kafka.create_topics("tests", {entry.topic: (1, {"cleanup.policy": "compact"})})
    async with running(kafka, entry) as writer:
        await until_ready(writer)
        refused = [replace(record(n), key=None) for n in (3, 6)]
        given = [*map(record, range(3)), refused[0], *map(record, (4, 5)), refused[1], record(7)]
        results = await asyncio.gather(*map(writer.store, given), return_exceptions=True)
        assert [type(each) for each in results] == [
            *(bool, bool, bool, RecordRefusedError, bool, bool, RecordRefusedError, bool)
        ]
        assert await writer.store(record(8))
    values = [each.value() for each in stored(kafka, entry.topic)]
    assert values == [b"0", b"1", b"2", b"4", b"5", b"7", b"8"]


async def test_what_waits_is_bounded_in_number_and_time(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = a_hook(timeout_s=0.2)
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    writer = Writer(kafka, entry)  # it does not run
    given = [record(n, with_id=n > 4) for n in range(11)]
    results = await asyncio.gather(*map(writer.store, given), return_exceptions=True)
    assert isinstance(results.pop(), HookOverloadedError)
    assert all("not stored within 0.2 s" in str(each) for each in results)
    task = asyncio.create_task(writer.run())
    # Those with an id are stored as soon as that is possible: their senders try again.
    async with asyncio.timeout(30):
        while writer._queue or not writer._once.is_idle:
            await asyncio.sleep(0.01)
    assert writer._bytes == 0
    assert not await writer.store(record(7))
    assert await writer.store(record(11))  # its place is free again
    writer.stop()
    await task
    values = [each.value() for each in stored(kafka, entry.topic)]
    assert values == [b"%d" % n for n in (*range(5, 10), 11)]


async def test_requests_wait_for_a_broker_that_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        kafka = Kafka(broker.bootstrap)
        entry = a_hook(timeout_s=60)
        async with running(kafka, entry) as writer:
            assert await writer.store(record(0))
            await asyncio.to_thread(broker.kill)
            call = asyncio.ensure_future(writer.store(record(1)))
            await asyncio.to_thread(broker.start)
            assert await call
            assert not await writer.store(record(0))
        assert [each.value() for each in stored(kafka, entry.topic)] == [b"0", b"1"]
