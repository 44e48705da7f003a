"""Attack a broker until it is killed: ``python -m tests.net.attack KIND KAFKA_PORT AMQP_PORT``.

It prints a line when the attack has begun. An attacker whose connection is closed begins again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator

from tests.net.test_slow_senders import AMQP_LOGIN
from tests.protocols.amqp.codec.test_frames import HEARTBEAT, begun, part
from tidemill.protocols.amqp.codec import methods

LARGEST = 16_000_000
"""About the largest body of a message."""


def bodies_on_2000_channels() -> Iterator[bytes]:
    for channel in range(1, 2001):
        yield methods.encode(channel, "channel.open") + begun(channel, LARGEST)
    while True:
        for channel in range(1, 2001):
            yield part(channel, b"x" * 100_000)


def repeated(frame: bytes) -> Iterator[bytes]:
    """Begin a message, and go on with one frame for ever; begin another one when it is whole."""
    yield methods.encode(1, "channel.open")
    many = frame * (65_536 // len(frame))
    while True:
        yield begun(1, LARGEST)
        if frame == part(1, b"xy"):
            left = LARGEST // 2
            while left > 0:
                count = min(left, 6000)
                yield frame * count
                left -= count
        else:
            for _ in range(100_000):
                yield many


def trickle() -> Iterator[bytes]:
    yield (100_000_000).to_bytes(4, "big") + b"\0\0\0\7"
    for _ in range(60):
        yield b"\0" * 1_000_000
    while True:
        time.sleep(0.1)
        yield b"\0"


def hold_idle_connections(*ports: int) -> None:
    """Open as many connections as the broker takes, replace those that it closes, say nothing."""
    held: dict[int, socket.socket] = {}
    poll = select.poll()
    tried = 0
    while True:
        with contextlib.suppress(OSError):
            client = socket.create_connection(("127.0.0.1", ports[tried % len(ports)]), 30)
            client.setblocking(False)
            held[client.fileno()] = client
            poll.register(client, select.POLLIN)
        tried += 1
        for number, _ in poll.poll(0):
            try:
                is_open = bool(held[number].recv(4096))
            except OSError:
                is_open = False
            if not is_open:
                poll.unregister(number)
                held.pop(number).close()
        if tried == IDLE:
            print("attacking", flush=True)
        if tried > IDLE:
            time.sleep(0.01)


AMQP: dict[str, Callable[[], Iterator[bytes]]] = {
    "2000-channels": bodies_on_2000_channels,
    "tiny-frames": lambda: repeated(part(1, b"xy")),
    "empty-bodies": lambda: repeated(part(1, b"")),
    "heartbeats": lambda: repeated(HEARTBEAT),
}
KAFKA: dict[str, Callable[[], Iterator[bytes]]] = {"trickle": trickle}
IDLE = 900
"""Connections that the attacker tries to open before it says so. Then it continues slowly."""
KINDS = (*AMQP, *KAFKA, "idle-connections")


def main(kind: str, kafka_port: str, amqp_port: str) -> None:
    """Attack until killed."""
    if kind == "idle-connections":
        hold_idle_connections(int(kafka_port), int(amqp_port))
    port, hello = (amqp_port, AMQP_LOGIN) if kind in AMQP else (kafka_port, b"")
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(port)), 30) as client:
                client.sendall(hello)
                for count, data in enumerate({**AMQP, **KAFKA}[kind]()):
                    client.sendall(data)
                    if count == 2:
                        print("attacking", flush=True)
        except OSError:
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
