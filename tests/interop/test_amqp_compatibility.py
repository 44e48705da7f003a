"""What clients of RabbitMQ rely on, against tidemill and, where it is installed, RabbitMQ itself.

``docs/amqp-compatibility.md`` lists what is compatible. A test that has to expect something else
from one of the two says so with ``differs``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.queues.brokers import AmqpBroker, rabbitmq, rabbitmq_server, tidemill
from pamqp import commands

from tests.interop.amqp_wire import WireClient
from tidemill.protocols.amqp.codec import methods
from tidemill.state.routing.arguments import (
    CONSUMER_ARGUMENTS,
    EXCHANGE_ARGUMENTS,
    QUEUE_ARGUMENTS,
)

_numbers = itertools.count(1)


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


def test_unbinding_what_does_not_exist_is_ok(client: WireClient, name: str) -> None:
    client.declare(name)
    for queue, exchange in ((name, "amq.direct"), (name, "gone"), ("gone", "amq.direct")):
        answer = client.ask(1, commands.Queue.Unbind(0, queue, exchange, "k"))
        assert answer.name == "Queue.UnbindOk", (queue, exchange)
    for destination, source in (("gone", "amq.direct"), ("amq.direct", "gone"), ("gone", "gone")):
        answer = client.ask(1, commands.Exchange.Unbind(0, destination, source, "k"))
        assert answer.name == "Exchange.UnbindOk", (destination, source)


@pytest.mark.parametrize(("queue", "exchange"), [("gone", "amq.direct"), ("", "gone")])
def test_binding_what_does_not_exist_is_not_found(
    client: WireClient, name: str, queue: str, exchange: str
) -> None:
    client.declare(name)
    assert closed(client.ask(1, commands.Queue.Bind(0, queue or name, exchange, "k"))) == 404


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


def test_the_answer_to_a_deletion_comes_before_the_cancel_of_consumers(
    client: WireClient, name: str
) -> None:
    client.declare(name)
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    assert client.ask(1, commands.Queue.Delete(0, name)).name == "Queue.DeleteOk"
    cancel = client.next(1)
    assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "c")


def test_255_priorities_are_delivered_in_order(client: WireClient, name: str) -> None:
    client.declare(name, arguments={"x-max-priority": 255})
    priorities = [3, 250, 32, 255, 31, 0, 249, 33, 254, 1]
    for priority in priorities:
        client.publish("", name, b"%d" % priority, priority=priority)
    client.wait_for(name, len(priorities))
    got = [client.get(name) for _ in priorities]
    assert [int(each.body) for each in got if each] == sorted(priorities, reverse=True)


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


def test_a_passive_declaration_keeps_a_queue_that_expires(client: WireClient, name: str) -> None:
    client.declare(name, arguments={"x-expires": 1500})
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert client.declare(name, passive=True).name == "Queue.DeclareOk"
        time.sleep(0.2)
    time.sleep(2.5)
    assert closed(client.declare(name, passive=True)) == 404


def test_a_message_with_ttl_0_that_is_requeued_is_dropped(client: WireClient, name: str) -> None:
    client.declare(name, arguments={"x-message-ttl": 0})
    client.ask(1, commands.Basic.Consume(0, name, "c"))
    client.publish("", name, b"m")
    tag = client.message().method.delivery_tag
    client.send(1, commands.Basic.Reject(tag, True))
    assert client.is_quiet()


# --- consumers -----------------------------------------------------------------------------------


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


def test_a_frame_of_the_negotiated_maximum_is_taken(server: AmqpBroker, name: str) -> None:
    with WireClient(server.port, frame_max=4096) as client:
        client.open().declare(name)
        client.publish("", name, bytes(4096))
        client.wait_for(name, 1)


# --- the page ------------------------------------------------------------------------------------


def test_the_page_names_each_argument_that_is_known() -> None:
    page = (Path(__file__).parents[2] / "docs" / "amqp-compatibility.md").read_text()
    for argument in (*QUEUE_ARGUMENTS, *EXCHANGE_ARGUMENTS, *CONSUMER_ARGUMENTS):
        assert f"`{argument}`" in page, argument


def test_the_page_names_each_method_of_a_client() -> None:
    page = (Path(__file__).parents[2] / "docs" / "amqp-compatibility.md").read_text()
    answers = ("-ok", "basic.deliver", "basic.return", "basic.get-empty", "recover-async", "secure")
    for name in methods.BY_NAME:
        klass, _, verb = name.partition(".")
        if not name.endswith(answers):
            rows = [row for row in page.splitlines() if row.startswith(f"| `{klass}.")]
            assert any(f"`{name}`" in row or f"`{verb}`" in row for row in rows), name
