"""The four series of kafka_exporter that its published dashboard shows, under its names.

They are series of partitions, so they are at ``/metrics/partitions``. Source:
https://github.com/danielqsj/kafka_exporter#metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.engine.metrics.groups import GroupMetrics
from tidemill.log.store import LogStore
from tidemill.metrics.definition import gauge
from tidemill.metrics.registry import Family, Registry, Row

PARTITIONS = gauge("kafka_topic_partitions", "Partitions of a topic.", "topic", foreign=True)
END = gauge(
    "kafka_topic_partition_current_offset",
    "Offset of the next record of a partition.",
    *("topic", "partition"),
    foreign=True,
)
COMMITTED = gauge(
    "kafka_consumergroup_current_offset",
    "Committed offset of a group in a partition.",
    *("consumergroup", "topic", "partition"),
    foreign=True,
)
LAG = gauge(
    "kafka_consumergroup_lag",
    "Records of a partition that a group has not read.",
    *("consumergroup", "topic", "partition"),
    foreign=True,
)


def add_kafka_names(registry: Registry, store: LogStore, groups: GroupMetrics) -> None:
    """Add these series to the page of partitions."""

    def collect() -> Iterator[Family]:
        counts: dict[str, int] = {}
        ends: list[Row] = []
        for tp, log in store.partitions.items():
            counts[tp.topic] = counts.get(tp.topic, 0) + 1
            ends.append(((tp.topic, str(tp.partition)), log.high_watermark))
        yield PARTITIONS, (((topic,), count) for topic, count in counts.items())
        yield END, ends
        committed: list[Row] = []
        lags: list[Row] = []
        for number, found in enumerate(groups.committed()):
            if found is not None:
                (group, topic, partition), log, offset = found
                labels = group, topic, str(partition)
                committed.append((labels, offset))
                lags.append((labels, log.high_watermark - offset))
            if number % 64 == 63:
                yield COMMITTED, ()  # a place to pause
        yield COMMITTED, committed
        yield LAG, lags

    registry.collect(collect, detailed=True)
