"""A librdkafka client in its own process: does one job and prints one JSON object::

    python -m bench.clients.program rate --bootstrap HOST:PORT --topic T --producers 50 --rate 20

Settings are the client's defaults except where a comment explains it. The latency of a job with a
rate is from the call of ``produce`` to the call of ``on_delivery``: librdkafka takes the second
time when the program asks for it, and not when the acknowledgement arrives. So a light load has a
thread for each producer, which waits for acknowledgements. A heavy one has no time for that: one
thread looks after the producers in turn, and latencies include the wait for it. With linger 0, each
record is a request of its own unless its server is a brake.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

WARM_UP_TOPIC = "bench-warm-up"
TIMEOUT_S = 60.0
BATCH = 1000
POLLED_TOGETHER = 25
"""Producers that are polled between two looks at the clock."""
LIGHT_RATE = 1000
"""Most records per second of a process whose producers have threads of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=sorted(_JOBS))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--each", type=int, default=0, help="records in a transaction; 0 for none")
    parser.add_argument("--together", type=int, default=1, help="records before the first flush")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0, help="records/s of each producer")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    result = _JOBS[args.job](args)
    print(json.dumps(result))


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def _flush(producer: Producer) -> None:
    if left := producer.flush(TIMEOUT_S):
        raise TimeoutError(f"{left} records were not delivered")


def _warmed_producer(args: argparse.Namespace, **config: str | int | bool) -> Producer:
    """Return a connected producer with the metadata of a topic. Nothing is written to the topic."""
    named = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({"bootstrap.servers": args.bootstrap, "acks": args.acks, **named})
    producer.list_topics(args.topic, timeout=TIMEOUT_S)
    if "transactional.id" in named:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    producer.produce(WARM_UP_TOPIC, b"warm", on_delivery=_delivered)
    _flush(producer)
    if "transactional.id" in named:
        producer.commit_transaction(TIMEOUT_S)
    return producer


def bulk(args: argparse.Namespace) -> dict[str, object]:
    """Write records, one call each; return the seconds until all are delivered."""
    producer = _warmed_producer(args, delivery_report_only_error=True)
    began, cpu = time.perf_counter(), time.process_time()
    _write(producer, args.topic, os.urandom(args.size), args.count)
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def _write(producer: Producer, topic: str, value: bytes, count: int) -> None:
    """Write ``count`` records, one call each, and wait until all are delivered."""
    write, poll = producer.produce, producer.poll
    for number in range(count):
        while True:
            try:
                write(topic, value, on_delivery=_delivered)
                break
            except BufferError:
                poll(0.005)
        if number % BATCH == 0:
            poll(0)
    _flush(producer)


def rounds(args: argparse.Namespace) -> dict[str, object]:
    """Write some records over all partitions and wait for them, many times.

    Returns:
        The seconds of each round, and the processor seconds of all.
    """
    producer = _warmed_producer(args, linger_ms=0)
    partitions = len(
        producer.list_topics(args.topic, timeout=TIMEOUT_S).topics[args.topic].partitions
    )
    value = os.urandom(args.size)
    each = []
    number = 0
    cpu = time.process_time()
    for _ in range(args.count):
        began = time.perf_counter()
        for _ in range(args.together):
            place = number % partitions
            producer.produce(args.topic, value, partition=place, on_delivery=_delivered)
            number += 1
        _flush(producer)
        each.append(time.perf_counter() - began)
    return {"each": each, "seconds": sum(each), "cpu": time.process_time() - cpu}


def transact(args: argparse.Namespace) -> dict[str, object]:
    """Write records with an idempotent producer, some of them in each transaction; 0 for none.

    Returns:
        Seconds of all records, and of each commit after its records were delivered.
    """
    config: dict[str, str | int | bool] = {
        "enable_idempotence": True,
        "delivery_report_only_error": True,
    }
    if args.each:
        config["transactional_id"] = args.topic
    producer = _warmed_producer(args, **config)
    value = os.urandom(args.size)
    commits = []
    began, cpu = time.perf_counter(), time.process_time()
    if not args.each:
        _write(producer, args.topic, value, args.count)
    for start in range(0, args.count if args.each else 0, args.each or 1):
        producer.begin_transaction()
        _write(producer, args.topic, value, min(args.each, args.count - start))
        delivered = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        commits.append(time.perf_counter() - delivered)
    took = time.perf_counter() - began
    return {"seconds": took, "each": commits, "cpu": time.process_time() - cpu}


def consume(args: argparse.Namespace) -> dict[str, object]:
    """Read ``count`` records; return the seconds from the assignment to the last record."""
    consumer = Consumer(
        {
            "bootstrap.servers": args.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            # With the default, a client that is faster than its broker sleeps for a second.
            "fetch.queue.backoff.ms": 2,
            # A fetch that waits at the end of the warm-up topic would delay the measured ones.
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(timeout=TIMEOUT_S).topics[args.topic].partitions
    consumer.assign([TopicPartition(WARM_UP_TOPIC, 0, 0)])
    _take(consumer, 1)
    began, cpu = time.perf_counter(), time.process_time()
    consumer.assign([TopicPartition(args.topic, partition, 0) for partition in partitions])
    size = _take(consumer, args.count)
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    consumer.close()
    return {"seconds": took, "bytes": size, "cpu": spent}


def _take(consumer: Consumer, count: int) -> int:
    """Read ``count`` records and return the bytes of their values."""
    seen = size = 0
    deadline = time.monotonic() + TIMEOUT_S
    while seen < count:
        for message in consumer.consume(min(BATCH, count - seen), timeout=1.0):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            value = message.value()
            size += len(value) if value is not None else 0
            seen += 1
        if time.monotonic() > deadline:
            raise TimeoutError(f"{seen} of {count} records were read")
    return size


# --- a rate --------------------------------------------------------------------------------------


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


def rate(args: argparse.Namespace) -> dict[str, object]:
    """Send records at a rate.

    Returns:
        The number of records, the seconds in which they were sent, the latency of each that was
        acknowledged, and when, in seconds from the beginning.
    """
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": args.bootstrap,
        "acks": args.acks,
        "linger.ms": 0,
        "queue.buffering.max.messages": 1_000_000,
    }
    producers = [Producer(config) for _ in range(args.producers)]
    value = os.urandom(args.size)
    for producer in producers:
        producer.produce(args.topic, value)
    for producer in producers:
        _flush(producer)
    outcome = Outcome()
    cpu, began = time.process_time(), time.perf_counter()
    is_light = args.rate * args.producers <= LIGHT_RATE
    with _polled(producers if is_light else []):
        sent = _send(producers, args, value, outcome, began, polls=not is_light)
        took = time.perf_counter() - began
        for producer in producers:
            _flush(producer)
    return {
        "sent": sent,
        "failed": outcome.failed,
        "seconds": took,
        "cpu": time.process_time() - cpu,
        "each": outcome.latencies,
        "at": [each - began for each in outcome.times],
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


_JOBS: dict[str, Callable[[Any], dict[str, object]]] = {
    each.__name__: each for each in (bulk, rounds, transact, consume, rate)
}


if __name__ == "__main__":
    main()
