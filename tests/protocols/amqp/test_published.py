"""What the broker publishes about AMQP in a topic, and how administrators close a connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from tests.protocols.amqp.client import Broker, Client
from tidemill.clock import ManualClock
from tidemill.engine.api import PartitionRead, ReadQuery
from tidemill.engine.errors import AuthorizationError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.records import decode_records
from tidemill.log.partition.partition import PartitionLog
from tidemill.protocols.amqp import management, published
from tidemill.protocols.amqp.channels.publishing import MOST_ANSWERS
from tidemill.protocols.amqp.published import TOPIC, StatePublisher
from tidemill.state.catalog.types import NewTopic

NAME = "127.0.0.1:1 -> 127.0.0.1:5672"
REPLY_TO = "amq.rabbitmq.reply-to"


async def create(broker: Broker) -> None:
    """Create the topic, as the gateway does."""
    config = {"cleanup.policy": "compact,delete"}
    (found,) = await broker.engine.topics.create([NewTopic(TOPIC, 1, configs=config)])
    assert not isinstance(found, Exception), found


def log_of(broker: Broker) -> PartitionLog:
    """Return the log of the topic."""
    (log,) = (log for tp, log in broker.engine._store.partitions.items() if tp.topic == TOPIC)
    return log


def records(broker: Broker, start: int | None = None) -> list[tuple[str, Any]]:
    """Return the keys and values of the topic."""
    log = log_of(broker)
    piece = log.read(start or log.log_start_offset, 1 << 24, limit_offset=log.log_end_offset)
    if piece is None:
        return []
    data = memoryview(piece.load())
    return [
        (bytes(each.key or b"").decode(), None if each.value is None else json.loads(each.value))
        for at, header in iter_headers(data)
        for each in decode_records(data[at : at + header.size])
    ]


@pytest.fixture
def publisher(broker: Broker) -> StatePublisher:
    broker.run(create(broker))
    return broker.server.publisher()


async def test_nothing_is_published_until_the_topic_exists(broker: Broker) -> None:
    publisher = broker.server.publisher()
    assert await publisher.publish() == 0
    await create(broker)
    assert await publisher.publish() > 0


async def test_queues_connections_and_channels_are_published(
    broker: Broker, publisher: StatePublisher
) -> None:
    client = await broker.client_with_queue()
    await client.ask(1, "confirm.select")
    await client.ask(1, "basic.qos", prefetch_count=5)
    await client.ask(1, "basic.consume", queue="q", consumer_tag="t")
    client.publish(1, "", "q", b"body")
    await client.settle()
    await publisher.publish()
    found = dict(records(broker))
    connection, channel = found[f"connection/{NAME}"], found[f"channel/{NAME} (1)"]
    assert (connection["user"], connection["port"], connection["channels"]) == ("guest", 5672, 1)
    assert channel["consumers"] == [["t", "q", False, 5]]
    assert (channel["prefetch_count"], channel["messages_unacknowledged"]) == (5, 1)
    assert (channel["confirm"], channel["messages_unconfirmed"]) == (True, 0)
    queue = found["queue/q"]
    assert (queue["ready"], queue["unacknowledged"], queue["published"]) == (0, 1, 1)
    assert found["exchange/amq.topic"]["type"] == "topic"
    assert found["node"]["i"] == queue["i"]
    assert list(found)[-1] == "node"


async def test_a_queue_that_was_declared_again_with_other_arguments_is_published(
    broker: Broker, publisher: StatePublisher
) -> None:
    client = await broker.client_with_queue()
    await publisher.publish()
    await client.ask(1, "queue.delete", queue="q")
    await client.ask(1, "queue.declare", queue="q", arguments={"x-max-length": 5})
    await publisher.publish()
    assert dict(records(broker))["queue/q"]["arguments"] == {"x-max-length": 5}


async def test_a_round_publishes_what_has_changed_and_what_is_gone(
    broker: Broker, publisher: StatePublisher
) -> None:
    client = await broker.client_with_queue()
    await publisher.publish()
    end = len(records(broker))
    assert await publisher.publish() == 1  # node
    await client.ask(1, "queue.declare", queue="r")
    client.publish(1, "", "q", b"1")
    await client.settle()
    await publisher.publish()
    assert {key for key, _ in records(broker)[end:]} == {"queue/q", "queue/r", "node"}
    end = len(records(broker))
    await client.ask(1, "queue.delete", queue="q")
    await client.closed()
    await publisher.publish()
    gone = {key for key, value in records(broker)[end:] if value is None}
    assert gone == {"queue/q", f"connection/{NAME}", f"channel/{NAME} (1)"}


async def test_what_is_old_is_published_again_and_what_is_before_it_deleted(
    broker: Broker, publisher: StatePublisher
) -> None:
    await broker.client_with_queue()
    await publisher.publish()
    clock = cast(ManualClock, broker.engine.clock)
    for _ in range(3):
        clock.advance(int(published.FULL_S * 1000) + 1)
        await publisher.publish()
    (log,) = (log for tp, log in broker.engine._store.partitions.items() if tp.topic == TOPIC)
    assert log.log_start_offset > 0
    assert "queue/q" in dict(records(broker, log.log_start_offset))


async def test_nothing_is_published_while_no_client_follows_the_topic(
    broker: Broker, publisher: StatePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "LOOK_S", 0.001)
    monkeypatch.setattr(published, "PERIOD_S", 0.001)
    clock = cast(ManualClock, broker.engine.clock)

    async def follow() -> dict[str, Any]:
        """Read as the gateway does, until there is a ``node``; return what was read."""
        start = position = log_of(broker).log_end_offset
        while "node" not in dict(records(broker, start)):
            part = PartitionRead(TOPIC, 0, position, 1 << 20)
            await broker.engine.records.read(ReadQuery([part], 5000, 1, 1 << 20))
            position = log_of(broker).log_end_offset
        return dict(records(broker, start))

    async def end() -> None:
        """Wait until ``node`` is deleted."""
        clock.advance(int(published.UNREAD_S * 1000))
        while not records(broker) or records(broker)[-1] != ("node", None):
            await asyncio.sleep(0.001)

    running = asyncio.create_task(publisher.run())
    try:
        await end()
        client = await broker.client_with_queue()
        assert records(broker) == [("node", None)]
        assert {"queue/q", "node"} <= (await follow()).keys()
        await end()
        written = log_of(broker).log_end_offset
        for name in ("r", "s"):
            await client.ask(1, "queue.declare", queue=name)
        await asyncio.sleep(0.02)  # many rounds, if there were any
        assert log_of(broker).log_end_offset == written
        found = await follow()
        assert {"queue/r", "queue/s"} <= found.keys()
        assert found["node"]["i"] == found["queue/r"]["i"]
    finally:
        running.cancel()


async def test_a_topic_that_is_made_while_no_client_follows_it_gets_a_round(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "LOOK_S", 0.001)
    monkeypatch.setattr(published, "PERIOD_S", 0.001)
    running = asyncio.create_task(broker.server.publisher().run())
    try:
        await broker.client_with_queue()
        await create(broker)
        while "node" not in dict(records(broker)):
            await asyncio.sleep(0.001)
        assert "queue/q" in dict(records(broker))
    finally:
        running.cancel()


async def test_with_many_facts_rounds_are_rare(broker: Broker, publisher: StatePublisher) -> None:
    await publisher.publish()
    assert publisher.pause_s == published.LOOK_S
    client = await broker.client().open()
    for number in range(500):
        client.say(1, "queue.declare", queue=f"q{number}", nowait=True)
    await client.settle()
    await publisher.publish()
    assert 0.5 < publisher.pause_s < 0.6


async def test_a_round_is_bounded_and_the_next_one_has_the_rest(
    broker: Broker, publisher: StatePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "MOST_RECORDS", 3)
    await broker.client_with_queue()
    counts = [await publisher.publish() for _ in range(6)]
    assert max(counts) == 4
    assert counts[-1] == 1
    assert "queue/q" in dict(records(broker))


async def test_more_facts_than_the_limit_are_counted(
    broker: Broker, publisher: StatePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "MOST_FACTS", 2)
    client = await broker.client_with_queue()
    for name in ("r", "s", "t"):
        await client.ask(1, "queue.declare", queue=name)
    await publisher.publish()
    found = dict(records(broker))
    assert found["node"]["left_out"] == 2 + 4  # queues, and exchanges
    assert "queue/t" not in found


async def test_a_value_that_is_too_long_has_no_arguments(
    broker: Broker, publisher: StatePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "LONGEST_VALUE", 600)
    await broker.client_with_queue(**{"x-long": "a" * 600, "x-bytes": b"\xff"})
    await publisher.publish()
    assert dict(records(broker))["queue/q"]["arguments"] == {}


async def test_many_facts_leave_the_loop_to_others(
    broker: Broker, publisher: StatePublisher
) -> None:
    client = await broker.client_with_queue()
    for number in range(100):
        await client.tell(1, "queue.declare", queue=f"q{number}")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await publisher.publish()
    task.cancel()
    assert turns >= 3


async def test_a_long_list_of_queues_leaves_the_loop_to_others(broker: Broker) -> None:
    client = await broker.client().open()
    for number in range(100):
        await client.tell(1, "queue.declare", queue=f"q{number:03}")
    work = management.answer(client.session.queues, client.session.security, b'{"list": "queues"}')
    turns, said = 0, b""
    while not said:
        try:
            work.send(None)
            turns += 1
        except StopIteration as end:
            said = end.value
    assert turns == 3
    found = json.loads(said)["result"]
    assert [each["name"] for each in found] == [f"q{number:03}" for number in range(100)]


async def test_a_channel_has_few_answers_on_their_way(broker: Broker) -> None:
    client = await broker.client_with_queue()
    await client.tell(1, "basic.consume", queue=REPLY_TO, no_ack=True, consumer_tag="a")
    client.heard()
    data = (1 << 9).to_bytes(2, "big") + bytes([len(REPLY_TO)]) + REPLY_TO.encode()
    for _ in range(1000):
        client.publish(1, "", management.KEY, b'{"list": "queues"}', data)
    await client.settle()
    bodies = [frame.value for name, frame in client.heard() if name == "contentbody"]
    assert len(bodies) == 1000
    assert bodies.count(management.TOO_MANY) == 1000 - MOST_ANSWERS


# --- closing -------------------------------------------------------------------------------------


async def asked(client: Client, **question: object) -> dict[str, Any]:
    """Ask over AMQP, as the command line does."""
    await client.tell(1, "basic.consume", queue=REPLY_TO, no_ack=True, consumer_tag="a")
    client.heard()
    data = (1 << 9).to_bytes(2, "big") + bytes([len(REPLY_TO)]) + REPLY_TO.encode()
    client.publish(1, "", management.KEY, json.dumps(question).encode(), data)
    await client.settle()
    bodies = [frame.value for name, frame in client.heard() if name == "contentbody"]
    return cast("dict[str, Any]", json.loads(bodies[-1]))


async def pair(broker: Broker) -> tuple[Client, Client]:
    """Return two clients whose connections have different names."""
    first = broker.client()
    first.link.peer = "127.0.0.1:2"
    return await first.open(), await broker.client().open()


async def test_an_administrator_closes_a_connection(broker: Broker) -> None:
    first, second = await pair(broker)
    name = "127.0.0.1:2 -> 127.0.0.1:5672"
    assert await asked(second, close="connection", name=name, reason="main\ntenance") == {
        "result": [name]
    }
    await first.settle()
    ((said, frame),) = first.heard()
    assert (said, frame.reply_code) == ("Connection.Close", 320)
    assert frame.reply_text == "CONNECTION_FORCED - main tenance"


async def test_a_long_reason_fits_into_the_reply_text(broker: Broker) -> None:
    first, second = await pair(broker)
    await asked(
        second, close="connection", name="127.0.0.1:2 -> 127.0.0.1:5672", reason="\u20ac" * 500
    )
    ((_, frame),) = first.heard()
    assert frame.reply_text.endswith("\u20ac")
    assert len(frame.reply_text.encode()) <= 255


async def test_an_unknown_connection_is_an_error(broker: Broker) -> None:
    _, client = await pair(broker)
    said = await asked(client, close="connection", name="x" * 5000)
    assert said["kind"] == "not_found"
    assert len(said["error"]) < 300
    connections, access = broker.server.shared.connections, client.session.access
    for question in (b"{}", b'{"name": 5}', b'{"name": "a", "reason": [1]}'):
        assert b"texts" in management.close(connections, access, "guest", question)


class Refusing:
    """The access of a user who may do nothing."""

    def check(self, *asked: object) -> None:
        raise AuthorizationError("not allowed")


async def test_a_user_without_the_right_closes_own_connections_only(broker: Broker) -> None:
    first, _ = await pair(broker)
    name = "127.0.0.1:2 -> 127.0.0.1:5672"
    question = json.dumps({"close": "connection", "name": name}).encode()
    connections, access = broker.server.shared.connections, cast(Any, Refusing())
    assert "not allowed" in str(management.close(connections, access, "alice", question))
    assert not first.heard()
    assert json.loads(management.close(connections, access, "guest", question)) == {
        "result": [name]
    }
    unknown = json.dumps({"close": "connection", "name": "x"}).encode()
    assert "not allowed" in str(management.close(connections, access, "guest", unknown))
