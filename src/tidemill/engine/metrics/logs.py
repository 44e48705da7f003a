"""Metrics of topics, partitions, the disk, syncs and the journal."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tidemill.engine import journaling
from tidemill.engine.flusher import Flusher
from tidemill.engine.metrics.bounds import Sums, bounded
from tidemill.engine.records.read import Reader
from tidemill.log.store import LogStore
from tidemill.metrics.definition import counter, gauge
from tidemill.metrics.registry import Family, Registry, Row

TOPICS = gauge("tidemill_topics", "Topics, with the broker's own.")
PARTITIONS = gauge("tidemill_partitions", "Partitions that are served.")
OFFLINE = gauge(
    "tidemill_partitions_offline", "Partitions that are not served, because a log is damaged."
)
TOPIC_PARTITIONS = gauge("tidemill_topic_partitions", "Partitions of a topic.", "topic")
TOPIC_RECORDS = counter(
    "tidemill_topic_records_in_total",
    "Records that were ever appended to a topic, from its offsets.",
    "topic",
)
TOPIC_BYTES_IN = counter(
    "tidemill_topic_bytes_in_total",
    "Bytes of record batches that were appended since the start.",
    "topic",
)
TOPIC_BYTES_OUT = counter(
    "tidemill_topic_bytes_out_total",
    "Bytes of record batches that fetches returned since the start.",
    "topic",
)
TOPIC_SIZE = gauge("tidemill_topic_size_bytes", "Size of a topic's segments on disk.", "topic")
DISK_TOTAL = gauge("tidemill_disk_total_bytes", "Size of the file system with the data folder.")
DISK_FREE = gauge("tidemill_disk_free_bytes", "Bytes that are left there for the broker.")
UNSYNCED = gauge("tidemill_unsynced_logs", "Partitions with records that are not on disk yet.")
JOURNAL_SIZE = gauge("tidemill_journal_size_bytes", "Size of the journal's files.")
JOURNAL_USED = gauge(
    "tidemill_journal_used_bytes", "Bytes of the journal that are needed until segments are synced."
)
JOURNAL_WRITTEN = counter(
    "tidemill_journal_written_bytes_total", "Bytes of entries that were written to the journal."
)

START = gauge(
    "tidemill_partition_log_start_offset", "First offset of a partition.", "topic", "partition"
)
END = gauge(
    "tidemill_partition_log_end_offset",
    "Offset of the next record of a partition.",
    "topic",
    "partition",
)
HIGH_WATERMARK = gauge(
    "tidemill_partition_high_watermark",
    "Offset below which all records of a partition are on disk. Readers see nothing above it.",
    "topic",
    "partition",
)
STABLE = gauge(
    "tidemill_partition_last_stable_offset",
    "Offset below which no transaction is open in a partition.",
    "topic",
    "partition",
)
SIZE = gauge(
    "tidemill_partition_size_bytes",
    "Size of a partition's segments on disk.",
    "topic",
    "partition",
)
SEGMENTS = gauge(
    "tidemill_partition_segments", "Number of a partition's segments.", "topic", "partition"
)


class LogMetrics:
    """Metrics of the logs of one broker.

    Args:
        most_topics: topics with series of their own.
    """

    def __init__(self, store: LogStore, flusher: Flusher, reader: Reader, most_topics: int) -> None:
        self._store = store
        self._flusher = flusher
        self._reader = reader
        self._most_topics = most_topics

    def register(self, registry: Registry) -> None:
        """Add these metrics to a registry."""
        registry.collect(self._topics)
        registry.collect(self._disk)
        registry.collect(self._partitions, detailed=True)

    def _topics(self) -> Iterator[Family]:
        logs = list(self._store.partitions.items())
        names = {tp.topic for tp, _ in logs}
        yield TOPICS, [((), len(names))]
        yield PARTITIONS, [((), len(logs))]
        yield OFFLINE, [((), len(self._store.offline))]
        label = bounded(names, self._most_topics)
        sums = Sums(5)
        for number, (tp, log) in enumerate(logs):
            each = sums.at(label(tp.topic))
            each[0] += 1
            each[1] += log.log_end_offset
            each[2] += log.appended_bytes
            each[3] += log.size_bytes
            if number % 256 == 255:
                yield TOPICS, ()  # a place to pause
        read = self._reader.bytes_by_topic
        for topic in [topic for topic in read if topic not in names]:
            del read[topic]
        for topic, size in list(read.items()):
            sums.at(label(topic))[4] += size
        for field, metric in enumerate(
            (TOPIC_PARTITIONS, TOPIC_RECORDS, TOPIC_BYTES_IN, TOPIC_SIZE, TOPIC_BYTES_OUT)
        ):
            yield metric, sums.rows(field)

    def _disk(self) -> Iterator[Family]:
        disk = os.statvfs(self._store.path)
        yield DISK_TOTAL, [((), disk.f_frsize * disk.f_blocks)]
        yield DISK_FREE, [((), disk.f_frsize * disk.f_bavail)]
        yield UNSYNCED, [((), self._flusher.unsynced)]
        rows: list[Row] = [(("segments",), self._flusher.sync_seconds)]
        journal = self._flusher.journaling
        if journal is not None:
            rows.append((("journal",), journal.sync_seconds))
        yield journaling.SYNC_SECONDS, rows
        if journal is not None:
            yield JOURNAL_WRITTEN, [((), journal.written_bytes)]
            yield JOURNAL_SIZE, [((), self._store.journal.size_bytes)]
            yield JOURNAL_USED, [((), self._store.journal.used_bytes)]

    def _partitions(self) -> Iterator[Family]:
        logs = [((tp.topic, str(tp.partition)), log) for tp, log in self._store.partitions.items()]
        yield START, ((labels, log.log_start_offset) for labels, log in logs)
        yield END, ((labels, log.log_end_offset) for labels, log in logs)
        yield HIGH_WATERMARK, ((labels, log.high_watermark) for labels, log in logs)
        yield STABLE, ((labels, log.last_stable_offset) for labels, log in logs)
        yield SIZE, ((labels, log.size_bytes) for labels, log in logs)
        yield SEGMENTS, ((labels, len(log.segments)) for labels, log in logs)
