"""Clients that continue while their broker is killed: producers, a reader, a committer.

Each is a thread around a real librdkafka client that outlives the broker's restarts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.crash.ledger import Ledger, Place

PAUSE_S = 0.001
"""Pause between two sends, so that the load lasts for many restarts and does not fill the disk."""

_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.KAFKA_STORAGE_ERROR,
}


class Load:
    """Threads that use a broker until they are stopped; ``failures`` has their exceptions."""

    def __init__(self, bootstrap: str, ledger: Ledger) -> None:
        self._bootstrap = bootstrap
        self._ledger = ledger
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []
        self.sent = 0

    def produce(
        self, name: str, topic: str, partitions: int, *, promised: bool, **config: object
    ) -> None:
        """Send numbered records.

        Args:
            promised: acknowledgements go into the ledger (``acks=all``).
        """
        self._run(lambda: self._produce(name.encode(), topic, partitions, promised, config))

    def read(self, topic: str, partitions: int) -> None:
        """Read all partitions continuously, and record what was read."""
        self._run(lambda: self._read(topic, partitions))

    def commit(self, group: str, topic: str) -> None:
        """Commit rising offsets, one at a time, and record the acknowledged ones."""
        self._run(lambda: self._commit(group, topic))

    def stop(self) -> None:
        """End all threads. Producers flush first, so that every send has an outcome."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client did not end"
        if self.failures:
            raise self.failures[0]

    def _run(self, work: object) -> None:
        def body() -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=body)
        self._threads.append(thread)
        thread.start()

    def _produce(
        self,
        name: bytes,
        topic: str,
        partitions: int,
        promised: bool,
        config: Mapping[str, object],
    ) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
                **config,
            }
        )

        def delivered(error: KafkaError | None, message: Message) -> None:
            value = message.value()
            assert isinstance(value, bytes)
            if error is not None:
                if error.code() in _REFUSALS:
                    self._ledger.refuse(value)
            elif promised:
                self._ledger.acknowledge(place_of(message), value)

        for number in itertools.count():
            if self._stop.is_set():
                break
            value = b"%b:%d:%b" % (name, number, os.urandom(400))
            with contextlib.suppress(BufferError):
                producer.produce(
                    topic,
                    value,
                    key=b"%d" % (number % 50),
                    partition=number % partitions,
                    on_delivery=delivered,
                )
                self.sent += 1
            producer.poll(PAUSE_S)
        left = producer.flush(60)
        assert left == 0, f"{left} records of {name!r} have no outcome"

    def _read(self, topic: str, partitions: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 100,
                "check.crcs": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    value = message.value()
                    assert isinstance(value, bytes)
                    self._ledger.see(place_of(message), value)
                else:
                    assert error.code() != KafkaError._AUTO_OFFSET_RESET, str(error)
        consumer.close()

    def _commit(self, group: str, topic: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        for offset in itertools.count(1):
            if self._stop.wait(0.002):
                break
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
            except KafkaException:
                continue  # the outcome is not known: it may have been written
            self._ledger.commit(group, offset)
        consumer.close()


def place_of(message: Message) -> Place:
    """Return the topic, partition and offset of a record."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def read_all(
    bootstrap: str,
    topics: Mapping[str, int],
    *,
    offsets_timeout: float = 60,
    isolation: str = "read_committed",
) -> dict[Place, bytes | None]:
    """Return every readable record, up to the present high watermarks (or last stable offsets).

    Args:
        isolation: ``isolation.level`` of the reader.
        offsets_timeout: seconds to wait for a partition's offsets: librdkafka never gives up on
            a partition that is offline.

    Raises:
        KafkaException: a partition can't be read.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"audit-{random.random()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # an empty answer reports the end
            "isolation.level": isolation,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    waiting = {(topic, p) for topic, count in topics.items() for p in range(count)}
    starts = []
    for topic, partition in waiting:
        low, _ = consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=offsets_timeout
        )
        starts.append(TopicPartition(topic, partition, low))
    consumer.assign(starts)
    found: dict[Place, bytes | None] = {}
    deadline = time.monotonic() + 60
    try:
        while waiting:
            assert time.monotonic() < deadline, f"no answer for {sorted(waiting)}"
            for message in consumer.consume(1000, 0.05):
                deadline = time.monotonic() + 60
                error = message.error()
                if error is None:
                    found[place_of(message)] = message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard((str(message.topic()), int(message.partition() or 0)))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found
