"""``x-max-length-bytes`` counts what waits, also what was published before the start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.queues.harness import Client, connected, turns
from tests.engine.support import until
from tidemill.engine.queues import publish
from tidemill.engine.queues.live import lane as lanes
from tidemill.log.errors import InvalidRecordError
from tidemill.state.queues.format import WaitingBytes, decode_waiting, encode_waiting

BOUND: dict[str, object] = {"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}


def waiting(client: Client) -> int:
    return client.live("jobs").ready_bytes


async def test_the_bytes_survive_restarts_with_acknowledgements_in_between(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.declare("jobs", BOUND)
        await client.publish("jobs", *(bytes(100) for _ in range(6)))
        reader, (one, _, three) = await client.take(3)
        reader.acknowledge([one, three])
        await client.queues.stored()
        await client.publish("jobs", bytes(50))
    async with connected(tmp_path) as client:
        assert waiting(client) == 450
        assert await client.publish("jobs", bytes(550), bytes(1)) == [True, False]
        assert len(await client.drain("jobs")) == 6
        await until(lambda: waiting(client) == 0)
    async with connected(tmp_path) as client:
        assert waiting(client) == 0
        assert await client.publish("jobs", bytes(1000), bytes(1)) == [True, False]


@pytest.mark.parametrize("seed", range(3))
async def test_any_history_gives_the_same_bytes_after_a_restart(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "NOTE_BYTES", 300)
    dice = random.Random(seed)
    left: list[int] = []

    async def live_through(client: Client) -> None:
        await client.declare("jobs", {"x-max-length-bytes": 1 << 30})
        assert waiting(client) == sum(left)
        for _ in range(20):
            sizes = [dice.randrange(100) for _ in range(dice.randrange(4))]
            await client.publish("jobs", *(bytes(size) for size in sizes))
            left.extend(sizes)
            reader = await client.consume("jobs", prefetch=dice.randint(1, 5))
            for got in await reader.wait(min(reader.prefetch, len(left))):
                if dice.random() < 0.5:
                    reader.acknowledge([got])
                    left.remove(len(got.value))
                else:
                    reader.release([got])
            reader.consumer.cancel()
            await turns(1)
            for got in reader.got:  # what came while the others were settled
                reader.release([got])
            reader.got.clear()
            assert waiting(client) == sum(left)
            if dice.random() < 0.1:
                await client.queues.purge("jobs", client.owner)
                left.clear()
        await client.queues.stored()

    for _ in range(4):
        async with connected(tmp_path) as client:
            await live_through(client)


async def test_a_topic_with_a_long_history_counts_its_bytes_in_the_log(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(lanes, "COUNTED_BYTES", 2000)
    await client.declare("other")
    await client.publish("other", *(bytes(100) for _ in range(30)))
    live = client.live("other")
    live.lanes[0].count_bytes()
    assert 3000 <= live.ready_bytes <= 4500
    await client.engine.records.delete_before("other", 0, 15)
    assert 1500 <= live.ready_bytes <= 2250
    assert len(await client.drain("other")) == 15
    await client.queues.stored()
    assert live.ready_bytes == 0


def test_the_stored_form() -> None:
    note = WaitingBytes(7, 8)
    assert decode_waiting(encode_waiting(note)) == note
    with pytest.raises(InvalidRecordError):
        decode_waiting(encode_waiting(WaitingBytes(-1, 8)))
