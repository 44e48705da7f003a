"""The topic configs of Apache Kafka 4.3: names, types, defaults, allowed values and texts.

``LogConfig`` is the declaration and the parsed value at the same time: ``retention.ms`` is its
field ``retention_ms``. ``parse`` makes one from strings, and the metadata of its fields feeds
clients, tools and the reference documentation. Knows no files and no topics.

Some configs are special. What one broker does not support (remote storage, replication throttles,
several in-sync replicas, preallocation) is accepted with Kafka's default value only, because
ignoring another value would promise something that does not happen. Unclean leader elections can
be configured without effect, because one broker has no elections. ``internal.segment.bytes``, which
Kafka's own tests use, is accepted but not listed. The configs that begin with ``lag.`` are
tidemill's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.log.config.definition import (
    MAX_LONG,
    Check,
    ConfigType,
    Synonym,
    at_least,
    between,
    config,
    one_of,
    some_of,
)

_GZIP_LEVEL = Check("[1,...,9] or -1", lambda value: value == -1 or 1 <= value <= 9)
_MINUTE = 60_000
_HOUR = 3_600_000
_DAY = 24 * _HOUR
_T = ConfigType


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The parsed configs of one topic. ``LogConfig()`` has Kafka's defaults.

    Times are in milliseconds and sizes in bytes, as the names say.
    """

    cleanup_policy: frozenset[str] = config(
        _T.LIST,
        frozenset({"delete"}),
        "What happens to old segments: 'delete' removes them by age and size, 'compact' keeps the "
        "last record of each key, both together do both, and an empty list keeps everything.",
        check=some_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    compression_gzip_level: int = config(
        _T.INT,
        -1,
        "Level of gzip where compression.type is gzip; -1 is gzip's own default.",
        check=_GZIP_LEVEL,
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level: int = config(
        _T.INT,
        9,
        "Level of lz4 where compression.type is lz4.",
        check=between(1, 17),
        synonyms=("compression.lz4.level",),
    )
    compression_type: str = config(
        _T.STRING,
        "producer",
        "Codec that batches are stored with; 'producer' keeps each batch as it was sent; with any "
        "other codec, the broker recompresses batches that have a different one.",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    )
    compression_zstd_level: int = config(
        _T.INT,
        3,
        "Level of zstd where compression.type is zstd.",
        check=between(-131072, 22),
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms: int = config(
        _T.LONG,
        _DAY,
        "How long a compacted topic keeps tombstones (null values) after compaction first reads "
        "them. A reader that starts at the beginning must reach the end within this time to see "
        "each deletion.",
        check=at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = config(
        _T.LONG,
        _MINUTE,
        "How long the files of a removed segment stay on disk under a name ending in .deleted.",
        check=at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    )
    flush_messages: int = config(
        _T.LONG,
        MAX_LONG,
        "Number of records after which the log is synced to disk; writes with acks=all are always "
        "synced before they are acknowledged, with any value.",
        check=at_least(1),
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms: int = config(
        _T.LONG,
        MAX_LONG,
        "Time after which the log is synced to disk; the broker syncs within its own, shorter "
        "sync_interval_ms in any case.",
        check=at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: frozenset[str] = config(
        _T.LIST,
        frozenset(),
        "Replicas whose replication is throttled on the follower's side; there are no followers "
        "here, so the list must be empty.",
        fixed=True,
    )
    index_interval_bytes: int = config(
        _T.INT,
        4096,
        "Bytes of log between two entries of the offset index. A smaller value makes reads scan "
        "less, and the index larger.",
        check=at_least(0),
        synonyms=("log.index.interval.bytes",),
    )
    internal_segment_bytes: int | None = config(
        _T.INT,
        None,
        "Segment size without the lower bound of segment.bytes; for tests only.",
        check=at_least(1),
        internal=True,
    )
    lag_group: str = config(
        _T.STRING,
        "",
        "The consumer group whose lag decides about lag.policy.",
    )
    lag_max_bytes: int = config(
        _T.LONG,
        -1,
        "How far lag.group may be behind in each partition, in bytes; -1 means no limit.",
        check=at_least(-1),
    )
    lag_max_ms: int = config(
        _T.LONG,
        -1,
        "How old the next record of lag.group may be in each partition, by its timestamp; -1 "
        "means no limit.",
        check=at_least(-1),
    )
    lag_max_records: int = config(
        _T.LONG,
        -1,
        "How far lag.group may be behind in each partition, in records; -1 means no limit.",
        check=at_least(-1),
    )
    lag_policy: str = config(
        _T.STRING,
        "buffer",
        "What happens when lag.group is further behind than a limit: 'buffer' keeps the records "
        "on disk, 'throttle' holds producers back, 'drop' deletes the oldest records, and 'alert' "
        "logs a warning.",
        check=one_of("buffer", "throttle", "drop", "alert"),
    )
    leader_replication_throttled_replicas: frozenset[str] = config(
        _T.LIST,
        frozenset(),
        "Replicas whose replication is throttled on the leader's side; there are no followers "
        "here, so the list must be empty.",
        fixed=True,
    )
    local_retention_bytes: int = config(
        _T.LONG,
        -2,
        "Bytes kept locally where remote storage is on; -2 means retention.bytes.",
        check=at_least(-2),
        synonyms=("log.local.retention.bytes",),
        fixed=True,
    )
    local_retention_ms: int = config(
        _T.LONG,
        -2,
        "Time kept locally where remote storage is on; -2 means retention.ms.",
        check=at_least(-2),
        synonyms=("log.local.retention.ms",),
        fixed=True,
    )
    max_compaction_lag_ms: int = config(
        _T.LONG,
        MAX_LONG,
        "Longest time that a record of a compacted topic can wait for compaction, even if the "
        "dirty part of the log is small.",
        check=at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    max_message_bytes: int = config(
        _T.INT,
        1_048_588,
        "Largest record batch that is accepted, in bytes after compression.",
        check=at_least(0),
        synonyms=("message.max.bytes",),
    )
    message_timestamp_after_max_ms: int = config(
        _T.LONG,
        _HOUR,
        "How far a record's timestamp may lie in the broker's future; it is not checked with "
        "LogAppendTime.",
        check=at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = config(
        _T.LONG,
        MAX_LONG,
        "How far a record's timestamp may lie in the broker's past; it is not checked with "
        "LogAppendTime.",
        check=at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = config(
        _T.STRING,
        "CreateTime",
        "Whether records keep the producer's timestamp (CreateTime) or get the broker's time of "
        "the append (LogAppendTime).",
        check=one_of("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = config(
        _T.DOUBLE,
        0.5,
        "Share of the log's bytes that must be uncompacted before a compaction starts. It limits "
        "the space of superseded records.",
        check=between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = config(
        _T.LONG,
        0,
        "Shortest time that a record of a compacted topic stays uncompacted. A reader that is "
        "never further behind sees every record.",
        check=at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = config(
        _T.INT,
        1,
        "Replicas that must have a write before acks=all is answered. Each partition has one "
        "replica here, so a larger value counts as 1, as in Apache Kafka.",
        check=at_least(1),
        synonyms=("min.insync.replicas",),
    )
    preallocate: bool = config(
        _T.BOOLEAN,
        False,
        "Whether a new segment's file is created with its full size; not supported.",
        synonyms=("log.preallocate",),
        fixed=True,
    )
    remote_log_copy_disable: bool = config(
        _T.BOOLEAN,
        False,
        "Whether a topic with remote storage stops copying to it; there is no remote storage.",
        fixed=True,
    )
    remote_log_delete_on_disable: bool = config(
        _T.BOOLEAN,
        False,
        "Whether remote data is deleted when remote storage is switched off; there is none.",
        fixed=True,
    )
    remote_storage_enable: bool = config(
        _T.BOOLEAN,
        False,
        "Whether old segments move to remote storage; not supported.",
        fixed=True,
    )
    retention_bytes: int = config(
        _T.LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 means no limit.",
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = config(
        _T.LONG,
        7 * _DAY,
        "Age above which segments are deleted, counted from a segment's latest record; -1 means "
        "no limit.",
        check=at_least(-1),
        synonyms=(
            "log.retention.ms",
            Synonym("log.retention.minutes", _MINUTE),
            Synonym("log.retention.hours", _HOUR),
        ),
    )
    segment_bytes: int = config(
        _T.INT,
        1 << 30,
        "Size at which a segment is closed and a new one started; retention and compaction work "
        "on closed segments.",
        check=at_least(1 << 20),
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes: int = config(
        _T.INT,
        10 << 20,
        "Largest size of a segment's index; a segment whose index is full is closed.",
        check=at_least(4),
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = config(
        _T.LONG,
        0,
        "Largest random time taken off segment.ms, so that partitions roll at different times.",
        check=at_least(0),
        synonyms=("log.roll.jitter.ms", Synonym("log.roll.jitter.hours", _HOUR)),
    )
    segment_ms: int = config(
        _T.LONG,
        7 * _DAY,
        "Age at which a segment that is not full is closed, so that retention and compaction can "
        "reach its records.",
        check=at_least(1),
        synonyms=("log.roll.ms", Synonym("log.roll.hours", _HOUR)),
    )
    unclean_leader_election_enable: bool = config(
        _T.BOOLEAN,
        False,
        "Whether a replica that lags can become leader; accepted without effect, because there is "
        "one replica.",
        synonyms=("unclean.leader.election.enable",),
    )

    @property
    def compact(self) -> bool:
        """Whether ``cleanup.policy`` has 'compact'."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether ``cleanup.policy`` has 'delete'."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment is closed, so that compaction can keep its longest lag."""
        if self.compact:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms
