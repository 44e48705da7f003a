"""AMQP clients against a broker process: pika, kombu (py-amqp) and aio-pika (aiormq)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import shutil
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import aio_pika
import pika
import pika.exceptions
import pytest
from pamqp import commands

from tests.interop.amqp_wire import WireClient
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed

Unique = Callable[[str], str]
kombu: Any = importlib.import_module("kombu")  # without types


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of its own, because a test restarts it."""
    with BrokerProcess(tmp_path_factory.mktemp("amqp")) as broker:
        yield broker
        assert "Traceback" not in broker.log(10_000_000), broker.log(10_000_000)


def connect(broker: BrokerProcess, **options: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port, **options))


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}//"


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[Any]:
    """A channel of pika that confirms."""
    with closing(connect(broker)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_pika_publishes_and_consumes_inside_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    settings = {"amqp.tls_cert": str(certificate), "amqp.tls_key": str(key)}
    trust = ssl.create_default_context(cafile=str(certificate))
    options = pika.SSLOptions(trust, "localhost")
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        with closing(connect(broker, ssl_options=options)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("secret", durable=True)
            body = bytes(300_000)  # several TLS records, and several frames
            channel.basic_publish("", "secret", body, mandatory=True)
            assert channel.basic_get("secret", auto_ack=True)[2] == body
        with pytest.raises(pika.exceptions.AMQPError):
            connect(broker, socket_timeout=5, stack_timeout=5)  # plain text


def test_a_client_reads_close_ok_although_its_own_data_still_arrives(broker: BrokerProcess) -> None:
    client: Any = importlib.import_module("amqp")
    connection = client.Connection(f"127.0.0.1:{broker.amqp_port}", "guest", "guest")
    connection.connect()
    stream = connection.transport.sock
    stream.settimeout(20)
    arguments = struct.pack(">H", 200) + b"\x03bye" + bytes(4)
    method = struct.pack(">HH", 10, 50) + arguments
    stream.sendall(struct.pack(">BHI", 1, 0, len(method)) + method + b"\xce")
    heartbeats = b"\x08" + bytes(6) + b"\xce"
    with contextlib.suppress(BrokenPipeError):  # the broker reads on for a second
        for _ in range(200):
            stream.sendall(heartbeats * 4096)
    received = b""
    while data := stream.recv(65536):  # no ConnectionResetError
        received += data
    assert struct.pack(">BHIHH", 1, 0, 4, 10, 51) + b"\xce" in received
    stream.close()


def test_a_client_that_keeps_a_message_for_too_long_loses_its_channel(tmp_path: Path) -> None:
    settings = {"amqp.consumer_timeout_ms": "800"}
    with (
        BrokerProcess(tmp_path, settings=settings) as broker,
        WireClient(broker.amqp_port, heartbeat_s=1) as client,
    ):
        client.open(1, 2, 3).declare("q")
        client.ask(2, commands.Basic.Consume(0, "q", "c"))
        for n in range(8):  # one that settles in time keeps its channel
            client.publish("", "q", b"%d" % n)
            tag = client.message(2).method.delivery_tag
            assert client.is_quiet(0.2)
            client.send(2, commands.Basic.Ack(tag))
        client.publish("", "q", b"kept")
        assert client.message(2).body == b"kept"
        sent = time.monotonic()
        closed = client.next(2)
        assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
        assert "delivery acknowledgement on channel 2 timed out" in closed.reply_text
        assert time.monotonic() - sent >= 0.7
        again = client.get("q", channel=3)
        assert again is not None
        assert (again.body, again.method.redelivered) == (b"kept", True)


def drain(channel: Any, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
    """Consume and acknowledge so many messages."""
    found: list[tuple[Any, Any, bytes]] = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=60):
        assert method is not None, f"{len(found)} of {count} messages"
        found.append((method, properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def test_pika_messages_keep_their_order_and_properties(channel: Any, unique: Unique) -> None:
    queue = unique("queue")
    channel.queue_declare(queue, durable=True)
    sent = pika.BasicProperties(
        content_type="text/plain",
        headers={"text": "é", "number": 7, "list": [1, {"a": None}]},
        delivery_mode=2,
        correlation_id="c",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        app_id="a",
    )
    for number in range(50):
        channel.basic_publish("", queue, b"%d" % number, sent, mandatory=True)
    found = drain(channel, queue, 50)
    assert [int(body) for _, _, body in found] == list(range(50))
    assert all(properties == sent for _, properties, _ in found)
    assert not any(method.redelivered for method, _, _ in found)


def test_pika_a_body_of_several_frames(channel: Any, unique: Unique) -> None:
    queue = unique("queue")
    channel.queue_declare(queue)
    body = bytes(range(256)) * 2000
    channel.basic_publish("", queue, body)
    ((_, _, found),) = drain(channel, queue, 1)
    assert found == body


@pytest.mark.parametrize(
    ("kind", "key", "reached"),
    [
        ("direct", "a.b", {"exact"}),
        ("topic", "a.b", {"exact", "star", "hash"}),
        ("fanout", "x", {"exact", "star", "hash"}),
    ],
)
def test_pika_exchanges(
    channel: Any, unique: Unique, kind: str, key: str, reached: set[str]
) -> None:
    exchange = unique("exchange")
    channel.exchange_declare(exchange, kind)
    queues = {}
    for name, pattern in (("exact", "a.b"), ("star", "*.b"), ("hash", "a.#")):
        queues[name] = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queues[name], exchange, pattern)
    channel.basic_publish(exchange, key, b"x", mandatory=True)
    counts = {
        name: channel.queue_declare(queue, passive=True).method.message_count
        for name, queue in queues.items()
    }
    assert {name for name, count in counts.items() if count} == reached


def test_pika_rejected_messages_are_dead_letters_with_x_death(channel: Any, unique: Unique) -> None:
    work, dead = unique("work"), unique("dead")
    channel.queue_declare(dead)
    channel.queue_declare(
        work, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    )
    channel.basic_publish("", work, b"poison", pika.BasicProperties(headers={"own": 1}))
    for method, _, _ in channel.consume(work, inactivity_timeout=60):
        channel.basic_reject(method.delivery_tag, requeue=False)
        break
    channel.cancel()
    ((_, properties, body),) = drain(channel, dead, 1)
    assert body == b"poison"
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (work, "rejected", 1)
    assert properties.headers["x-first-death-queue"] == work
    assert properties.headers["own"] == 1


def test_pika_direct_reply_to(broker: BrokerProcess, channel: Any, unique: Unique) -> None:
    queue, answers = unique("rpc"), []
    channel.queue_declare(queue)
    with closing(connect(broker)) as connection:
        server = connection.channel()

        def on_question(_: Any, method: Any, properties: Any, body: bytes) -> None:
            server.basic_publish("", properties.reply_to, body.upper())

        server.basic_consume(queue, on_question, auto_ack=True)
        channel.basic_consume(
            "amq.rabbitmq.reply-to", lambda *answer: answers.append(answer[3]), auto_ack=True
        )
        properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        channel.basic_publish("", queue, b"question", properties)
        deadline = time.monotonic() + 60
        while not answers and time.monotonic() < deadline:
            connection.process_data_events(0.05)
            channel.connection.process_data_events(0.05)
    assert answers == [b"QUESTION"]


def test_pika_errors_have_rabbitmqs_codes_and_words(broker: BrokerProcess, unique: Unique) -> None:
    queue = unique("queue")
    with closing(connect(broker)) as connection:
        connection.channel().queue_declare(queue, durable=True)
        for call, code, said in (
            (
                lambda c: c.queue_declare("missing", passive=True),
                404,
                "NOT_FOUND - no queue 'missing' in vhost '/'",
            ),
            (
                lambda c: c.basic_ack(7) or c.queue_declare(queue, passive=True),
                406,
                "PRECONDITION_FAILED - unknown delivery tag 7",
            ),
            (
                lambda c: c.queue_declare(queue, durable=False),
                406,
                f"inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
                "received 'false' but current is 'true'",
            ),
            (
                lambda c: c.queue_declare("amq.mine"),
                403,
                "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
            ),
            (lambda c: c.queue_declare(unique("q"), arguments={"x-expires": 0}), 406, "x-expires"),
        ):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                cast(Any, call)(connection.channel())
            assert closed.value.reply_code == code
            assert said in closed.value.reply_text
    with pytest.raises(pika.exceptions.AMQPError):
        connect(broker, credentials=pika.PlainCredentials("guest", "wrong"))


@pytest.mark.crash
def test_pika_what_was_confirmed_and_not_acknowledged_survives_a_sigkill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        channel = connect(broker).channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True)
        for number in range(20):
            channel.basic_publish("", "work", b"%d" % number)
        taken = channel.consume("work", inactivity_timeout=60)
        for _ in range(5):
            next(taken)
        broker.kill()
        with pytest.raises(pika.exceptions.AMQPError):
            channel.basic_get("work")
        broker.start()
        with closing(connect(broker)) as connection:
            found = drain(connection.channel(), "work", 20)
            assert [int(body) for _, _, body in found] == list(range(20))
            assert all(method.redelivered for method, _, _ in found[:5])


def test_kombu_publishes_and_consumes(broker: BrokerProcess, unique: Unique) -> None:
    name = unique("kombu")
    queue = kombu.Queue(name, kombu.Exchange(name, "direct"), routing_key="k")
    found: list[Any] = []
    with kombu.Connection(url(broker), transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer(serializer="json")
        for number in range(10):
            producer.publish(
                {"n": number}, exchange=queue.exchange, routing_key="k", declare=[queue]
            )

        def on_message(body: Any, message: Any) -> None:
            found.append(body)
            message.ack()

        with connection.Consumer(queue, callbacks=[on_message], prefetch_count=3):
            while len(found) < 10:
                connection.drain_events(timeout=60)
        assert not connection.qos_semantics_matches_spec  # RabbitMQ's meaning is another one
    assert found == [{"n": number} for number in range(10)]


def test_aio_pika_with_a_robust_connection(broker: BrokerProcess, unique: Unique) -> None:
    async def run() -> list[bytes]:
        async with await aio_pika.connect_robust(url(broker)) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.set_qos(prefetch_count=5)
            queue = await channel.declare_queue(unique("aio"), durable=True)
            for number in range(20):
                sent = aio_pika.Message(b"%d" % number, delivery_mode=2)
                await channel.default_exchange.publish(sent, queue.name)
            found: list[bytes] = []
            async with asyncio.timeout(300):
                async with queue.iterator() as messages:
                    async for message in messages:
                        async with message.process():
                            found.append(message.body)
                        if len(found) == 20:
                            break
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(
                    aio_pika.Message(b"x"), "nowhere", mandatory=True
                )
            return found

    assert asyncio.run(run()) == [b"%d" % number for number in range(20)]
