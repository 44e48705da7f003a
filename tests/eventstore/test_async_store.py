"""The asyncio twin, over a store in a topic and over one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.eventstore.async_store import AsyncStore
from tidemill.eventstore.errors import VersionConflictError
from tidemill.eventstore.events import NewEvent, StoredEvent
from tidemill.eventstore.memory_store import MemoryStore
from tidemill.eventstore.store import Store


async def positions(events: AsyncIterator[StoredEvent]) -> list[int]:
    return [each.position async for each in events]


@pytest.mark.parametrize("in_memory", [False, True])
async def test_it_appends_reads_and_follows(kafka: Kafka, topic: str, in_memory: bool) -> None:
    opened = AsyncStore(MemoryStore()) if in_memory else await AsyncStore.open(kafka, topic)
    async with opened as store:
        await asyncio.gather(*(store.append(f"s-{n}", [NewEvent("e")]) for n in range(100)))
        following = asyncio.create_task(positions(store.follow(after=40, wait_s=0.3)))
        assert (await store.append("s-1", [NewEvent("e")], expected=1)).positions == range(101, 102)
        with pytest.raises(VersionConflictError):
            await store.append("s-1", [NewEvent("e")], expected=1)
        assert await following == list(range(41, 102))
        assert await positions(store.read_all()) == list(range(1, 102))
        assert await positions(store.read("s-1", after=1, fresh=True)) == [101]
        assert (store.version("s-1"), store.position()) == (2, 101)


async def test_a_version_heard_from_another_process_is_read_first(kafka: Kafka, topic: str) -> None:
    async with await AsyncStore.open(kafka, topic) as store:
        with Store(kafka, topic) as other:
            for number in range(10):
                await asyncio.to_thread(other.append, "s", [NewEvent("e")], expected=2 * number)
                await store.append("s", [NewEvent("e")], expected=2 * number + 1)


async def test_a_follower_ends_when_its_task_is_cancelled_or_the_store_is_closed(
    kafka: Kafka, topic: str
) -> None:
    store = await AsyncStore.open(kafka, topic)
    endless = [asyncio.create_task(positions(store.follow())) for _ in range(200)]
    await store.append("s", [NewEvent("e")])
    endless[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless[0]
    await store.close()
    assert await asyncio.gather(*endless[1:]) == [[1]] * 199
