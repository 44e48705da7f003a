"""``door.queues.stored`` returns when what was settled is on disk, and after a refusal too."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.queues.harness import Client
from tests.engine.support import until
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.queues.letters import key_of
from tidemill.engine.queues.live import ack_log
from tidemill.log.errors import DiskFullError


async def acknowledge(client: Client, count: int) -> None:
    """Publish messages and acknowledge them."""
    await client.declare("q")
    await client.publish("q", *(b"%d" % n for n in range(count)))
    reader = await client.consume("q")
    reader.acknowledge(await reader.wait(count))


async def test_what_was_settled_is_on_disk(client: Client) -> None:
    await acknowledge(client, 3)
    lane = client.live("q").lanes[0]
    assert lane.stored_start == 0
    await client.queues.stored()
    assert lane.stored_start == 3
    await client.queues.stored()  # there is nothing to write


@pytest.mark.parametrize("changed", ["window", "letters"])
async def test_it_waits_until_a_full_disk_takes_the_records(
    client: Client, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(ack_log, "RETRY_S", 0.01)
    await acknowledge(client, 3)
    state = client.engine._queues._ack_log
    log = state._state_log.log
    if changed == "letters":
        await client.queues.stored()
        state.note(key_of(client.live("q").lanes[0]), b"noted")
    refused = 0

    def refuse(*_: object, **__: object) -> None:
        nonlocal refused
        refused += 1
        raise DiskFullError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(log), "append", refuse)
        waiting = asyncio.ensure_future(client.queues.stored())
        await until(lambda: refused >= 3)
        assert not waiting.done()
    await waiting
    assert client.live("q").lanes[0].stored_start == 3
    assert (b"noted" in state._state_log.latest().values()) == (changed == "letters")


async def test_a_stop_of_the_broker_ends_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await acknowledge(client, 1)
    monkeypatch.setattr(client.engine._queues._ack_log, "when_stored", lambda done: None)
    waiting = asyncio.ensure_future(client.queues.stored())
    await asyncio.sleep(0)
    await client.engine.stop()
    with pytest.raises(BrokerStoppingError):
        await waiting
