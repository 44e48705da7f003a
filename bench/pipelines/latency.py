"""Measures the latency from a record to its result, one record after the other.

Must not know: Spark, contenders.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

WARM_UP_RECORDS = 10
"""Most records that are not measured: the first batches load classes and start workers."""
TIMEOUT_S = 300.0
PAUSE_S = (0.05, 0.25)
"""Bounds of the pause before a record, so that records do not depend on triggers."""


class Failure:
    """The error that ended a query, if there is one."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def check(self) -> None:
        """Raise the error.

        Raises:
            BaseException: The error that ended the query.
        """
        if self.error is not None:
            raise self.error


class Seen:
    """The times at which results were read, by their number."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.changed = threading.Condition()

    def wait_for(self, number: int, failure: Failure) -> None:
        """Wait until the result of a record was read.

        Raises:
            TimeoutError: It did not arrive.
            BaseException: The query has failed.
        """
        deadline = time.monotonic() + TIMEOUT_S
        with self.changed:
            while number not in self.at:
                failure.check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no result of record {number} in {TIMEOUT_S:g} s")
                self.changed.wait(1)


def latencies(brokers: str, source: str, result: str, count: int, failure: Failure) -> list[float]:
    """Return for each record the seconds from before it is produced until its result is read.

    Args:
        brokers: Address of the broker.
        source: Topic that the running query reads.
        result: Topic of its results.
        count: Number of records, without those that warm up.
        failure: The error of the query.
    """
    warm_up = min(WARM_UP_RECORDS, count)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 0})
    took = []
    with reading(brokers, result) as seen:
        for number in range(warm_up + count):
            time.sleep(random.uniform(*PAUSE_S))
            began = time.perf_counter()
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            producer.produce(source, json.dumps({"n": number, "at": now}))
            producer.flush(60)
            seen.wait_for(number, failure)
            took.append(seen.at[number] - began)
    return took[warm_up:]


@contextmanager
def reading(brokers: str, topic: str) -> Iterator[Seen]:
    """Read a topic in the background."""
    seen, over = Seen(), threading.Event()
    config = {"group.id": "bench", "isolation.level": "read_committed", "log_level": 2}
    consumer = Consumer({"bootstrap.servers": brokers, "fetch.wait.max.ms": 500, **config})

    def read() -> None:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not over.is_set():
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            number = json.loads(message.value() or b"{}")["n"]
            with seen.changed:
                seen.at.setdefault(number, time.perf_counter())
                seen.changed.notify_all()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(30)
        consumer.close()
