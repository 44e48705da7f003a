"""Programs with librdkafka that send single records at a rate. Each prints one JSON object::

    python -m bench.clients.programs --bootstrap HOST:PORT --topic T --producers 50 --rate 20

A latency is from the call of ``produce`` to the call of ``on_delivery``: librdkafka takes the
second time when the program asks for it, and not when the acknowledgement arrives. So a light load
has a thread for each producer, which waits for acknowledgements. A heavy one has no time for that:
one thread looks after the producers in turn, and latencies include the wait for it. With linger 0,
each record is a request of its own unless its server is a brake.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

TIMEOUT_S = 60.0
POLLED_TOGETHER = 25
"""Producers that are polled between two looks at the clock."""
LIGHT_RATE = 1000
"""Most records per second of a process whose producers have threads of their own."""


@dataclass
class Outcome:
    """The latencies and failures of the records, and when each was acknowledged."""

    latencies: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    failed: int = 0

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Note one record."""
        latency = message.latency()
        if error is not None or latency is None:
            self.failed += 1
        else:
            self.latencies.append(latency)
            self.times.append(time.perf_counter())

    def timeline(self, began: float) -> list[tuple[int, float, float]]:
        """Return for each second: acknowledged records, p50 and p99 of their latencies."""
        seconds: dict[int, list[float]] = defaultdict(list)
        for at, latency in zip(self.times, self.latencies, strict=True):
            seconds[int(at - began)].append(latency)
        found = []
        for second in range(max(seconds, default=-1) + 1):
            ordered = sorted(seconds[second])
            found.append((len(ordered), _percentile(ordered, 0.5), _percentile(ordered, 0.99)))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--rate", type=float, required=True, help="records/s of each producer")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--acks", default="all")
    print(json.dumps(run(parser.parse_args())))


def run(args: argparse.Namespace) -> dict[str, object]:
    """Send records at the rate; return figures of the deliveries.

    Raises:
        TimeoutError: Records were not delivered.
    """
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": args.bootstrap,
        "acks": args.acks,
        "linger.ms": 0,
        "queue.buffering.max.messages": 1_000_000,
    }
    producers = [Producer(config) for _ in range(args.producers)]
    value = os.urandom(args.size)
    _connect(producers, args.topic, value)
    outcome = Outcome()
    cpu_before = time.process_time()
    began = time.perf_counter()
    is_light = args.rate * args.producers <= LIGHT_RATE
    with _polled(producers if is_light else []):
        sent = _send(producers, args, value, outcome, began, polls=not is_light)
        within = len(outcome.latencies)
        took = time.perf_counter() - began
        for producer in producers:
            if producer.flush(TIMEOUT_S):
                raise TimeoutError("records were not delivered")
        whole = time.perf_counter() - began
    ordered = sorted(outcome.latencies)
    return {
        "sent": sent,
        "failed": outcome.failed,
        "delivered_per_s": within / took,
        "drained_per_s": len(ordered) / whole,
        "cpu_seconds": time.process_time() - cpu_before,
        "timeline": outcome.timeline(began),
        **{f"p{name}": _percentile(ordered, at) for name, at in _PERCENTILES.items()},
    }


@contextmanager
def _polled(producers: list[Producer]) -> Iterator[None]:
    """Serve the callbacks of each producer on a thread of its own."""
    is_over = threading.Event()

    def poll(producer: Producer) -> None:
        while not is_over.is_set():
            producer.poll(1.0)

    threads = [threading.Thread(target=poll, args=(each,)) for each in producers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


_PERCENTILES = {"50": 0.5, "99": 0.99, "99.9": 0.999}


def _percentile(ordered: list[float], at: float) -> float:
    return ordered[min(int(len(ordered) * at), len(ordered) - 1)] if ordered else 0.0


def _connect(producers: list[Producer], topic: str, value: bytes) -> None:
    for producer in producers:
        producer.produce(topic, value)
    for producer in producers:
        if producer.flush(TIMEOUT_S):
            raise TimeoutError("the first record was not delivered")


def _send(
    producers: list[Producer],
    args: argparse.Namespace,
    value: bytes,
    outcome: Outcome,
    began: float,
    *,
    polls: bool,
) -> int:
    """Send the records that are due, round robin, until the time is over; return their number.

    Args:
        polls: Whether to serve the producers' callbacks, some of them after each look at the clock.
    """
    count, sent, turn = len(producers), 0, 0
    total_rate = args.rate * count
    while (now := time.perf_counter() - began) < args.seconds:
        due = int(now * total_rate)
        while sent < due:
            try:
                producers[sent % count].produce(args.topic, value, on_delivery=outcome.delivered)
            except BufferError:
                outcome.failed += 1
            sent += 1
        for _ in range(min(count, POLLED_TOGETHER) if polls else 0):
            producers[turn % count].poll(0)
            turn += 1
        time.sleep(0.0005)
    return sent


if __name__ == "__main__":
    main()
