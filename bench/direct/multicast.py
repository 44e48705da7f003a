"""A publisher and a receiver of a multicast stream, as programs of the bench.

    python -m bench.direct.multicast publish GROUP_PORT REQUESTS_PORT MESSAGES PER_SECOND
    python -m bench.direct.multicast receive GROUP_PORT REQUESTS_PORT MESSAGES LOSS

The receiver drops a share of the packets of the group at random. It prints "ready", and a JSON line
with its messages per second and how long recoveries took.
"""

from __future__ import annotations

import json
import random
import sys
import time

from tidemill.direct.multicast import Lost, MulticastReceiver, Received, Receiver, RingPublisher
from tidemill.direct.multicast.receiver import Event
from tidemill.direct.multicast.wire import Packet

GROUP = "239.9.9.9"
SIZE, BATCH = 100, 10


class Dropping(Receiver):
    """A receiver on a network that drops packets."""

    def __init__(self, loss: float) -> None:
        super().__init__(sequence=1, seed=1)
        self._loss = loss
        self._chance = random.Random(1)
        self.dropped: dict[int, float] = {}

    def take(self, packet: Packet, now_ms: int, *, is_answer: bool = False) -> list[Event]:
        """Take a packet, or drop it and note when."""
        if not is_answer and packet.messages and self._chance.random() < self._loss:
            now = time.monotonic()
            for each in range(len(packet.messages)):
                self.dropped.setdefault(packet.sequence + each, now)
            return []
        return super().take(packet, now_ms, is_answer=is_answer)


def publish(port: int, requests: int, messages: int, per_second: int) -> None:
    """Publish at a rate; 0 is as fast as possible."""
    with RingPublisher((GROUP, port), ("127.0.0.1", requests), keep_bytes=1 << 30) as publisher:
        batch = [b"x" * SIZE] * BATCH
        began = time.monotonic()
        for sent in range(0, messages, BATCH):
            if per_second:
                time.sleep(max(began + sent / per_second - time.monotonic(), 0))
            publisher.publish(*batch)
        print("sent", flush=True)
        sys.stdin.readline()  # until the receiver has all


def receive(port: int, requests: int, messages: int, loss: float) -> None:
    """Receive all messages, and print how fast that was."""
    receiver = Dropping(loss)
    found, began, took = 0, 0.0, []
    with MulticastReceiver((GROUP, port), [("127.0.0.1", requests)], receiver=receiver) as stream:
        print("ready", flush=True)
        while found < messages:
            events = stream.poll(0.1)
            now = time.monotonic()
            began = began or (now if events else 0.0)
            for event in events:
                assert not isinstance(event, Lost)
                if isinstance(event, Received):
                    found += 1
                    if (since := receiver.dropped.pop(event.sequence, None)) is not None:
                        took.append(now - since)
    took.sort()
    figures = {
        "k messages/s": found / (now - began) / 1000,
        "recovered": float(receiver.recovered),
        "requests": float(stream.requested),
        "recovery p50 ms": 1000 * took[len(took) // 2] if took else 0.0,
        "recovery p99 ms": 1000 * took[len(took) * 99 // 100] if took else 0.0,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    _, role, *given = sys.argv
    ports = int(given[0]), int(given[1]), int(given[2])
    if role == "publish":
        publish(*ports, int(given[3]))
    else:
        receive(*ports, float(given[3]))
