"""Publishing, delivering and settling, through the door of one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.queues.harness import Client, connected, numbers, turns
from tests.engine.support import running, start, until
from tests.engine.transactions.support import cut_power
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tidemill.engine.queues import disk_space
from tidemill.engine.queues.errors import (
    ConsumerAccessError,
    ResourceLockedError,
    UnknownExchangeError,
    UnknownQueueError,
)


async def test_a_message_is_delivered_once_and_is_gone_when_it_is_acknowledged(
    client: Client,
) -> None:
    await client.declare("jobs")
    assert await client.publish("jobs", b"one", b"two") == [True, True]
    reader, got = await client.take(2)
    assert [(bytes(d.value), d.key, d.redelivered) for d in got] == [
        (b"one", b"jobs", False),
        (b"two", b"jobs", False),
    ]
    found = client.queues.describe("jobs")
    assert (found.ready, found.unacknowledged) == (0, 2)
    reader.acknowledge(got)
    found = client.queues.describe("jobs")
    assert (found.ready, found.unacknowledged, found.acknowledged) == (0, 0, 2)


async def test_the_consumers_of_an_empty_queue_cost_nothing(tmp_path: Path) -> None:
    """A client can have so many that a look at each of them takes a turn of the event loop."""
    async with connected(tmp_path) as client:
        await client.declare("jobs")
        asked: list[int] = []
        readers = [await client.consume("jobs") for _ in range(3)]
        for number, reader in enumerate(readers):
            credit = reader.credit
            reader.credit = lambda n=number, c=credit: asked.append(n) or c()  # type: ignore[method-assign,misc,func-returns-value]
        readers[0].consumer.wake()
        await turns()
        assert asked == []
        await client.publish("jobs", b"one")
        await until(lambda: sum(len(each.got) for each in readers) == 1)
        assert set(asked) == {0, 1, 2}


async def test_what_was_not_acknowledged_survives_a_restart_and_is_marked(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.fill(*numbers(10))
        reader, got = await client.take(6)
        reader.consumer.cancel()
        reader.acknowledge([got[0], got[3]])
    async with connected(tmp_path) as client:
        reader, got = await client.take(8)
        assert [int(d.value) for d in got] == [1, 2, 4, 5, 6, 7, 8, 9]
        assert [d.redelivered for d in got] == [True] * 4 + [False] * 4
        reader.acknowledge(got)
    async with connected(tmp_path) as client:
        assert client.ready("jobs") == 0


async def test_after_a_power_cut_a_second_delivery_is_marked_as_redelivered(
    fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a delivery is not synced. So all messages are marked, as RabbitMQ does it."""
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 1 << 40)  # the disk is in memory
    engine = await start(fs=fs, log={"sync_interval_ms": 3_600_000})
    client = Client(engine)
    await client.fill(*numbers(5))
    _, got = await client.take(3)
    assert not any(each.redelivered for each in got)
    await cut_power(engine, fs, Unlucky())
    fs.clear_faults()

    again: list[tuple[bytes, bool]] = []
    for life in range(3):  # what was not delivered yet stays marked after a clean stop
        async with running(fs=fs) as engine:
            assert engine._store.clean_start == (life > 0)
            client = Client(engine)
            await client.publish("jobs", b"new %d" % life)
            for _ in range(2):
                delivery = await client.get("jobs", no_ack=True)
                assert delivery is not None
                assert delivery.delivery_count == 0
                again.append((bytes(delivery.value), delivery.redelivered))
            await client.queues.stored()
    assert again == [*((b"%d" % n, True) for n in range(5)), (b"new 0", False)]


async def test_a_released_message_returns_to_its_place_with_its_count(client: Client) -> None:
    await client.fill(b"a", b"b", b"c")
    reader, (first, _) = await client.take(2)
    reader.release([first])
    (again,) = await reader.wait(1)
    assert (again.value, again.delivery_count, again.redelivered) == (b"a", 1, True)
    reader.release([again])
    (again,) = await reader.wait(1)
    assert (again.value, again.delivery_count) == (b"a", 2)
    reader.acknowledge([again])
    (third,) = await reader.wait(1)
    assert (third.value, third.delivery_count) == (b"c", 0)


async def test_consumers_get_messages_in_turn_within_their_space(client: Client) -> None:
    await client.declare("jobs")
    wide = await client.consume("jobs", prefetch=4)
    narrow = await client.consume("jobs", prefetch=2)
    await client.publish("jobs", *numbers(8))
    await until(lambda: len(wide.got) + len(narrow.got) == 6)
    assert (len(wide.got), len(narrow.got)) == (4, 2)
    assert client.ready("jobs") == 2
    assert sorted(wide.values + narrow.values) == numbers(6)
    narrow.acknowledge(await narrow.wait(2))
    assert [d.value for d in await narrow.wait(2)] == [b"6", b"7"]


async def test_consumers_with_a_higher_priority_come_first(client: Client) -> None:
    await client.declare("jobs")
    low = await client.consume("jobs", prefetch=10)
    high = await client.consume("jobs", prefetch=2, arguments={"x-priority": 5})
    await client.publish("jobs", b"1", b"2", b"3")
    await until(lambda: len(low.got) + len(high.got) == 3)
    assert (high.values, low.values) == ([b"1", b"2"], [b"3"])


async def test_a_single_active_consumer_is_followed_by_the_next_one(client: Client) -> None:
    other = Client(client.engine)
    await client.declare("jobs", {"x-single-active-consumer": True})
    first = await client.consume("jobs", prefetch=1)
    second = await other.consume("jobs")
    await client.publish("jobs", b"1", b"2")
    await first.wait(1)
    await turns()
    assert second.got == []
    assert [c.active for c in client.queues.describe("jobs").consumers] == [True, False]
    await client.close()
    assert [(d.value, d.redelivered) for d in await second.wait(2)] == [(b"1", True), (b"2", False)]


async def test_what_a_closed_connection_held_is_delivered_to_another(client: Client) -> None:
    other = Client(client.engine)
    await client.fill(b"1", b"2", b"3")
    reader = await client.consume("jobs", prefetch=2)
    await reader.wait(2)
    gotten = await client.get("jobs")
    assert gotten is not None
    await client.close()
    gotten.holder.release([gotten])
    second = await other.consume("jobs")
    assert [d.value for d in await second.wait(3)] == [b"1", b"2", b"3"]


async def test_get_returns_one_message_and_how_many_remain(client: Client) -> None:
    await client.declare("jobs")
    assert await client.get("jobs") is None
    await client.publish("jobs", b"1", b"2")
    found = await client.queues.get("jobs", client.owner, no_ack=False)
    assert found is not None
    assert (found.delivery.value, found.remaining) == (b"1", 1)
    found.delivery.holder.acknowledge([found.delivery])
    assert await client.drain("jobs") == [b"2"]


async def test_messages_that_a_client_deletes_from_the_topic_leave_the_queue(
    client: Client,
) -> None:
    await client.fill(*numbers(10))
    reader, got = await client.take(3)
    reader.release(got[1:2])
    reader.consumer.cancel()
    await client.engine.records.delete_before("jobs", 0, 5)
    assert client.ready("jobs") == 5
    reader.acknowledge(got[:1])  # it is out, so its owner can settle it
    reader.release(got[2:])
    assert await client.drain("jobs") == [b"5", b"6", b"7", b"8", b"9"]
    await client.publish("jobs", b"10")
    await client.engine.records.delete_before("jobs", 0, None)
    assert client.ready("jobs") == 0
    assert await client.get("jobs") is None
    await client.publish("jobs", b"11")
    assert await client.drain("jobs") == [b"11"]


async def test_exclusive_use_is_refused_to_others(client: Client) -> None:
    other = Client(client.engine)
    await client.declare("mine", exclusive=True)
    with pytest.raises(ResourceLockedError):
        await other.consume("mine")
    await client.declare("jobs")
    await client.consume("jobs", exclusive=True)
    with pytest.raises(ConsumerAccessError):
        await other.consume("jobs")
    await client.close()
    with pytest.raises(UnknownQueueError):
        await other.consume("mine")
    await other.consume("jobs")


async def test_no_ack_messages_are_done_when_they_are_handed_over(client: Client) -> None:
    await client.fill(b"1", b"2")
    reader = await client.consume("jobs", no_ack=True)
    await reader.wait(2)
    found = client.queues.describe("jobs")
    assert (found.ready, found.unacknowledged) == (0, 0)


async def test_what_has_no_queue_is_reported_as_not_routed(client: Client) -> None:
    assert client.send("nowhere") is None
    assert client.send("nowhere", exchange="amq.direct") is None
    with pytest.raises(UnknownExchangeError):
        client.send("nowhere", exchange="missing")
    with pytest.raises(UnknownQueueError):
        await client.consume("nowhere")


async def test_a_long_queue_is_read_from_the_log_in_order(client: Client) -> None:
    await client.declare("jobs")
    bodies = [b"%05d" % n + bytes(1000) for n in range(3000)]
    for first in range(0, len(bodies), 300):
        await client.publish("jobs", *bodies[first : first + 300])
    reader = await client.consume("jobs", prefetch=50)
    seen: list[bytes] = []
    while len(seen) < len(bodies):
        await until(lambda: bool(reader.got))
        got = await reader.wait(1)
        seen += [bytes(each.value) for each in got]
        reader.acknowledge(got)
    assert seen == bodies


async def test_deleted_records_leave_the_queue_at_once(client: Client) -> None:
    await client.fill(b"0", b"1", b"2", b"3", arguments={"x-message-ttl": 3_600_000})
    lane = client.live("jobs").lanes[0]
    await client.engine.records.delete_before("jobs", 0, 3)
    assert (lane.window.start, lane.window.next) == (3, 3)  # nobody has looked
    await until(lambda: lane.stored_start == 3)
    assert await client.drain("jobs") == [b"3"]


async def test_the_next_message_comes_to_a_consumer_that_waits_for_the_queue_to_be_in_its_length(
    client: Client,
) -> None:
    await client.fill(b"0", b"1", b"2", arguments={"x-max-length": 2, "x-overflow": "throttle"})
    assert client.publisher.hold_ms() > 0
    await client.engine.records.delete_before("jobs", 0, None)
    assert client.publisher.hold_ms() == 0
    reader = await client.consume("jobs")
    await turns()
    assert reader.got == []
    await client.publish("jobs", b"3")
    (got,) = await reader.wait(1)
    assert got.value == b"3"


async def test_a_queue_that_ended_can_be_ended_again_and_delivers_nothing(client: Client) -> None:
    """The broker stops, and then the connection of an exclusive queue's owner is gone."""
    await client.fill(b"1")
    live = client.live("jobs")
    for _ in range(2):
        live.close("it was deleted")
        live.wake()
        assert live.get(no_ack=True) is None
