"""Keys of requests, in this process: lost answers, clocks that jump, topics created again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import end_offsets
from tidemill.gateway.dedup import Stored, Window
from tidemill.gateway.errors import HttpError, busy, unavailable
from tidemill.gateway.guard import Budget
from tidemill.gateway.idempotency import Keys
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.topics import Catalog, Topic
from tidemill.gateway.writing import Writer
from tidemill.record_json import InputRecord

RECORD = InputRecord(b"k", b"v")


@dataclass
class Parts:
    kafka: Kafka
    writer: Writer
    keys: Keys
    catalog: Catalog

    async def topic(self, name: str) -> Topic:
        found = (await self.catalog.described([name]))[name]
        assert found is not None
        return found

    def count(self, name: str) -> int:
        """Return the number of records in a topic."""
        return sum(end_offsets(self.kafka, "tests", name).values())


@asynccontextmanager
async def started(kafka: Kafka) -> AsyncIterator[Parts]:
    writer = Writer(kafka, Budget(1 << 20))
    yield Parts(kafka, writer, Keys(kafka, writer, GatewaySettings()), Catalog(kafka))
    await writer.close()


async def test_a_request_that_waits_for_one_whose_answer_was_lost_stores_nothing(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(kafka) as parts:
        real, lost = parts.writer.send, 0

        def send(name: str, record: InputRecord, **more: Any) -> asyncio.Future[Stored]:
            async def lose() -> Stored:
                await real(name, record, **more)
                raise unavailable("the answer was lost")

            nonlocal lost
            lost += 1
            return asyncio.ensure_future(lose()) if lost == 1 else real(name, record, **more)

        monkeypatch.setattr(parts.writer, "send", send)
        about = await parts.topic(topic)
        calls = [parts.keys.store(about, "id", RECORD) for _ in range(3)]
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, HttpError)
        places = {each[0].offset for each in others if isinstance(each, tuple)}
        assert places == {0}
        assert parts.count(topic) == 1


async def test_a_record_that_was_not_sent_is_no_reason_to_read_the_topic_again(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(kafka) as parts:
        real, about, refusals = parts.writer.send, await parts.topic(topic), iter(range(3))

        def send(name: str, record: InputRecord, **more: Any) -> asyncio.Future[Stored]:
            if next(refusals, None) is not None:
                raise busy("too many records are under way")
            return real(name, record, **more)

        reads = 0
        real_read = parts.keys._in_log

        def read(name: str) -> Window:
            nonlocal reads
            reads += 1
            return real_read(name)

        monkeypatch.setattr(parts.writer, "send", send)
        monkeypatch.setattr(parts.keys, "_in_log", read)
        for _ in range(3):
            with pytest.raises(HttpError, match="too many"):
                await parts.keys.store(about, "id", RECORD)
        assert (await parts.keys.store(about, "id", RECORD))[1]
        assert reads == 1


async def test_a_key_is_remembered_when_the_clock_is_set(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(kafka) as parts:
        about, real_ns = await parts.topic(topic), time.time_ns
        before, _ = await parts.keys.store(about, "id", RECORD)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 86_400 * 10**9)
        assert await parts.keys.store(about, "id", RECORD) == (before, False)
        assert parts.count(topic) == 1


async def test_a_topic_that_was_created_again_has_no_keys_of_the_earlier_one(
    kafka: Kafka, topic: str
) -> None:
    async with started(kafka) as parts:
        await parts.keys.store(await parts.topic(topic), "id", RECORD)
        admin: Any = parts.kafka.admin("tests")
        admin.delete_topics([topic])[topic].result(30)
        poll_until(lambda: topic not in parts.kafka.list_topics("tests"), 30, "it is deleted")
        parts.kafka.create_topics("tests", {topic: (2, {})})
        poll_until(lambda: topic in parts.kafka.list_topics("tests"), 30, "it is there")
        _, is_new = await parts.keys.store(await parts.topic(topic), "id", RECORD)
        assert is_new
        assert parts.count(topic) == 1
