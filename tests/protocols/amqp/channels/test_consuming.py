"""Consuming: prefetch, settling, cancelling, direct replies, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pamqp.commands import Basic

from tests.protocols.amqp.client import Broker, Client
from tidemill.engine.queues.api import Delivery
from tidemill.engine.queues.live.consumers import LiveConsumer
from tidemill.protocols.amqp import accounts
from tidemill.protocols.amqp.channels import channel
from tidemill.protocols.amqp.codec import methods


async def consuming(
    broker: Broker, messages: int = 0, channels: int = 1, **consume: object
) -> Client:
    """Return a client with a queue of messages 0, 1, 2..., and a consumer of it."""
    client = await broker.client().open(channels)
    await client.ask(1, "queue.declare", queue="q")
    await fill(client, messages)
    if consume:
        prefetch = consume.pop("prefetch", 0)
        await client.ask(1, "basic.qos", prefetch_count=prefetch)
        await client.tell(1, "basic.consume", queue="q", consumer_tag="c", **consume)
    return client


async def fill(client: Client, count: int) -> None:
    for number in range(count):
        client.publish(1, "", "q", b"%d" % number)
    await client.settle()


def delivered(client: Client) -> list[tuple[int, int, bool]]:
    """Return (delivery tag, body, redelivered) of the deliveries that were heard."""
    heard = client.heard()
    methods = [frame for name, frame in heard if name == "Basic.Deliver"]
    bodies = [int(frame.value) for name, frame in heard if name == "contentbody"]
    return [
        (method.delivery_tag, body, method.redelivered)
        for method, body in zip(methods, bodies, strict=True)
    ]


def tags_and_bodies(client: Client) -> list[tuple[int, int]]:
    return [(tag, body) for tag, body, _ in delivered(client)]


async def test_a_consumer_gets_as_many_messages_as_its_prefetch_allows(broker: Broker) -> None:
    client = await consuming(broker, 5, no_ack=False, prefetch=2)
    assert tags_and_bodies(client) == [(1, 0), (2, 1)]
    await client.tell(1, "basic.ack", delivery_tag=1)
    assert tags_and_bodies(client) == [(3, 2)]
    await client.tell(1, "basic.ack", delivery_tag=3, multiple=True)
    assert tags_and_bodies(client) == [(4, 3), (5, 4)]
    await client.tell(1, "basic.ack", delivery_tag=0, multiple=True)
    assert broker.queue().unacknowledged == 0


async def test_a_prefetch_of_the_channel_counts_all_its_consumers(broker: Broker) -> None:
    client = await consuming(broker, 9)
    await client.ask(1, "basic.qos", prefetch_count=3, **{"global": True})
    for tag in ("a", "b"):
        await client.tell(1, "basic.consume", queue="q", consumer_tag=tag)
    assert len(delivered(client)) == 3
    await client.tell(1, "basic.qos", prefetch_count=5, **{"global": True})
    assert broker.queue().unacknowledged == 5
    client.heard()
    await client.tell(1, "basic.ack", delivery_tag=2, multiple=True)
    assert len(delivered(client)) == 2


async def test_without_acknowledgements_everything_is_sent(broker: Broker) -> None:
    client = await consuming(broker, 300, no_ack=True, prefetch=1)
    assert [body for _, body, _ in delivered(client)] == list(range(300))
    assert broker.queue().unacknowledged == 0


async def test_a_client_that_does_not_read_gets_nothing_until_it_does(broker: Broker) -> None:
    client = await consuming(broker, 0, no_ack=True)
    client.link.is_congested = True
    client.heard()
    await fill(client, 3)
    assert delivered(client) == []
    client.link.is_congested = False
    client.session.writable()
    await client.settle()
    assert len(delivered(client)) == 3


async def test_returned_messages_are_redelivered_at_their_place(broker: Broker) -> None:
    client = await consuming(broker, 3, no_ack=False, prefetch=2)
    client.heard()
    await client.tell(1, "basic.nack", delivery_tag=2, multiple=True, requeue=True)
    assert delivered(client) == [(3, 0, True), (4, 1, True)]
    client.say(1, "basic.reject", delivery_tag=3, requeue=False)
    await client.tell(1, "basic.nack", delivery_tag=4)
    assert tags_and_bodies(client) == [(5, 2)]
    queue = broker.queue()
    assert (queue.redelivered, queue.acknowledged, queue.unacknowledged) == (2, 0, 1)


async def test_acknowledgements_that_arrive_together_are_passed_on_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: list[list[bytes]] = []
    acknowledge = LiveConsumer.acknowledge

    def noted(self: LiveConsumer, deliveries: Sequence[Delivery]) -> None:
        acknowledged.append([bytes(delivery.value) for delivery in deliveries])
        acknowledge(self, deliveries)

    monkeypatch.setattr(LiveConsumer, "acknowledge", noted)
    client = await consuming(broker, 4, no_ack=False)
    client.feed(b"".join(methods.encode(1, "basic.ack", delivery_tag=t) for t in (1, 2, 4)))
    await client.settle()
    assert acknowledged == [[b"0", b"1", b"3"]]


@pytest.mark.parametrize("method", ["basic.ack", "basic.nack", "basic.reject"])
async def test_an_unknown_delivery_tag_closes_the_channel(broker: Broker, method: str) -> None:
    client = await consuming(broker, 1, no_ack=False)
    client.heard()
    closed = await client.ask(1, method, delivery_tag=9)
    assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
    assert closed.reply_text == "PRECONDITION_FAILED - unknown delivery tag 9"
    assert broker.queue().ready == 1, "it returned to the queue"


async def test_a_message_can_be_settled_once(broker: Broker) -> None:
    client = await consuming(broker, 2, no_ack=False)
    client.heard()
    client.say(1, "basic.ack", delivery_tag=1)
    closed = await client.ask(1, "basic.ack", delivery_tag=1)
    assert closed.reply_code == 406


async def test_recover_returns_everything(broker: Broker) -> None:
    client = await consuming(broker, 3, no_ack=False)
    client.heard()
    client.say(1, "basic.ack", delivery_tag=2)
    await client.tell(1, "basic.recover", requeue=True)
    names = [name for name, _ in client.heard() if name.startswith("Basic")]
    assert names == ["Basic.RecoverOk", "Basic.Deliver", "Basic.Deliver"]


async def test_get_and_its_settlement(broker: Broker) -> None:
    client = await consuming(broker, 2)
    await client.tell(1, "basic.get", queue="q")
    got, _, body = (frame for _, frame in client.heard())
    assert (got.delivery_tag, got.message_count, body.value) == (1, 1, b"0")
    client.say(1, "basic.nack", delivery_tag=1, requeue=True)
    await client.tell(1, "basic.get", queue="q", no_ack=True)
    got = client.heard()[0][1]
    assert (got.delivery_tag, got.redelivered) == (2, True)
    await client.ask(1, "basic.get", queue="q", no_ack=True)
    assert (await client.ask(1, "basic.get", queue="q")).name == "Basic.GetEmpty"


async def test_closing_a_channel_returns_its_messages(broker: Broker) -> None:
    client = await consuming(broker, 3, no_ack=False)
    client.heard()
    assert (await client.ask(1, "channel.close")).name == "Channel.CloseOk"
    queue = broker.queue()
    assert (queue.ready, queue.consumers) == (3, ())


async def test_losing_the_connection_returns_its_messages(broker: Broker) -> None:
    client = await consuming(broker, 3, no_ack=False)
    await client.closed()
    assert broker.queue().ready == 3


async def test_a_cancelled_consumer_keeps_what_is_out(broker: Broker) -> None:
    client = await consuming(broker, 3, no_ack=False, prefetch=2)
    client.heard()
    answer = await client.ask(1, "basic.cancel", consumer_tag="c")
    assert (answer.name, answer.consumer_tag) == ("Basic.CancelOk", "c")
    await client.tell(1, "basic.ack", delivery_tag=2)
    assert client.heard() == []
    assert broker.queue().unacknowledged == 1
    assert (await client.ask(1, "basic.cancel", consumer_tag="never")).name == "Basic.CancelOk"


async def test_a_consumer_whose_queue_is_deleted_is_notified(broker: Broker) -> None:
    client = await consuming(broker, 0, channels=2, no_ack=True)
    client.heard()
    await client.tell(2, "queue.delete", queue="q")
    heard = dict(client.heard())
    assert heard["Basic.Cancel"].consumer_tag == "c"
    assert heard["Queue.DeleteOk"].message_count == 0


@pytest.mark.parametrize(
    ("consume", "code"),
    [
        ({"queue": "missing"}, 404),
        ({"queue": "q", "exclusive": True}, 403),
        ({"queue": "q", "consumer_tag": "c"}, 530),
        ({"queue": "amq.rabbitmq.reply-to"}, 406),
    ],
)
async def test_consumers_that_are_refused(
    broker: Broker, consume: dict[str, Any], code: int
) -> None:
    client = await consuming(broker, 0, no_ack=True)
    client.heard()
    closed = await client.ask(1, "basic.consume", **consume)
    assert closed.reply_code == code


async def test_without_a_name_the_last_declared_queue_is_meant(broker: Broker) -> None:
    client = await broker.client().open(channels=2)
    declared = await client.ask(1, "queue.declare")
    assert declared.queue.startswith("amq.gen-")
    consumer = await client.ask(1, "basic.consume")
    assert consumer.consumer_tag.startswith("amq.ctag-")
    await client.ask(1, "queue.bind", exchange="amq.direct")
    (binding,) = broker.engine.queues.bindings()
    assert (binding.source, binding.destination) == ("amq.direct", declared.queue)
    assert binding.routing_key == declared.queue
    closed = await client.ask(2, "basic.consume")
    assert closed.reply_code == 404


# --- direct replies --------------------------------------------------------------------------


async def asking(broker: Broker) -> tuple[Client, Client, str]:
    """Return a client that waits for replies, one that replies, and the name to reply to."""
    asker = await broker.client().open()
    server = await broker.client().open()
    await server.ask(1, "queue.declare", queue="rpc")
    await asker.ask(1, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True)
    data = Basic.Properties(reply_to="amq.rabbitmq.reply-to", correlation_id="7").marshal()
    asker.publish(1, "", "rpc", b"question", data)
    await asker.settle()
    await server.tell(1, "basic.get", queue="rpc", no_ack=True)
    _, content, _ = (frame for _, frame in server.heard())
    assert content.properties.correlation_id == "7"
    return asker, server, content.properties.reply_to


async def test_a_direct_reply_reaches_the_channel_that_asked(broker: Broker) -> None:
    asker, server, reply_to = await asking(broker)
    assert reply_to.startswith("amq.rabbitmq.reply-to.")
    declared = await server.ask(1, "queue.declare", queue=reply_to, passive=True)
    assert (declared.name, declared.queue) == ("Queue.DeclareOk", reply_to)
    server.publish(1, "", reply_to, b"answer", mandatory=True)
    assert server.heard() == []
    deliver, _, body = (frame for _, frame in asker.heard())
    assert (deliver.routing_key, body.value) == (reply_to, b"answer")


async def test_a_reply_to_a_client_that_is_gone_is_returned_if_mandatory(broker: Broker) -> None:
    asker, server, reply_to = await asking(broker)
    await asker.closed()
    server.publish(1, "", reply_to, b"answer", mandatory=True)
    assert server.names() == ["Basic.Return", "header", "contentbody"]
    closed = await server.ask(1, "queue.declare", queue=reply_to, passive=True)
    assert closed.reply_code == 404


async def test_a_second_reply_consumer_is_refused_and_after_a_cancel_it_is_not(
    broker: Broker,
) -> None:
    client = await broker.client().open()
    consume = {"queue": "amq.rabbitmq.reply-to", "no_ack": True}
    first = await client.ask(1, "basic.consume", **consume)
    await client.ask(1, "basic.cancel", consumer_tag=first.consumer_tag)
    assert (await client.ask(1, "basic.consume", **consume)).name == "Basic.ConsumeOk"
    closed = await client.ask(1, "basic.consume", **consume)
    assert closed.reply_text == "PRECONDITION_FAILED - reply consumer already set"


async def test_bodies_of_unsettled_deliveries_are_bounded_in_bytes(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "KEPT_BYTES", 2)
    client = await consuming(broker, 4, no_ack=False, prefetch=10)
    kept = client.server.shared.kept
    assert tags_and_bodies(client) == [(1, 0), (2, 1), (3, 2), (4, 3)]
    unsettled = client.session._channels[1].consuming._unsettled.values()
    assert [bytes(delivery.value) for _, delivery in unsettled] == [b"0", b"1", b"", b""]
    assert kept.size == 2
    await client.tell(1, "basic.ack", delivery_tag=1)
    assert kept.size == 1
    await client.ask(1, "channel.close")
    assert kept.size == 0


async def test_the_consumers_of_a_connection_have_a_limit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MOST_CONSUMERS", 3)
    client = await consuming(broker, channels=2)
    for number in range(3):
        await client.ask(1 + number % 2, "basic.consume", queue="q", consumer_tag=str(number))
    await client.ask(2, "basic.cancel", consumer_tag="1")
    assert (await client.ask(2, "basic.consume", queue="q")).name == "Basic.ConsumeOk"
    other = await broker.client().open()
    assert (await other.ask(1, "basic.consume", queue="q")).name == "Basic.ConsumeOk"
    close = await client.ask(1, "basic.consume", queue="q")
    assert (close.name, close.reply_code) == ("Connection.Close", 530)
    assert "maximum (3) of consumers" in close.reply_text
    assert len(broker.queue().consumers) == 1
