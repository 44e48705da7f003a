"""What clients of RabbitMQ rely on, against tidemill and, where it is installed, RabbitMQ itself.

``docs/amqp-compatibility.md`` lists what is compatible; each test names its rows with ``row``.
Where the two differ, the test asks for ``server.name``.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bench.queues.brokers import AmqpBroker, rabbitmq, rabbitmq_server, tidemill
from pamqp import commands, header

from tests.interop.amqp_wire import WireClient
from tidemill.protocols.amqp.codec import methods
from tidemill.state.routing.arguments import (
    CONSUMER_ARGUMENTS,
    EXCHANGE_ARGUMENTS,
    QUEUE_ARGUMENTS,
)

_numbers = itertools.count(1)
PAGE = Path(__file__).parents[2] / "docs" / "amqp-compatibility.md"
Test = TypeVar("Test", bound=Callable[..., object])
TESTED: set[str] = set()
"""The rows of the page that have a test here."""
ELSEWHERE = {
    # What takes minutes or a kill in RabbitMQ, or has no sign that a client sees there.
    "basic.deliver": "tests/engine/queues/test_delivery.py",
    "basic.get-ok": "tests/engine/queues/test_delivery.py",
    "connection.blocked": "tests/protocols/amqp/test_session.py",
    "connection.unblocked": "tests/protocols/amqp/test_session.py",
    "x-retain": "tests/engine/queues/test_declarations.py",
    "30 minutes without an acknowledgement": "tests/interop/test_amqp_clients.py",
}
NO_PROTOCOL = {
    "Policies, operator policies",
    "Management API that declares or publishes",
    "Shovel, federation",
}
"""What is not a part of AMQP 0-9-1, so that no client can ask for it."""


def row(*names: str) -> Callable[[Test], Test]:
    """Say which rows of the page a test is about."""
    TESTED.update(names)
    return lambda test: test


@pytest.fixture(scope="module", params=["tidemill", "rabbitmq"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AmqpBroker]:
    folder = tmp_path_factory.mktemp("amqp")
    if request.param == "tidemill":
        with tidemill(folder) as broker:
            yield broker
        return
    if rabbitmq_server() is None:
        pytest.skip("rabbitmq-server is not installed")
    with rabbitmq(folder) as found:
        assert found is not None
        yield found


@pytest.fixture
def client(server: AmqpBroker) -> Iterator[WireClient]:
    with WireClient(server.port) as client:
        yield client.open()


@pytest.fixture
def name() -> str:
    return f"name-{next(_numbers)}"


def closed(answer: Any) -> int:
    """Return the code with which a channel was closed; 0 if it was not."""
    return answer.reply_code or 0 if isinstance(answer, commands.Channel.Close) else 0


def headers_of(client: WireClient, queue: str) -> dict[str, Any]:
    """Take a message from a queue and return its headers."""
    got = client.get(queue)
    assert got is not None
    return dict(got.properties.headers or {})


# --- bindings ------------------------------------------------------------------------------------


@row("queue.unbind", "exchange.unbind")
def test_unbinding_what_does_not_exist_is_ok(client: WireClient, name: str) -> None:
    client.declare(name)
    for queue, exchange in ((name, "amq.direct"), (name, "gone"), ("gone", "amq.direct")):
        answer = client.ask(1, commands.Queue.Unbind(0, queue, exchange, "k"))
        assert answer.name == "Queue.UnbindOk", (queue, exchange)
    for destination, source in (("gone", "amq.direct"), ("amq.direct", "gone"), ("gone", "gone")):
        answer = client.ask(1, commands.Exchange.Unbind(0, destination, source, "k"))
        assert answer.name == "Exchange.UnbindOk", (destination, source)


@row("queue.bind")
@pytest.mark.parametrize(("queue", "exchange"), [("gone", "amq.direct"), ("", "gone")])
def test_binding_what_does_not_exist_is_not_found(
    client: WireClient, name: str, queue: str, exchange: str
) -> None:
    client.declare(name)
    assert closed(client.ask(1, commands.Queue.Bind(0, queue or name, exchange, "k"))) == 404


@row("CC", "BCC", "exchange.bind")
def test_cc_and_bcc_are_routed_through_bindings_of_exchanges(client: WireClient, name: str) -> None:
    for kind in ("first", "second"):
        client.ask(1, commands.Exchange.Declare(0, f"{name}-{kind}", "direct"))
    for key in ("to", "cc", "bcc"):
        client.declare(f"{name}-{key}")
        client.ask(1, commands.Queue.Bind(0, f"{name}-{key}", f"{name}-second", key))
    client.ask(1, commands.Exchange.Bind(0, f"{name}-second", f"{name}-first", "to"))
    client.publish(f"{name}-first", "to", b"m", headers={"CC": ["cc"], "BCC": ["bcc"]})
    for key in ("to", "cc", "bcc"):
        client.wait_for(f"{name}-{key}", 1)
        assert headers_of(client, f"{name}-{key}") == {"CC": ["cc"]}


@row("x-death", "x-dead-letter-routing-key")
def test_x_death_has_the_keys_of_cc(client: WireClient, name: str) -> None:
    client.declare(f"{name}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    client.declare(name, arguments=arguments)
    client.publish("", name, b"m", headers={"CC": ["other"], "BCC": ["hidden"]})
    client.wait_for(name, 1)
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    tag = client.message().method.delivery_tag
    client.send(1, commands.Basic.Reject(tag, False))
    client.wait_for(f"{name}-dead", 1)
    headers = headers_of(client, f"{name}-dead")
    assert headers["x-death"][0]["routing-keys"] == [name, "other"]
    assert "CC" not in headers  # the queue has a key for its dead letters


@row("x-dead-letter-exchange")
def test_a_dead_letter_goes_to_the_keys_of_cc_and_bcc(client: WireClient, name: str) -> None:
    client.ask(1, commands.Exchange.Declare(0, name, "direct"))
    for key in (name, "cc", "bcc"):
        client.declare(f"{name}-{key}")
        client.ask(1, commands.Queue.Bind(0, f"{name}-{key}", name, key))
    client.declare(name, arguments={"x-dead-letter-exchange": name})
    client.publish("", name, b"m", headers={"CC": ["cc"], "BCC": ["bcc"]})
    client.wait_for(name, 1)
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    client.send(1, commands.Basic.Reject(client.message().method.delivery_tag, False))
    for key in (name, "cc", "bcc"):
        client.wait_for(f"{name}-{key}", 1)
        headers = headers_of(client, f"{name}-{key}")
        assert headers["CC"] == ["cc"]
        assert headers["x-death"][0]["routing-keys"] == [name, "cc"]


# --- queues --------------------------------------------------------------------------------------


@row("queue.delete")
def test_the_answer_to_a_deletion_comes_before_the_cancel_of_consumers(
    client: WireClient, name: str
) -> None:
    client.declare(name)
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    assert client.ask(1, commands.Queue.Delete(0, name)).name == "Queue.DeleteOk"
    cancel = client.next(1)
    assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "c")


@row("x-max-priority", "priority")
def test_255_priorities_are_delivered_in_order(client: WireClient, name: str) -> None:
    client.declare(name, arguments={"x-max-priority": 255})
    priorities = [3, 250, 32, 255, 31, 0, 249, 33, 254, 1]
    for priority in priorities:
        client.publish("", name, b"%d" % priority, priority=priority)
    client.wait_for(name, len(priorities))
    got = [client.get(name) for _ in priorities]
    assert [int(each.body) for each in got if each] == sorted(priorities, reverse=True)


@row("any other")
@pytest.mark.parametrize("kind", ["queue", "exchange", "consumer", "binding"])
def test_arguments_that_are_not_known_are_accepted(
    client: WireClient, name: str, kind: str
) -> None:
    arguments: Any = {"x-of-some-plugin": "value"}
    client.declare(name, arguments=arguments if kind == "queue" else {})
    if kind == "exchange":
        answer = client.ask(1, commands.Exchange.Declare(0, name, "direct", arguments=arguments))
        assert answer.name == "Exchange.DeclareOk"
    elif kind == "consumer":
        answer = client.ask(1, commands.Basic.Consume(0, name, "c", arguments=arguments))
        assert answer.name == "Basic.ConsumeOk"
    elif kind == "binding":
        answer = client.ask(1, commands.Queue.Bind(0, name, "amq.direct", "k", arguments=arguments))
        assert answer.name == "Queue.BindOk"
    assert client.declare(name, passive=True).name == "Queue.DeclareOk"


@row("x-expires")
def test_a_passive_declaration_keeps_a_queue_that_expires(client: WireClient, name: str) -> None:
    client.declare(name, arguments={"x-expires": 800})
    end = time.monotonic() + 1.6
    while time.monotonic() < end:
        assert client.declare(name, passive=True).name == "Queue.DeclareOk"
        time.sleep(0.2)
    time.sleep(1.5)
    assert closed(client.declare(name, passive=True)) == 404


@row("x-message-ttl")
def test_a_message_with_ttl_0_that_is_requeued_is_dropped(client: WireClient, name: str) -> None:
    client.declare(name, arguments={"x-message-ttl": 0})
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    client.publish("", name, b"m")
    tag = client.message().method.delivery_tag
    client.send(1, commands.Basic.Reject(tag, True))
    assert client.is_quiet()


# --- consumers -----------------------------------------------------------------------------------


@row("basic.qos", "basic.get")
def test_messages_of_get_do_not_count_against_the_prefetch_of_a_channel(
    client: WireClient, name: str
) -> None:
    for queue in (name, f"{name}-2"):
        client.declare(queue)
    client.ask(1, commands.Basic.Qos(0, 2, True))
    for n in range(3):
        client.publish("", name, b"%d" % n)
    client.wait_for(name, 3)
    for _ in range(3):
        assert client.get(name, no_ack=False) is not None
    client.ask(1, commands.Basic.Consume(0, f"{name}-2", "c"))
    client.publish("", f"{name}-2", b"m")
    assert client.message(seconds=2).body == b"m"


def test_an_idle_consumer_gets_a_message_before_a_get(server: AmqpBroker, name: str) -> None:
    with WireClient(server.port) as consumer, WireClient(server.port) as getter:
        consumer.open().declare(name)
        getter.open()
        consumer.ask(1, commands.Basic.Consume(0, name, "c", False, True))
        taken = 0
        for n in range(50):
            getter.publish("", name, b"%d" % n)
            taken += getter.get(name) is not None
        assert taken == 0
        for n in range(50):
            assert consumer.message().body == b"%d" % n


# --- the connection ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4097, 5000, 200_000])
def test_a_frame_above_the_negotiated_maximum_closes_the_connection(
    server: AmqpBroker, size: int
) -> None:
    with WireClient(server.port, frame_max=4096) as client:
        client.open()
        client.publish("", "nowhere", bytes(size))
        answer = client.next(0)
        assert answer.name == "Connection.Close"
        assert answer.reply_code == 501


@row("connection.tune")
def test_a_frame_of_the_negotiated_maximum_is_taken(server: AmqpBroker, name: str) -> None:
    with WireClient(server.port, frame_max=4096) as client:
        client.open().declare(name)
        client.publish("", name, bytes(4096))
        client.wait_for(name, 1)


@row("connection.start", "connection.open")
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_a_client_logs_in(server: AmqpBroker, mechanism: str) -> None:
    with WireClient(server.port, mechanism=mechanism) as client:
        client.open()


@row("connection.close")
def test_a_close_is_answered_though_data_is_still_arriving(client: WireClient, name: str) -> None:
    client.declare(name)
    client.send(0, commands.Connection.Close(200, "done", 0, 0))
    for _ in range(100):
        client.publish("", name, bytes(1000))
    while (answer := client.next(0)).name != "Connection.CloseOk":
        assert answer.name != "Connection.Close"


@row("connection.update-secret")
def test_a_secret_can_be_updated(client: WireClient) -> None:
    answer = client.ask(0, commands.Connection.UpdateSecret("guest", "expires"))
    assert answer.name == "Connection.UpdateSecretOk"


@row("Virtual hosts other than /")
def test_a_virtual_host_that_does_not_exist_is_refused(server: AmqpBroker) -> None:
    with WireClient(server.port, virtual_host=None) as client:
        answer = client.ask(0, commands.Connection.Open("other"))
        assert (answer.name, answer.reply_code) == ("Connection.Close", 530)


@row("AMQP 1.0, MQTT, STOMP, the stream protocol")
def test_another_protocol_gets_the_header_of_this_one(server: AmqpBroker) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 20) as client:
        client.sendall(b"AMQP\x00\x01\x00\x00")
        assert client.recv(8) == b"AMQP\x00\x00\x09\x01"
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


@row("channel.open", "channel.close")
def test_a_channel_can_be_opened_again_after_it_was_closed(client: WireClient) -> None:
    for _ in range(2):
        assert client.ask(2, commands.Channel.Open()).name == "Channel.OpenOk"
        answer = client.ask(2, commands.Channel.Close(200, "done", 0, 0))
        assert answer.name == "Channel.CloseOk"


@row("channel.flow")
@pytest.mark.parametrize("active", [True, False])
def test_flow_can_not_be_stopped(client: WireClient, active: bool) -> None:
    answer = client.ask(1, commands.Channel.Flow(active))
    if active:
        assert (answer.name, answer.active) == ("Channel.FlowOk", True)
    else:
        assert (answer.name, answer.reply_code) == ("Connection.Close", 540)


# --- exchanges -----------------------------------------------------------------------------------


@row("exchange.declare", "exchange.delete")
@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_an_exchange_is_declared_found_and_deleted(
    client: WireClient, name: str, kind: str
) -> None:
    declared = commands.Exchange.Declare(0, name, kind, durable=True)
    assert client.ask(1, declared).name == "Exchange.DeclareOk"
    passive = commands.Exchange.Declare(0, name, "direct", passive=True)
    assert client.ask(1, passive).name == "Exchange.DeclareOk"
    for _ in range(2):  # the second time it does not exist
        assert client.ask(1, commands.Exchange.Delete(0, name)).name == "Exchange.DeleteOk"
    assert closed(client.ask(1, passive)) == 404


@row("Exchange types of plugins (x-consistent-hash, x-random, ...)")
def test_an_unknown_type_of_exchange_is_refused(server: AmqpBroker, name: str) -> None:
    with WireClient(server.port) as client:
        client.open()
        answer = client.ask(1, commands.Exchange.Declare(0, name, "x-nothing"))
        # RabbitMQ 4 closes the channel, and 3.10 the connection.
        code = 503 if server.name != "tidemill" else 406
        assert answer.reply_code == code


@row("alternate-exchange")
def test_what_has_no_queue_goes_to_the_alternate_exchange(client: WireClient, name: str) -> None:
    client.declare(name)
    client.ask(1, commands.Queue.Bind(0, name, "amq.fanout", ""))
    arguments: Any = {"alternate-exchange": "amq.fanout"}
    client.ask(1, commands.Exchange.Declare(0, name, "direct", arguments=arguments))
    client.publish(name, "nowhere", b"m")
    client.wait_for(name, 1)


@row("x-match")
@pytest.mark.parametrize(
    ("match", "headers", "is_taken"),
    [
        ("all", {"a": 1, "b": 2, "c": 3}, True),
        ("all", {"a": 1}, False),
        ("any", {"a": 1}, True),
        ("any", {"a": 7}, False),
        ("any-with-x", {"x-a": 1}, True),
        ("any", {"x-a": 1}, False),
        ("all-with-x", {"a": 1, "b": 2, "x-a": 1}, True),
        ("all-with-x", {"a": 1, "b": 2}, False),
    ],
)
def test_headers_are_matched(
    client: WireClient, name: str, match: str, headers: dict[str, int], is_taken: bool
) -> None:
    client.declare(name)
    wanted: Any = {"a": 1, "b": 2, "x-a": 1, "x-match": match}
    client.ask(1, commands.Queue.Bind(0, name, "amq.headers", "", arguments=wanted))
    client.ask(1, commands.Confirm.Select())
    client.publish("amq.headers", "", b"m", headers=headers)
    assert client.next(1).name == "Basic.Ack"
    assert client.declare(name, passive=True).message_count == is_taken


# --- queues and their arguments ------------------------------------------------------------------


@row("queue.declare", "queue.purge")
def test_a_queue_is_declared_counted_and_purged(client: WireClient, name: str) -> None:
    made = client.declare("", exclusive=True)
    assert made.queue.startswith("amq.gen")
    client.declare(name, exclusive=True)
    client.publish("", name, b"m")
    client.wait_for(name, 1)
    answer = client.ask(1, commands.Queue.Purge(0, name))
    assert (answer.name, answer.message_count) == ("Queue.PurgeOk", 1)
    assert closed(client.declare(name, exclusive=False)) == 405
    client.send(1, commands.Channel.CloseOk())
    client.open(1)
    assert closed(client.declare("absent", passive=True)) == 404


@row("queue.declare")
def test_what_a_declaration_counts_can_be_taken(client: WireClient, name: str) -> None:
    """Also by another channel than the one that publishes."""
    client.open(2).declare(name)
    for _ in range(30):
        client.publish("", name, b"m", channel=2)
        client.wait_for(name, 1)
        assert client.get(name) is not None


@row(
    *("x-queue-type", "x-queue-mode", "x-queue-version", "x-max-in-memory-bytes"),
    *("x-max-in-memory-length", "x-quorum-initial-group-size", "x-initial-cluster-size"),
    *("x-queue-leader-locator", "x-queue-master-locator", "x-stream-filter-size-bytes"),
    *("x-stream-max-segment-size-bytes", "x-max-age", "x-dead-letter-strategy"),
)
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("classic", {"x-queue-mode": "lazy", "x-queue-version": 1}),
        ("classic", {"x-queue-master-locator": "client-local"}),
        ("quorum", {"x-quorum-initial-group-size": 1}),
        ("quorum", {"x-max-in-memory-length": 10, "x-max-in-memory-bytes": 1000}),
        ("quorum", {"x-queue-leader-locator": "client-local"}),
        ("stream", {"x-initial-cluster-size": 1}),
        (
            "quorum",
            {
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                "x-dead-letter-exchange": "",
            },
        ),
        ("stream", {"x-max-age": "1h", "x-stream-max-segment-size-bytes": 1_000_000}),
        ("stream", {"x-stream-filter-size-bytes": 32}),
    ],
)
def test_types_of_queues_and_their_arguments_are_accepted(
    server: AmqpBroker, client: WireClient, name: str, kind: str, arguments: dict[str, Any]
) -> None:
    arguments = {"x-queue-type": kind, **arguments}
    assert client.declare(name, durable=True, arguments=arguments).name == "Queue.DeclareOk"
    other = {**arguments, "x-max-length-bytes": 5_000_000}
    assert closed(client.declare(name, durable=True, arguments=other)) == 406


def settled(client: WireClient, *tags: int) -> dict[int, str]:
    """Return by tag how the broker settled messages."""
    found: dict[int, str] = {}
    while set(found) != set(tags):
        answer = client.next(1)
        assert answer.name in ("Basic.Ack", "Basic.Nack"), answer
        first = min(set(tags) - set(found)) if answer.multiple else answer.delivery_tag
        found |= dict.fromkeys(range(first, answer.delivery_tag + 1), answer.name)
    return found


@row("x-max-length", "x-max-length-bytes", "x-overflow", "confirm.select", "basic.nack")
@pytest.mark.parametrize("limit", [{"x-max-length": 2}, {"x-max-length-bytes": 200}])
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_a_full_queue_drops_its_oldest_message_or_rejects_the_newest(
    client: WireClient, name: str, limit: dict[str, int], overflow: str
) -> None:
    client.declare(f"{name}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    client.declare(name, arguments={**limit, **arguments, "x-overflow": overflow})
    client.ask(1, commands.Confirm.Select())
    answers = []
    for tag in range(1, 5):
        client.publish("", name, bytes([tag]) * 100)
        answers.append(settled(client, tag)[tag])
    kept, rejected = (b"\3\4", 0) if overflow == "drop-head" else (b"\1\2", 2)
    assert answers == ["Basic.Ack"] * (4 - rejected) + ["Basic.Nack"] * rejected
    got = [client.get(name) for _ in range(3)]
    assert b"".join(each.body[:1] for each in got if each) == kept
    client.wait_for(f"{name}-dead", 0 if overflow == "reject-publish" else 2)


@row("x-delivery-limit", "x-delivery-count", "basic.reject")
def test_a_message_is_not_delivered_more_often_than_its_limit(
    client: WireClient, name: str
) -> None:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    client.declare(name, durable=True, arguments=arguments)
    client.publish("", name, b"m")
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    counts = []
    for _ in range(3):
        got = client.message()
        counts.append((got.properties.headers or {}).get("x-delivery-count", 0))
        client.send(1, commands.Basic.Reject(got.method.delivery_tag, True))
    assert counts == [0, 1, 2]
    assert client.is_quiet()


@row("x-single-active-consumer")
def test_only_one_consumer_is_active(client: WireClient, name: str) -> None:
    client.open(2)
    client.declare(name, arguments={"x-single-active-consumer": True})
    for channel, tag in ((1, "first"), (2, "second")):
        client.ask(channel, commands.Basic.Consume(0, name, tag, False, True))
    for _ in range(3):
        client.publish("", name, b"m")
        assert client.message(1).method.consumer_tag == "first"
    assert client.ask(1, commands.Basic.Cancel("first")).name == "Basic.CancelOk"
    client.publish("", name, b"m")
    assert client.message(2).method.consumer_tag == "second"


# --- publishing ----------------------------------------------------------------------------------


@row("basic.publish")
def test_a_message_without_a_queue_is_returned_before_it_is_confirmed(
    server: AmqpBroker, client: WireClient
) -> None:
    client.ask(1, commands.Confirm.Select())
    client.publish("", "nowhere", b"m", mandatory=True)
    returned = client.message()
    assert (returned.method.name, returned.method.reply_code) == ("Basic.Return", 312)
    assert client.next(1).name == "Basic.Ack"
    client.send(1, commands.Basic.Publish(0, "", "nowhere", immediate=True))
    client.send(1, header.ContentHeader(0, 0, commands.Basic.Properties()))
    answer = client.next(0)
    assert (answer.name, answer.reply_code) == ("Connection.Close", 540)


@row("tx.select", "tx.commit", "tx.rollback")
def test_a_transaction_publishes_and_acknowledges_or_does_not(
    client: WireClient, name: str
) -> None:
    client.declare(name)
    assert client.ask(1, commands.Tx.Select()).name == "Tx.SelectOk"
    for method, count in ((commands.Tx.Rollback(), 0), (commands.Tx.Commit(), 1)):
        client.publish("", name, b"m")
        assert client.ask(1, method).name in ("Tx.RollbackOk", "Tx.CommitOk")
        client.wait_for(name, count)
    for method, count in ((commands.Tx.Rollback(), 1), (commands.Tx.Commit(), 0)):
        got = client.get(name, no_ack=False)
        assert got is not None
        client.send(1, commands.Basic.Ack(got.method.delivery_tag))
        client.ask(1, method)
        if count:
            answer = client.ask(1, commands.Basic.Recover(True))
            assert answer.name == "Basic.RecoverOk"
        client.wait_for(name, count)


@row("user_id", "delivery_mode")
@pytest.mark.parametrize(("user", "code"), [("guest", 0), ("other", 406)])
def test_the_user_of_a_message_is_that_of_the_login(
    client: WireClient, name: str, user: str, code: int
) -> None:
    client.declare(name)
    client.publish("", name, b"m", user_id=user, delivery_mode=2)
    answer = client.declare(name, passive=True)
    assert closed(answer) == code
    if not code:
        client.wait_for(name, 1)
        got = client.get(name)
        assert got is not None
        assert (got.properties.user_id, got.properties.delivery_mode) == (user, 2)


@row("expiration")
def test_a_message_expires(client: WireClient, name: str) -> None:
    client.declare(name)
    client.publish("", name, b"short", expiration="1")
    time.sleep(0.1)  # longer than that
    client.publish("", name, b"long", expiration="600000")
    while (got := client.get(name)) is None:
        pass
    assert got.body == b"long"


@row("x-first-death-*", "x-last-death-*")
def test_the_first_and_the_last_death_are_told(
    server: AmqpBroker, client: WireClient, name: str
) -> None:
    """RabbitMQ has ``x-last-death-*`` since 3.13."""
    client.declare(f"{name}-2")
    second = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-2"}
    client.declare(f"{name}-1", arguments={**second, "x-max-length": 0})
    first = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-1"}
    client.declare(name, arguments={**first, "x-message-ttl": 0})
    client.publish("", name, b"m")
    client.wait_for(f"{name}-2", 1)
    headers = headers_of(client, f"{name}-2")
    assert [each["queue"] for each in headers["x-death"]] == [f"{name}-1", name]
    ends = [("first", name, "expired")]
    ends += [("last", f"{name}-1", "maxlen")] if server.name == "tidemill" else []
    for which, queue, reason in ends:
        assert headers[f"x-{which}-death-queue"] == queue
        assert headers[f"x-{which}-death-reason"] == reason
        assert headers[f"x-{which}-death-exchange"] == ""


@row("x-delay")
def test_a_message_is_delayed(server: AmqpBroker, client: WireClient, name: str) -> None:
    if server.name != "tidemill":
        pytest.skip("RabbitMQ needs a plugin for it")
    client.declare(name)
    client.publish("", name, b"later", headers={"x-delay": 400})
    client.publish("", name, b"now")
    client.ask(1, commands.Basic.Consume(0, name, "c", False, True))
    assert [client.message().body for _ in range(2)] == [b"now", b"later"]


@row("amq.rabbitmq.reply-to")
def test_a_direct_reply_comes_to_the_channel_that_asked(client: WireClient, name: str) -> None:
    client.open(2).declare(name)
    answer = client.ask(2, commands.Basic.Consume(0, "amq.rabbitmq.reply-to", "", False, True))
    assert answer.name == "Basic.ConsumeOk"
    client.publish("", name, b"q", channel=2, reply_to="amq.rabbitmq.reply-to")
    client.wait_for(name, 1)
    asked = client.get(name)
    assert asked is not None
    client.publish("", str(asked.properties.reply_to), b"a")
    assert client.message(2).body == b"a"


# --- consuming -----------------------------------------------------------------------------------


@row("basic.consume", "basic.cancel", "basic.ack")
def test_consumers_take_turns_and_messages_of_a_closed_channel_come_back(
    client: WireClient, name: str
) -> None:
    client.open(2, 3).declare(name)
    for channel in (2, 3):
        client.ask(channel, commands.Basic.Qos(0, 2, False))
        client.ask(channel, commands.Basic.Consume(0, name, f"c{channel}"))
    for n in range(4):
        client.publish("", name, b"%d" % n)
    got: dict[int, list[int]] = {2: [], 3: []}
    for _ in range(4 * 3):  # each is a method, a header and a body
        channel, frame = client.read()
        if isinstance(frame, commands.Basic.Deliver):
            got[channel].append(frame.delivery_tag or 0)
    assert got == {2: [1, 2], 3: [1, 2]}
    client.send(3, commands.Basic.Ack(2, True))
    assert client.ask(2, commands.Basic.Cancel("c2")).name == "Basic.CancelOk"
    client.ask(2, commands.Channel.Close(200, "done", 0, 0))
    again = [client.message(3) for _ in range(2)]
    assert all(each.method.redelivered for each in again)
    client.send(3, commands.Basic.Ack(99))
    assert closed(client.next(3)) == 406


@row("basic.recover")
@pytest.mark.parametrize("requeue", [True, False])
def test_recover_returns_what_is_not_acknowledged(
    client: WireClient, name: str, requeue: bool
) -> None:
    client.declare(name)
    client.publish("", name, b"m")
    client.wait_for(name, 1)
    client.get(name, no_ack=False)
    answer = client.ask(1, commands.Basic.Recover(requeue))
    if requeue:
        assert answer.name == "Basic.RecoverOk"
        client.wait_for(name, 1)
    else:
        assert (answer.name, answer.reply_code) == ("Connection.Close", 540)


@row("x-priority", "x-cancel-on-ha-failover")
def test_a_consumer_with_a_higher_priority_comes_first(client: WireClient, name: str) -> None:
    client.declare(name)
    for tag, priority in (("low", 0), ("high", 5)):
        arguments: Any = {"x-priority": priority, "x-cancel-on-ha-failover": True}
        client.ask(1, commands.Basic.Consume(0, name, tag, False, True, False, False, arguments))
    for _ in range(5):
        client.publish("", name, b"m")
        assert client.message().method.consumer_tag == "high"


@row("x-stream-offset")
@pytest.mark.parametrize(
    ("offset", "first"), [("first", b"0"), (2, b"2"), ("next", b"new"), ("1h", b"0")]
)
def test_a_stream_is_read_from_an_offset(
    client: WireClient, name: str, offset: object, first: bytes
) -> None:
    client.declare(name, durable=True, arguments={"x-queue-type": "stream"})
    client.ask(1, commands.Confirm.Select())
    for n in range(4):
        client.publish("", name, b"%d" % n)
        settled(client, n + 1)
    client.ask(1, commands.Basic.Qos(0, 10, False))
    arguments: Any = {"x-stream-offset": offset}
    answer = client.ask(1, commands.Basic.Consume(0, name, "c", arguments=arguments))
    assert answer.name == "Basic.ConsumeOk"
    client.publish("", name, b"new")
    while (got := client.next(1)).name == "Basic.Ack":
        pass
    assert client._message(1, got).body == first


# --- the page ------------------------------------------------------------------------------------


def names_of(cell: str, kind: str) -> list[str]:
    """Return what a row of the page is about: each method with its class, or the words."""
    quoted = re.findall(r"`([^`]+)`", cell)
    if kind != "Methods":
        return quoted if quoted and kind != "Not supported" else [cell.replace("`", "")]
    klass = quoted[0].partition(".")[0]
    return [each if "." in each else f"{klass}.{each}" for each in quoted]


def test_each_row_of_the_page_has_a_test() -> None:
    kind, rows = "", []
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            kind = line[3:]
        elif line.startswith("| ") and not line.startswith(("| Method", "| Argument", "| Feature")):
            rows += names_of(line.split("|")[1].strip(), kind)
    assert len(rows) > 70
    assert [each for each in rows if each not in TESTED | ELSEWHERE.keys() | NO_PROTOCOL] == []
    assert TESTED - set(rows) == set()  # a row that is gone
    for path in ELSEWHERE.values():
        assert (PAGE.parents[1] / path).exists(), path


def test_the_page_names_each_argument_that_is_known() -> None:
    page = PAGE.read_text()
    for argument in (*QUEUE_ARGUMENTS, *EXCHANGE_ARGUMENTS, *CONSUMER_ARGUMENTS):
        assert f"`{argument}`" in page, argument


def test_the_page_names_each_method_of_a_client() -> None:
    page = PAGE.read_text()
    answers = ("-ok", "basic.deliver", "basic.return", "basic.get-empty", "recover-async", "secure")
    for name in methods.BY_NAME:
        klass, _, verb = name.partition(".")
        if not name.endswith(answers):
            rows = [row for row in page.splitlines() if row.startswith(f"| `{klass}.")]
            assert any(f"`{name}`" in row or f"`{verb}`" in row for row in rows), name
