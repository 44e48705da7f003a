"""A librdkafka client in its own process: does one job and prints one JSON object.

Settings are the client's defaults except where a comment explains it. ``librdkafka.py`` and
``latency.py`` run it::

    python -m bench.rdkafka_client produce --bootstrap HOST:PORT --topic T --count N --size BYTES
"""

from __future__ import annotations

import argparse
import json
import os
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

WARM_UP_TOPIC = "bench-warm-up"
TIMEOUT_S = 60.0
BATCH = 1000
SPREAD_RECORDS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=["produce", "consume", "latency", "spread", "transact"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--each", type=int, default=0, help="records in a transaction; 0 for none")
    args = parser.parse_args()
    if args.job == "consume":
        result = consume(args.bootstrap, args.topic, args.count)
    elif args.job == "produce":
        result = produce(args.bootstrap, args.topic, args.count, args.size, args.acks)
    elif args.job == "spread":
        result = spread(args.bootstrap, args.topic, args.count, args.size)
    elif args.job == "transact":
        result = transact(args.bootstrap, args.topic, args.count, args.size, args.each)
    else:
        result = latency(args.bootstrap, args.topic, args.count, args.size)
    print(json.dumps(result))


def _delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def _warmed_producer(bootstrap: str, topic: str, config: dict[str, str | int | bool]) -> Producer:
    """Return a connected producer with the metadata of a topic. Nothing is written to the topic."""
    producer = Producer({"bootstrap.servers": bootstrap, **config})
    producer.list_topics(topic, timeout=TIMEOUT_S)
    producer.produce(WARM_UP_TOPIC, b"warm", on_delivery=_delivered)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("the warm-up record was not delivered")
    return producer


def produce(bootstrap: str, topic: str, count: int, size: int, acks: str) -> dict[str, object]:
    """Write ``count`` records, one call each; return the seconds until all are delivered."""
    config: dict[str, str | int | bool] = {"acks": acks, "delivery.report.only.error": True}
    producer = _warmed_producer(bootstrap, topic, config)
    value = os.urandom(size)
    began = time.perf_counter()
    _write(producer, topic, value, count)
    return {"seconds": time.perf_counter() - began}


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
    left = producer.flush(TIMEOUT_S)
    if left:
        raise TimeoutError(f"{left} records were not delivered")


def spread(bootstrap: str, topic: str, count: int, size: int) -> dict[str, object]:
    """Write 100 records over all partitions and wait for them, ``count`` times.

    Returns:
        The seconds of each 100 records, and the processor seconds of all.
    """
    producer = _warmed_producer(bootstrap, topic, {"acks": "all", "linger.ms": 0})
    partitions = len(producer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
    value = os.urandom(size)
    each = []
    number = 0
    cpu = time.process_time()
    for _ in range(count):
        began = time.perf_counter()
        for _ in range(SPREAD_RECORDS):
            producer.produce(topic, value, partition=number % partitions, on_delivery=_delivered)
            number += 1
        if producer.flush(TIMEOUT_S):
            raise TimeoutError("records were not delivered")
        each.append(time.perf_counter() - began)
    return {"each": each, "cpu": time.process_time() - cpu}


def transact(bootstrap: str, topic: str, count: int, size: int, each: int) -> dict[str, object]:
    """Write ``count`` records with an idempotent producer, ``each`` in a transaction; 0 for none.

    Returns:
        Seconds of all records, and of each commit after its records were delivered.
    """
    config: dict[str, str | int | bool] = {
        "enable.idempotence": True,
        "delivery.report.only.error": True,
    }
    value = os.urandom(size)
    if not each:
        producer = _warmed_producer(bootstrap, topic, config)
        began = time.perf_counter()
        _write(producer, topic, value, count)
        return {"seconds": time.perf_counter() - began, "commits": []}
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, **config})
    producer.init_transactions(TIMEOUT_S)
    producer.list_topics(topic, timeout=TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(WARM_UP_TOPIC, b"warm", on_delivery=_delivered)
    producer.commit_transaction(TIMEOUT_S)
    commits = []
    began = time.perf_counter()
    for start in range(0, count, each):
        producer.begin_transaction()
        _write(producer, topic, value, min(each, count - start))
        delivered = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        commits.append(time.perf_counter() - delivered)
    return {"seconds": time.perf_counter() - began, "commits": commits}


def consume(bootstrap: str, topic: str, count: int) -> dict[str, object]:
    """Read ``count`` records; return the seconds from the assignment to the last record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            # With the default, a client that is faster than its broker sleeps for a second.
            "fetch.queue.backoff.ms": 2,
            # A fetch that waits at the end of the warm-up topic would delay the measured ones.
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = consumer.list_topics(timeout=TIMEOUT_S).topics[topic].partitions
    consumer.assign([TopicPartition(WARM_UP_TOPIC, 0, 0)])
    _take(consumer, 1)
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    size = _take(consumer, count)
    took = time.perf_counter() - began
    consumer.close()
    return {"seconds": took, "bytes": size}


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


def latency(bootstrap: str, topic: str, count: int, size: int) -> dict[str, object]:
    """Write ``count`` records, each after the previous acknowledgement; return the seconds."""
    producer = _warmed_producer(bootstrap, topic, {"acks": "all", "linger.ms": 0})
    value = os.urandom(size)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        producer.produce(topic, value, on_delivery=_delivered)
        if producer.flush(TIMEOUT_S):
            raise TimeoutError("a record was not delivered")
        seconds.append(time.perf_counter() - began)
    return {"each": seconds}


if __name__ == "__main__":
    main()
