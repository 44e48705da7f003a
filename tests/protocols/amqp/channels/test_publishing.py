"""Publishing: confirms, returns, transactions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic

from tests.protocols.amqp.client import Broker, Client, publish_bytes
from tidemill.engine.queues.api import MAX_BODY_BYTES, Message
from tidemill.engine.queues.publish import LivePublisher
from tidemill.protocols.amqp.channels.confirms import Confirms
from tidemill.protocols.amqp.codec import methods
from tidemill.protocols.amqp.codec.properties import parse
from tidemill.protocols.amqp.metrics import Tally


def properties(**values: Any) -> bytes:
    return Basic.Properties(**values).marshal()


FULL_AFTER_TWO = {"x-max-length": 2, "x-overflow": "reject-publish"}


async def confirming(broker: Broker, **arguments: object) -> Client:
    client = await broker.client_with_queue(**arguments)
    await client.ask(1, "confirm.select")
    return client


def confirms(heard: list[tuple[str, Any]]) -> list[tuple[str, int, bool]]:
    return [(name, frame.delivery_tag, frame.multiple) for name, frame in heard]


async def test_messages_of_one_turn_are_confirmed_together(broker: Broker) -> None:
    client = await confirming(broker)
    for _ in range(5):
        client.publish(1, "", "q", b"x")
    assert client.heard() == []
    await client.settle()
    assert confirms(client.heard()) == [("Basic.Ack", 5, True)]
    client.publish(1, "", "q", b"x")
    await client.settle()
    assert confirms(client.heard()) == [("Basic.Ack", 6, False)]


async def test_a_confirm_waits_for_the_disk_and_a_refused_message_is_nacked(broker: Broker) -> None:
    client = await confirming(broker, **FULL_AFTER_TWO)
    broker.disk.hold()
    for _ in range(3):
        client.publish(1, "", "q", b"x")
    await client.settle()
    assert ("Basic.Ack", 2, True) not in confirms(client.heard())
    broker.disk.release()
    await client.settle()
    assert confirms(client.heard()) == [("Basic.Ack", 2, True)]


@pytest.mark.parametrize("is_slow", [False, True])
async def test_the_metric_of_confirms_counts_what_is_confirmed(
    broker: Broker, is_slow: bool
) -> None:
    broker.server.shared.tally = tally = Tally()
    client = await broker.client_with_queue()
    if is_slow:
        broker.disk.hold()
    client.publish(1, "", "q", b"before the confirms, so it gets none")
    if not is_slow:
        await client.settle()
    await client.ask(1, "confirm.select")
    client.publish(1, "", "q", b"stored")
    for _ in range(2):
        client.publish(1, "", "nowhere", b"dropped, and confirmed")
    broker.disk.release()
    await client.settle()
    assert tally.confirmed == 3


async def test_a_message_without_a_queue_is_confirmed_and_returned_first_if_mandatory(
    broker: Broker,
) -> None:
    client = await confirming(broker)
    client.publish(1, "", "nowhere", b"a")
    client.publish(1, "", "nowhere", b"b", properties(message_id="m"), mandatory=True)
    await client.settle()
    heard = client.heard()
    assert [name for name, _ in heard] == [
        "Basic.Ack",
        "Basic.Return",
        "header",
        "contentbody",
        "Basic.Ack",
    ]
    _, returned, content, body, _ = (frame for _, frame in heard)
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key) == ("", "nowhere")
    assert (content.properties.message_id, body.value) == ("m", b"b")


async def test_messages_before_confirm_select_are_not_confirmed(broker: Broker) -> None:
    client = await broker.client_with_queue()
    client.publish(1, "", "q", b"before")
    client.say(1, "confirm.select")
    client.publish(1, "", "q", b"after")
    await client.settle()
    assert [name for name, _ in client.heard()] == ["Confirm.SelectOk", "Basic.Ack"]


class Wire:
    """Collects what confirms send."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, parts: list[bytes]) -> None:
        self.sent += parts

    def acknowledged(self) -> list[int]:
        """Return (negative: refused) tags as a client counts them."""
        from pamqp import frame

        data, tags = b"".join(self.sent), []
        while data:
            count, _, method = frame.unmarshal(data)
            data = data[count:]
            assert isinstance(method, Basic.Ack | Basic.Nack)
            sign = 1 if isinstance(method, Basic.Ack) else -1
            assert method.delivery_tag is not None
            tags.append(sign * method.delivery_tag * (1000 if method.multiple else 1))
        self.sent.clear()
        return tags


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([([1], [])], [1]),
        ([([1, 2, 3], [])], [3000]),
        ([([3, 1], []), ([2], [])], [1, 3, 2]),
        ([([2, 3], []), ([1], [])], [2, 3, 1]),
        ([([2, 5], []), ([1, 3], []), ([4, 6], [])], [2, 5, 3000, 6000]),
        ([([1, 3], [2])], [-2, 3000]),
        ([([], [1, 2]), ([3], [])], [-1, -2, 3]),
        ([([2], []), ([], [1]), ([3], [])], [2, -1, 3]),
        ([([0, 0, 1], [])], [1]),
        ([([0], [0])], []),
    ],
)
def test_confirms_are_few_and_complete(
    batches: list[tuple[list[int], list[int]]], expected: list[int]
) -> None:
    wire = Wire()
    confirms = Confirms(1, wire)  # type: ignore[arg-type]
    tags: list[int] = []
    for ok, refused in batches:
        confirms.settle(ok, refused)
        tags += wire.acknowledged()
    assert tags == expected


async def test_what_is_published_reaches_the_engine_with_its_properties(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[tuple[str, str, Message]] = []
    publish = LivePublisher.publish

    def noted(
        self: LivePublisher, tag: int, exchange: str, key: str, message: Message, *more: Any
    ) -> bool:
        published.append((exchange, key, message))
        return publish(self, tag, exchange, key, message, *more)

    monkeypatch.setattr(LivePublisher, "publish", noted)
    client = await broker.client_with_queue()
    data = properties(
        headers={"n": 1, "s": "text", "list": [1], "x-delay": 250},
        expiration="1500",
        priority=4,
        user_id="guest",
    )
    client.publish(1, "", "q", b"body", data)
    ((exchange, key, message),) = published
    assert (exchange, key, message.value, message.key) == ("", "q", b"body", b"q")
    assert (message.ttl_ms, message.priority, message.delay_ms) == (1500, 4, 250)
    assert message.headers == (
        ("amqp.properties", data),
        ("n", b"1"),
        ("s", b"text"),
        ("x-delay", b"250"),
    )
    assert message.routing_headers is not None
    assert message.routing_headers()["list"] == [1]


async def test_cc_and_bcc_are_more_keys_and_bcc_is_not_delivered(broker: Broker) -> None:
    client = await broker.client().open()
    for queue in ("a", "b", "c"):
        await client.ask(1, "queue.declare", queue=queue)
    data = properties(headers={"CC": ["b"], "BCC": ["c"]})
    client.publish(1, "", "a", b"x", data)
    await client.settle()
    for queue in ("a", "b", "c"):
        await client.tell(1, "basic.get", queue=queue, no_ack=True)
        _, content, _ = (frame for _, frame in client.heard())
        assert content.properties.headers == {"CC": ["b"]}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"user_id": "other"},
            "user_id property set to 'other' but authenticated user was 'guest'",
        ),
        ({"expiration": "soon"}, "invalid expiration 'soon'"),
        ({"expiration": "-1"}, "invalid expiration '-1'"),
        ({"headers": {"CC": "a"}}, "unexpected type of header 'CC'"),
        ({"headers": {"BCC": [1]}}, "header 'BCC' has values that are not strings"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "fast reply consumer does not exist"),
    ],
)
async def test_invalid_properties_close_the_channel(
    broker: Broker, values: dict[str, Any], problem: str
) -> None:
    client = await broker.client().open()
    client.publish(1, "", "q", b"x", properties(**values))
    ((name, closed),) = client.heard()
    assert (name, closed.reply_code) == ("Channel.Close", 406)
    assert problem in closed.reply_text


async def test_properties_that_can_not_be_decoded_close_the_connection(broker: Broker) -> None:
    client = await broker.client().open()
    client.publish(1, "", "q", b"x", b"\x80\x00\xff")
    ((name, closed),) = client.heard()
    assert (name, closed.reply_code) == ("Connection.Close", 502)


async def test_what_is_not_on_disk_counts_against_the_limits_of_the_connection(
    broker: Broker,
) -> None:
    client = await confirming(broker)
    broker.disk.hold()
    client.publish(1, "", "q", b"x" * 1000)
    client.publish(1, "", "q", b"x" * 500)
    assert client.link.held >= 1500
    broker.disk.release()
    await client.settle()
    assert client.link.held == 0


async def test_what_is_not_on_disk_is_not_counted_any_more_after_the_end(broker: Broker) -> None:
    client = await confirming(broker)
    broker.disk.hold()
    client.publish(1, "", "q", b"x" * 1000)
    assert client.link.held >= 1000
    await client.closed()
    assert client.link.held == 0


async def test_a_get_finds_what_the_channel_published_before(broker: Broker) -> None:
    client = await broker.client_with_queue()
    client.publish(1, "", "q", b"mine")
    await client.tell(1, "basic.get", queue="q", no_ack=True)
    assert client.names() == ["Basic.GetOk", "header", "contentbody"]
    client.publish(1, "", "q", b"mine")
    declared = await client.ask(1, "queue.declare", queue="q", passive=True)
    assert declared.message_count == 1


# --- transactions ----------------------------------------------------------------------------


async def transacting(broker: Broker, **arguments: object) -> Client:
    client = await broker.client_with_queue(**arguments)
    await client.ask(1, "tx.select")
    return client


async def test_a_commit_publishes_and_is_answered_when_all_is_on_disk(broker: Broker) -> None:
    client = await transacting(broker)
    client.publish(1, "", "q", b"1")
    client.publish(1, "", "nowhere", b"2", mandatory=True)
    await client.settle()
    assert broker.queue().published == 0
    broker.disk.hold()
    await client.tell(1, "tx.commit")
    assert client.names() == ["Basic.Return", "header", "contentbody"]
    broker.disk.release()
    await client.settle()
    assert client.names() == ["Tx.CommitOk"]


async def test_a_rollback_forgets_messages_and_settlements(broker: Broker) -> None:
    client = await transacting(broker)
    client.publish(1, "", "q", b"kept")
    await client.ask(1, "tx.commit")
    await client.tell(1, "basic.get", queue="q")
    client.publish(1, "", "q", b"dropped")
    client.say(1, "basic.ack", delivery_tag=1)
    assert (await client.ask(1, "tx.rollback")).name == "Tx.RollbackOk"
    assert broker.queue().published == 1
    client.say(1, "basic.ack", delivery_tag=1)
    assert (await client.ask(1, "tx.commit")).name == "Tx.CommitOk"
    assert broker.queue().unacknowledged == 0


async def test_settlements_wait_for_the_commit(broker: Broker) -> None:
    client = await transacting(broker)
    for body in (b"1", b"2", b"3"):
        client.publish(1, "", "q", body)
    await client.ask(1, "tx.commit")
    for _ in range(3):
        await client.ask(1, "basic.get", queue="q")
    client.say(1, "basic.ack", delivery_tag=1)
    client.say(1, "basic.nack", delivery_tag=2, requeue=True)
    client.say(1, "basic.reject", delivery_tag=3)
    assert broker.queue().unacknowledged == 3
    await client.ask(1, "tx.commit")
    assert broker.queue().unacknowledged == 0
    assert await broker.values() == [b"2"]


async def test_a_failed_commit_returns_what_it_settled(broker: Broker) -> None:
    client = await transacting(broker, **FULL_AFTER_TWO)
    for _ in range(2):
        client.publish(1, "", "q", b"x")
    await client.ask(1, "tx.commit")
    await client.ask(1, "basic.get", queue="q")
    for _ in range(2):  # one more than there is space for
        client.publish(1, "", "q", b"y")
    client.say(1, "basic.ack", delivery_tag=1)
    closed = await client.ask(1, "tx.commit")
    assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
    assert broker.queue().unacknowledged == 0
    assert await broker.values() == [b"x", b"x", b"y"]


async def test_a_connection_that_is_lost_in_a_commit_returns_what_it_settled(
    broker: Broker,
) -> None:
    client = await transacting(broker)
    client.publish(1, "", "q", b"1")
    await client.ask(1, "tx.commit")
    await client.ask(1, "basic.get", queue="q")
    broker.disk.hold()
    client.publish(1, "", "q", b"2")
    client.say(1, "basic.ack", delivery_tag=1)
    await client.tell(1, "tx.commit")
    client.session.closed()
    broker.disk.release()
    await client.settle()
    assert broker.queue().unacknowledged == 0
    assert await broker.values() == [b"1", b"2"]
    assert client.server.shared.kept.size == 0


async def test_a_message_from_before_the_transaction_does_not_fail_its_commit(
    broker: Broker,
) -> None:
    client = await broker.client_with_queue(**FULL_AFTER_TWO)
    await client.ask(1, "queue.declare", queue="other")
    for _ in range(2):
        client.publish(1, "", "q", b"x")
    await client.settle()
    client.feed(
        publish_bytes(1, "", "q", b"refused")
        + methods.encode(1, "tx.select")
        + publish_bytes(1, "", "other", b"y")
        + methods.encode(1, "tx.commit")
    )
    await client.settle()
    assert client.names() == ["Tx.SelectOk", "Tx.CommitOk"]
    assert await broker.values("other") == [b"y"]


async def test_a_refused_message_fails_the_commit(broker: Broker) -> None:
    client = await transacting(broker, **FULL_AFTER_TWO)
    for _ in range(3):
        client.publish(1, "", "q", b"x")
    closed = await client.ask(1, "tx.commit")
    assert (closed.name, closed.reply_code) == ("Channel.Close", 406)


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("tx.select", "confirm.select", "cannot switch from tx to confirm mode"),
        ("confirm.select", "tx.select", "cannot switch from confirm to tx mode"),
        ("confirm.select", "tx.commit", "channel is not transactional"),
        ("confirm.select", "tx.rollback", "channel is not transactional"),
    ],
)
async def test_modes_exclude_each_other(
    broker: Broker, first: str, second: str, problem: str
) -> None:
    client = await broker.client().open()
    await client.ask(1, first)
    closed = await client.ask(1, second)
    assert (closed.reply_code, closed.reply_text) == (406, f"PRECONDITION_FAILED - {problem}")


async def test_bytes_that_wait_for_a_commit_count(broker: Broker) -> None:
    client = await transacting(broker)
    client.publish(1, "", "q", b"x" * 1000)
    assert client.link.held > 1000
    await client.tell(1, "tx.rollback")
    client.publish(1, "", "q", b"")
    assert client.link.held < 1000


def test_the_helper_of_this_module_makes_properties() -> None:
    assert parse(properties(priority=3)).values["priority"] == 3


async def test_a_body_that_no_queue_can_store_closes_the_channel(broker: Broker) -> None:
    client = await broker.client_with_queue()
    too_large = bytearray(publish_bytes(1, "", "q", b"x"))
    size_at = too_large.index(b"\0\0\0\0\0\0\0\x01", too_large.index(b"\x3c\0\0\0"))
    too_large[size_at : size_at + 8] = (MAX_BODY_BYTES + 1).to_bytes(8, "big")
    client.feed(bytes(too_large))
    await client.settle()
    ((name, close),) = client.heard()
    assert (name, close.reply_code) == ("Channel.Close", 406)
    assert f"message size {MAX_BODY_BYTES + 1} is larger than" in close.reply_text
    assert str(MAX_BODY_BYTES) in close.reply_text
