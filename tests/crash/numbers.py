"""The records of the crash tests of topic sinks, and what must be in the topics at the end.

The numbers 0, 1, 2, ... are the records of a topic, each partition in turn. ``spark_driver`` copies
them and counts them by key. Must not know: processes, how they are killed.
"""

from __future__ import annotations

import threading

from confluent_kafka import Producer

from tests.crash.spark_driver import KEYS
from tests.support.committed import read_to_end, values
from tests.support.topics import create

SOURCE, COPY, COUNTS = "numbers", "copy", "counts"
"""The topics."""
PARTITIONS = 2


def create_topics(bootstrap: str) -> None:
    """Create the topics of the records, of the copy and of the counts."""
    create(bootstrap, SOURCE, COPY, COUNTS, partitions=PARTITIONS)


class NumberProducer(threading.Thread):
    """Writes 0, 1, 2, ... to the source's partitions in turn, until ``stop`` is called."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._stopped = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )

    def run(self) -> None:
        while not self._stopped.wait(0.02):
            for _ in range(10):
                self._producer.produce(
                    SOURCE, b"%d" % self.count, partition=self.count % PARTITIONS
                )
                self.count += 1
            self._producer.poll(0)

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert self._producer.flush(60) == 0


def check_copy(bootstrap: str, count: int, context: str) -> None:
    """Check that each record is in the copy once, in the source's order."""
    for partition in range(PARTITIONS):
        found = [int(value or b"-1") for value in values(bootstrap, COPY, partition)]
        expected = list(range(partition, count, PARTITIONS))
        lost = sorted(set(expected) - set(found))
        assert not lost, f"lost {lost[:10]} and more, {len(lost)} in all; {context}"
        assert len(found) == len(set(found)), f"written twice; {context}"
        assert found == expected, f"out of order; {context}"


def check_counts(bootstrap: str, count: int, context: str) -> None:
    """Check that each count of a key is written once, and that the last one is correct."""
    counts: dict[int, list[int]] = {}
    for partition in range(PARTITIONS):
        for message in read_to_end(bootstrap, COUNTS, partition):
            key, value = int(message.key() or b"-1"), int(message.value() or b"-1")
            counts.setdefault(key, []).append(value)
    expected = {key: len(range(key, count, KEYS)) for key in range(KEYS)}
    assert {key: found[-1] for key, found in counts.items()} == expected, context
    for key, found in counts.items():
        assert found == sorted(set(found)), f"key {key} has {found}; {context}"
