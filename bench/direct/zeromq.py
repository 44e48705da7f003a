"""Publishers and subscribers of ZeroMQ, as programs of the bench.

    python -m bench.direct.zeromq publish PORT MESSAGES
    python -m bench.direct.zeromq subscribe PORT MESSAGES
    python -m bench.direct.zeromq produce SERVERS TOPIC MESSAGES
    python -m bench.direct.zeromq follow PUBLISH_PORT REQUESTS_PORT MESSAGES START

``publish`` and ``subscribe`` are pyzmq alone: XPUB that waits for room, and SUB. ``produce`` writes
to a topic, and ``follow`` is a subscriber of its bridge. Those that receive print "ready", and a
JSON line with their messages per second.
"""

from __future__ import annotations

import json
import sys
import time

import zmq
from confluent_kafka import Producer

from tidemill.direct.pubsub import LogSubscriber

SIZE = 100
_LEAD = 1000
"""Messages before the clock starts."""


def publish(port: int, messages: int) -> None:
    """Publish as fast as the subscriber reads."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.setsockopt(zmq.XPUB_NODROP, 1)
        publisher.setsockopt(zmq.SNDHWM, 1000)
        publisher.bind(f"tcp://127.0.0.1:{port}")
        publisher.recv()  # the subscription
        payload = b"x" * SIZE
        for _ in range(messages):
            publisher.send(payload)


def subscribe(port: int, messages: int) -> None:
    """Receive all messages, and print how fast that was."""
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        subscriber.subscribe(b"")
        print("ready", flush=True)
        for _ in range(_LEAD):
            subscriber.recv()
        began = time.monotonic()
        for _ in range(messages - _LEAD):
            subscriber.recv()
        _report(messages - _LEAD, began)


def produce(servers: str, topic: str, messages: int) -> None:
    """Write to a topic as fast as possible."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "acks": 1})
    payload = b"x" * SIZE
    for _ in range(messages):
        while True:
            try:
                producer.produce(topic, payload)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()


def follow(publish_port: int, requests_port: int, messages: int, start: str) -> None:
    """Receive as many records, and print how fast that was."""
    addresses = (f"tcp://127.0.0.1:{publish_port}", f"tcp://127.0.0.1:{requests_port}")
    with LogSubscriber(*addresses, start=start) as subscriber:  # type: ignore[arg-type]
        if start == "latest":
            while not subscriber.is_live:
                subscriber.poll(0.01)
        print("ready", flush=True)
        found, began, first = 0, 0.0, 0
        while found < messages:
            found += len(subscriber.poll(1.0))
            if found and not began:
                began, first = time.monotonic(), found
        _report(messages - first, began)


def _report(messages: int, began: float) -> None:
    print(json.dumps({"k messages/s": messages / (time.monotonic() - began) / 1000}), flush=True)


if __name__ == "__main__":
    _, role, *given = sys.argv
    if role == "publish":
        publish(int(given[0]), int(given[1]))
    elif role == "subscribe":
        subscribe(int(given[0]), int(given[1]))
    elif role == "produce":
        produce(given[0], given[1], int(given[2]))
    else:
        follow(int(given[0]), int(given[1]), int(given[2]), given[3])
