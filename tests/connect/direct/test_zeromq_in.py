"""Messages of ZeroMQ in a topic, over a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.connect.direct.conftest import Direct
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.connect.direct import writing
from tidemill.direct.pubsub import Publisher, Pusher


@pytest.fixture
def bridge(kafka: Kafka) -> Iterator[Direct]:
    made = Direct(kafka, "zeromq-in")
    yield made
    made.stop()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


def stored(bridge: Direct) -> list[tuple[bytes, bytes | None]]:
    return list(read_to_end(bridge.kafka, "tests", bridge.topic))


def test_a_push_socket_writes_values_or_keys_with_values(
    bridge: Direct, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/push"
    bridge.start(addresses=["tcp://127.0.0.1:0", address], max_message_bytes=1000)
    with context.socket(zmq.PUSH) as push:
        push.connect(address)
        push.send(b"value")
        push.send_multipart([b"key", b"value"])
        push.send_multipart([b"", b""])
        push.send_multipart([b"one", b"two", b"three"])
        push.send_multipart([b"k" * 600, b"v" * 600])
        push.send_multipart([b"x"] * 500)
        push.send(b"last")
        bridge.wait(lambda: bridge.counts.received == 7, "all are received")
    bridge.stop()
    assert stored(bridge) == [(b"", b"value"), (b"key", b"value"), (b"", b""), (b"", b"last")]
    counts = bridge.counts
    assert (counts.delivered, counts.refused, counts.lost) == (4, 3, 0)


def test_messages_of_publishers_have_their_channel_as_key(
    bridge: Direct, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """A publisher of this package numbers its messages, so that a loss is counted."""
    with Publisher("tcp://127.0.0.1:0", queue_size=10) as own, context.socket(zmq.PUB) as plain:
        port = plain.bind_to_random_port("tcp://127.0.0.1")
        bridge.start(
            addresses=[own.address, f"tcp://127.0.0.1:{port}"],
            socket="sub",
            bind=False,
            channels=["eur"],
        )
        assert own.wait_for_subscribers(1, 10.0)
        own.publish(b"usd", b"not subscribed to")
        own.publish(b"eurusd", b"1.08")
        own._published.next(b"eurusd")  # one that a full queue has dropped
        own.publish(b"eurusd", b"1.09")
        own.publish(b"eurusd", b"")

        def plain_arrives() -> bool:
            plain.send_multipart([b"eurchf", b"0.93"])
            return bridge.counts.received > 3

        bridge.wait(plain_arrives, "it is received")
    bridge.stop()
    found = stored(bridge)
    assert [each for each in found if each[0] == b"eurusd"] == [
        (b"eurusd", b"1.08"),
        (b"eurusd", b"1.09"),
        (b"eurusd", b""),
    ]
    assert (b"eurchf", b"0.93") in found
    assert {key for key, _ in found} == {b"eurusd", b"eurchf"}
    assert bridge.counts.lost == 1


def test_a_clean_stop_writes_all_that_was_received(bridge: Direct) -> None:
    details = bridge.start(addresses=["tcp://127.0.0.1:0"])
    with Pusher(details["addresses"][0], bind=False) as pusher:
        for number in range(20_000):
            assert pusher.push(b"%d" % number)
        bridge.wait(lambda: bridge.counts.received > 0, "it receives")
        bridge.stop()
    counts = bridge.counts
    assert [value for _, value in stored(bridge)] == [b"%d" % n for n in range(counts.received)]
    assert (counts.delivered, counts.lost) == (counts.received, 0)


@pytest.mark.crash
def test_a_producer_that_is_full_holds_pushers_back_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is killed while a program pushes. All that the program could push arrives."""
    monkeypatch.setattr(writing, "_QUEUE_KB", 1024)
    with BrokerProcess(tmp_path) as broker:
        bridge = Direct(Kafka(broker.bootstrap), "zeromq-in")
        address = f"tcp://127.0.0.1:{reserve_port()}"
        bridge.start(addresses=[address], queue_size=10)
        try:
            with Pusher(address, bind=False, queue_size=10, wait_s=0.5, linger_s=60) as pusher:
                for number in range(100):
                    assert pusher.push(b"%d" % number + b"x" * 10_000)
                broker.kill()
                number = 100
                while pusher.push(b"%d" % number + b"x" * 10_000):  # until it is held back
                    number += 1
                    assert number < 50_000
                broker.start()
                bridge.wait(lambda: bridge.counts.delivered == number, "all are written")
            expected = [b"%d" % each for each in range(number)]
            assert [(value or b"").rstrip(b"x") for _, value in stored(bridge)] == expected
        finally:
            bridge.stop()
