"""A client that floods a broker, as a process: ``python -m tests.protocols.kafka.flood PORT KIND``.

It sends as fast as the broker takes it, over several connections, and reads and drops all answers.
It ends when its standard input is closed, or after a minute.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time

from tests.protocols.kafka.keys import API_VERSIONS, METADATA, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import SOFTWARE, produce
from tests.protocols.kafka.wire import request
from tidemill.protocols.kafka.answer import LEAST_ELEMENTS

CONNECTIONS = 4
SECONDS = 60


def frames(kind: str) -> bytes:
    """Return what is sent over and over."""
    if kind == "records":
        return request(PRODUCE, 9, produce("flood", one_batch())) * 200
    if kind == "names":
        names = [{"name": f"no topic {number}"} for number in range(LEAST_ELEMENTS)]
        return request(METADATA, 9, {"topics": names, "allow_auto_topic_creation": False})
    assert kind == "urgent"
    return request(API_VERSIONS, 3, SOFTWARE) * 200


def flood(port: int, content: bytes, end: float) -> None:
    """Flood one connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        view, sent = memoryview(content), 0
        while time.monotonic() < end:
            readable, writable, _ = select.select([connection], [connection], [], 1)
            if readable and not connection.recv(1 << 20):
                raise SystemExit("the broker closed the connection")
            if writable:
                with contextlib.suppress(BlockingIOError):
                    sent = (sent + connection.send(view[sent:])) % len(content)


def main(port: int, kind: str) -> None:
    content, end = frames(kind), time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=flood, args=(port, content, end), daemon=True)
        for _ in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    print("attacking", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
