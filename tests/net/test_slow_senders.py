"""Clients that send a part of a request and then almost nothing, against a real broker process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.net.raw_client import call, connect
from tests.protocols.amqp.codec.test_frames import begun, part
from tests.protocols.kafka.keys import CREATE_TOPICS, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import create_topics, produce, written
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tidemill.protocols.amqp.codec import methods
from tidemill.protocols.amqp.handshake import HEADER

BOUND = 16 << 20
ATTACKERS, HELD = 12, 2_000_000
REQUESTS = 20
AMQP_LOGIN = (
    HEADER
    + methods.encode(
        0, "connection.start-ok", mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"
    )
    + methods.encode(0, "connection.tune-ok", channel_max=2047, frame_max=131_072)
    + methods.encode(0, "connection.open", virtual_host="/")
)


def begin_kafka(broker: BrokerProcess) -> socket.socket:
    """Send the length of a request and a part of it."""
    client = connect(broker)
    client.sendall((3 * HELD).to_bytes(4, "big") + b"\0\0\0\7" + b"\0" * HELD)
    return client


def begin_amqp(broker: BrokerProcess) -> socket.socket:
    """Log in, and send a part of a message."""
    client = socket.create_connection(("127.0.0.1", broker.amqp_port), 30)
    client.sendall(
        AMQP_LOGIN
        + methods.encode(1, "channel.open")
        + begun(1, 3 * HELD)
        + part(1, b"x" * 100_000) * (HELD // 100_000)
    )
    return client


@contextmanager
def trickling(clients: list[socket.socket], piece: bytes) -> Iterator[None]:
    """Send a piece on each connection, ten times a second."""
    end = threading.Event()

    def trickle() -> None:
        open_clients = list(clients)
        while not end.wait(0.1):
            for client in list(open_clients):
                try:
                    client.send(piece)
                except OSError:
                    open_clients.remove(client)

    thread = threading.Thread(target=trickle)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.parametrize("protocol", ["kafka", "amqp"])
def test_a_trickle_does_not_stop_the_neighbours(tmp_path: Path, protocol: str) -> None:
    begin = {"kafka": begin_kafka, "amqp": begin_amqp}[protocol]
    piece = {"kafka": b"\0", "amqp": part(1, b"x")}[protocol]
    settings = {"limits.total_inflight_bytes": str(BOUND)}
    with BrokerProcess(tmp_path, settings=settings) as broker, ExitStack() as stack:
        neighbour = stack.enter_context(closing(connect(broker)))
        call(neighbour, CREATE_TOPICS, 2, create_topics("t"))
        tree = produce("t", one_batch(b"x" * 1_000_000))
        attackers = [stack.enter_context(closing(begin(broker))) for _ in range(ATTACKERS)]
        took = []
        with trickling(attackers, piece):
            time.sleep(0.2)
            for number in range(REQUESTS):
                began = time.monotonic()
                answer = call(neighbour, PRODUCE, 7, tree)
                took.append(time.monotonic() - began)
                assert written(answer) == [(0, number)]
        assert max(took) < effort.bound(2, normal=30)
        assert "event=connection.too_slow" in broker.log(100_000)
