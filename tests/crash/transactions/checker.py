"""Checks the results: each one once and in order, offsets at the ends, no aborted one readable.

Reads with librdkafka. Knows nothing of workers, only what a result looks like.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from tests.crash.load import read_all
from tests.crash.transactions.clients import Record
from tests.crash.transactions.worker import result_of

Found = dict[tuple[int, int], bytes]
"""Value by partition and offset."""


@dataclass(frozen=True)
class Outcome:
    """All readable records after the workers have ended."""

    given: Found
    results: Found
    """read_committed"""
    everything: Found
    """read_uncommitted"""

    @property
    def aborted(self) -> int:
        """Result records of transactions that were aborted."""
        return len(self.everything) - len(self.results)


def read(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> Found:
    """All records of a topic that a reader can see now."""
    found = read_all(bootstrap, {topic: partitions}, isolation=isolation)
    return {(p, offset): value or b"" for (_, p, offset), value in sorted(found.items())}


def look(bootstrap: str, source: str, target: str, partitions: int) -> Outcome:
    """Read input and output."""
    return Outcome(
        given=read(bootstrap, source, partitions),
        results=read(bootstrap, target, partitions),
        everything=read(bootstrap, target, partitions, "read_uncommitted"),
    )


def check(outcome: Outcome, partitions: int) -> None:
    """Each input has exactly one result, in the order of the input.

    Raises:
        AssertionError: says what is missing, twice or displaced.
    """
    for place, value in outcome.results.items():
        assert outcome.everything.get(place) == value, f"{place} differs by isolation level"
    for partition in range(partitions):
        expected = [
            result_of(Record(partition, offset, None, value))
            for (p, offset), value in sorted(outcome.given.items())
            if p == partition
        ]
        found = [value for (p, _), value in sorted(outcome.results.items()) if p == partition]
        counts = Counter(found)
        missing = [value for value in expected if value not in counts]
        twice = [value for value, count in counts.items() if count > 1]
        assert not missing, f"partition {partition}: {len(missing)} lost, {missing[:5]}"
        assert not twice, f"partition {partition}: {len(twice)} more than once, {twice[:5]}"
        invented = set(found).difference(expected)
        assert not invented, f"partition {partition}: no worker should write {sorted(invented)[:5]}"
        order = [index for index, value in enumerate(found) if value != expected[index]]
        assert not order, f"partition {partition}: order differs from {found[order[0]]!r} on"


def ends(bootstrap: str, topic: str, partitions: int, isolation: str) -> dict[int, int]:
    """End offset by partition: of the log, or (read_committed) the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ends",
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    try:
        return {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1]
            for p in range(partitions)
        }
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """The group's offset by partition; 0 where it has none. Waits for open transactions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        asked = [TopicPartition(topic, p) for p in range(partitions)]
        return {tp.partition: max(tp.offset, 0) for tp in consumer.committed(asked, timeout=60)}
    finally:
        consumer.close()
