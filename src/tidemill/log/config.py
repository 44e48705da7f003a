"""Topic configs: each of Apache Kafka 4.3's, declared once with name, type, default, bounds, text.

``LogConfig`` is both the declaration and the parsed value: its fields carry what clients, tools
and the reference documentation need. Knows no files and no topics; whoever stores overrides keeps
strings and parses them here.

Three kinds of config are taken apart from the rest. What one broker can't do (remote storage,
replication throttles, more than one in-sync replica, preallocation) is accepted at Kafka's default
value only: to accept and ignore it would promise what does not happen. What one broker has no
occasion for (unclean elections) is accepted and has no effect. What tests of Kafka itself use
(``internal.segment.bytes``) is accepted, and not listed.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.errors import InvalidConfigError
from tidemill.log.configdef import MAX_LONG as MAX_LONG
from tidemill.log.configdef import (
    Check,
    ConfigDef,
    Synonym,
    at_least,
    between,
    config,
    one_of,
    some_of,
)
from tidemill.log.configdef import ConfigType as ConfigType

_GZIP_LEVEL = Check("[1,...,9] or -1", lambda value: value == -1 or 1 <= value <= 9)
_MINUTE = 60_000
_HOUR = 3_600_000
_DAY = 24 * _HOUR
_T = ConfigType


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The configs of one topic, parsed; ``LogConfig()`` has Kafka's defaults.

    Times are milliseconds and sizes bytes, as the names say.
    """

    cleanup_policy: frozenset[str] = config(
        "cleanup.policy",
        _T.LIST,
        frozenset({"delete"}),
        "What happens to old segments: 'delete' removes them by age and size, 'compact' keeps the "
        "last record of each key, both together do both, and an empty list keeps everything.",
        check=some_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    compression_gzip_level: int = config(
        "compression.gzip.level",
        _T.INT,
        -1,
        "Level of gzip where compression.type is gzip; -1 is gzip's own default.",
        check=_GZIP_LEVEL,
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level: int = config(
        "compression.lz4.level",
        _T.INT,
        9,
        "Level of lz4 where compression.type is lz4.",
        check=between(1, 17),
        synonyms=("compression.lz4.level",),
    )
    compression_type: str = config(
        "compression.type",
        _T.STRING,
        "producer",
        "Codec that batches are stored with; 'producer' keeps each batch as it was sent, any other "
        "costs the broker a recompression of batches that come with another codec.",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    )
    compression_zstd_level: int = config(
        "compression.zstd.level",
        _T.INT,
        3,
        "Level of zstd where compression.type is zstd.",
        check=between(-131072, 22),
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms: int = config(
        "delete.retention.ms",
        _T.LONG,
        _DAY,
        "How long a compacted topic keeps tombstones (null values) after compaction first met "
        "them: the time a reader that starts at the beginning has to see each deletion.",
        check=at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = config(
        "file.delete.delay.ms",
        _T.LONG,
        _MINUTE,
        "How long the files of a removed segment stay on disk under a name ending in .deleted.",
        check=at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    )
    flush_messages: int = config(
        "flush.messages",
        _T.LONG,
        MAX_LONG,
        "Number of records after which the log is synced to disk; writes with acks=all are always "
        "synced before they are acknowledged, whatever this says.",
        check=at_least(1),
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms: int = config(
        "flush.ms",
        _T.LONG,
        MAX_LONG,
        "Time after which the log is synced to disk; the broker syncs within its own, shorter "
        "sync_interval_ms in any case.",
        check=at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: frozenset[str] = config(
        "follower.replication.throttled.replicas",
        _T.LIST,
        frozenset(),
        "Replicas whose replication is throttled on the follower's side; there are no followers "
        "here, so the list must be empty.",
        fixed=True,
    )
    index_interval_bytes: int = config(
        "index.interval.bytes",
        _T.INT,
        4096,
        "Bytes of log between two entries of the offset index: fewer make reads find their place "
        "with less scanning and the index larger.",
        check=at_least(0),
        synonyms=("log.index.interval.bytes",),
    )
    internal_segment_bytes: int | None = config(
        "internal.segment.bytes",
        _T.INT,
        None,
        "Segment size without the lower bound of segment.bytes; for tests only.",
        check=at_least(1),
        internal=True,
    )
    leader_replication_throttled_replicas: frozenset[str] = config(
        "leader.replication.throttled.replicas",
        _T.LIST,
        frozenset(),
        "Replicas whose replication is throttled on the leader's side; there are no followers "
        "here, so the list must be empty.",
        fixed=True,
    )
    local_retention_bytes: int = config(
        "local.retention.bytes",
        _T.LONG,
        -2,
        "Bytes kept locally where remote storage is on; -2 means retention.bytes.",
        check=at_least(-2),
        synonyms=("log.local.retention.bytes",),
        fixed=True,
    )
    local_retention_ms: int = config(
        "local.retention.ms",
        _T.LONG,
        -2,
        "Time kept locally where remote storage is on; -2 means retention.ms.",
        check=at_least(-2),
        synonyms=("log.local.retention.ms",),
        fixed=True,
    )
    max_compaction_lag_ms: int = config(
        "max.compaction.lag.ms",
        _T.LONG,
        MAX_LONG,
        "Longest time that a record of a compacted topic may wait for compaction, however small "
        "the dirty part of the log is.",
        check=at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    max_message_bytes: int = config(
        "max.message.bytes",
        _T.INT,
        1_048_588,
        "Largest record batch that is accepted, in bytes after compression.",
        check=at_least(0),
        synonyms=("message.max.bytes",),
    )
    message_timestamp_after_max_ms: int = config(
        "message.timestamp.after.max.ms",
        _T.LONG,
        _HOUR,
        "How far a record's timestamp may lie in the broker's future; it is not checked with "
        "LogAppendTime.",
        check=at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = config(
        "message.timestamp.before.max.ms",
        _T.LONG,
        MAX_LONG,
        "How far a record's timestamp may lie in the broker's past; it is not checked with "
        "LogAppendTime.",
        check=at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = config(
        "message.timestamp.type",
        _T.STRING,
        "CreateTime",
        "Whether records keep the producer's timestamp (CreateTime) or get the broker's time of "
        "the append (LogAppendTime).",
        check=one_of("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = config(
        "min.cleanable.dirty.ratio",
        _T.DOUBLE,
        0.5,
        "Share of the log's bytes that must be uncompacted before a compaction starts: it bounds "
        "the space that superseded records take.",
        check=between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = config(
        "min.compaction.lag.ms",
        _T.LONG,
        0,
        "Shortest time that a record of a compacted topic stays uncompacted, so that readers who "
        "keep up within it see every record.",
        check=at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = config(
        "min.insync.replicas",
        _T.INT,
        1,
        "Replicas that must have a write before acks=all is answered; one broker is one replica.",
        check=at_least(1),
        synonyms=("min.insync.replicas",),
        fixed=True,
    )
    preallocate: bool = config(
        "preallocate",
        _T.BOOLEAN,
        False,
        "Whether a new segment's file gets its full size at once; not supported.",
        synonyms=("log.preallocate",),
        fixed=True,
    )
    remote_log_copy_disable: bool = config(
        "remote.log.copy.disable",
        _T.BOOLEAN,
        False,
        "Whether a topic with remote storage stops copying to it; there is no remote storage.",
        fixed=True,
    )
    remote_log_delete_on_disable: bool = config(
        "remote.log.delete.on.disable",
        _T.BOOLEAN,
        False,
        "Whether remote data is deleted when remote storage is switched off; there is none.",
        fixed=True,
    )
    remote_storage_enable: bool = config(
        "remote.storage.enable",
        _T.BOOLEAN,
        False,
        "Whether old segments move to remote storage; not supported.",
        fixed=True,
    )
    retention_bytes: int = config(
        "retention.bytes",
        _T.LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 is no limit.",
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = config(
        "retention.ms",
        _T.LONG,
        7 * _DAY,
        "Age above which segments are deleted, counted from a segment's latest record; -1 is no "
        "limit.",
        check=at_least(-1),
        synonyms=(
            "log.retention.ms",
            Synonym("log.retention.minutes", _MINUTE),
            Synonym("log.retention.hours", _HOUR),
        ),
    )
    segment_bytes: int = config(
        "segment.bytes",
        _T.INT,
        1 << 30,
        "Size at which a segment is closed and a new one started; retention and compaction work "
        "on closed segments.",
        check=at_least(1 << 20),
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes: int = config(
        "segment.index.bytes",
        _T.INT,
        10 << 20,
        "Largest size of a segment's index; a segment whose index is full is closed.",
        check=at_least(4),
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = config(
        "segment.jitter.ms",
        _T.LONG,
        0,
        "Largest random time taken off segment.ms, so that partitions do not all roll at once.",
        check=at_least(0),
        synonyms=("log.roll.jitter.ms", Synonym("log.roll.jitter.hours", _HOUR)),
    )
    segment_ms: int = config(
        "segment.ms",
        _T.LONG,
        7 * _DAY,
        "Age at which a segment that is not full is closed, so that retention and compaction can "
        "reach its records.",
        check=at_least(1),
        synonyms=("log.roll.ms", Synonym("log.roll.hours", _HOUR)),
    )
    unclean_leader_election_enable: bool = config(
        "unclean.leader.election.enable",
        _T.BOOLEAN,
        False,
        "Whether a replica that lags may become leader; accepted without effect, for there is one "
        "replica.",
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
        """Age at which a segment is rolled: compaction must be able to meet its longest lag."""
        if self.compact:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @classmethod
    def parse(
        cls, overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None
    ) -> LogConfig:
        """The configs of a topic.

        Args:
            overrides: the topic's own, under topic names.
            defaults: the broker's, under topic names or broker names (``log.retention.hours``).

        ``internal.segment.bytes`` replaces ``segment_bytes``.

        Raises:
            InvalidConfigError: a name is unknown, a value malformed, out of bounds or in conflict
                with another.
        """
        values = {
            DEFINITIONS[name].field: DEFINITIONS[name].parse(text)
            for name, text in topic_defaults(defaults or {}).items()
        }
        for name, text in overrides.items():
            found = definition(name)
            values[found.field] = found.parse(text)
        if values.get("internal_segment_bytes") is not None:
            values["segment_bytes"] = values["internal_segment_bytes"]
        config = cls(**values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above "
                f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
            )
        return config


DEFINITIONS: dict[str, ConfigDef] = {
    field.metadata["name"]: ConfigDef(field=field.name, **field.metadata)
    for field in dataclasses.fields(LogConfig)
}
"""All topic configs by name, in alphabetical order."""

_REMOVED = ("message.format.version", "message.downconversion.enable")
"""Topic configs that Kafka 4.0 removed."""


def definition(name: str) -> ConfigDef:
    """The topic config of this name.

    Raises:
        InvalidConfigError: there is none; the hint names the nearest.
    """
    found = DEFINITIONS.get(name)
    if found is None:
        raise InvalidConfigError(f"unknown topic config {name!r}", hint=_suggest(name))
    return found


def _suggest(name: str) -> str:
    if name in _REMOVED:
        return "Leave it out: Apache Kafka 4.0 removed it."
    synonyms = {s.name: d.name for d in DEFINITIONS.values() for s in d.synonyms}
    if name in synonyms:
        return f"On a topic it is called {synonyms[name]}."
    near = difflib.get_close_matches(name.replace("_", ".").lower(), DEFINITIONS, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else "See the reference of topic configs."


def topic_defaults(configs: Mapping[str, str]) -> dict[str, str]:
    """Broker-level configs as defaults of topic configs, under topic names and in their units.

    A topic name is stronger than its synonyms; of those the first that is set counts, as in Kafka.

    Raises:
        InvalidConfigError: a name is neither a topic config's nor a synonym of one, or the number
            to convert is malformed.
    """
    used: set[str] = set()
    out: dict[str, str] = {}
    for each in DEFINITIONS.values():
        for synonym in (Synonym(each.name), *each.synonyms):
            text = configs.get(synonym.name)
            if text is None:
                continue
            used.add(synonym.name)
            out.setdefault(each.name, _convert(synonym, text))
    unknown = sorted(set(configs) - used)
    if unknown:
        raise InvalidConfigError(f"unknown topic default {unknown[0]!r}", hint=_suggest(unknown[0]))
    return out


def _convert(synonym: Synonym, text: str) -> str:
    if synonym.factor == 1:
        return text
    try:
        number = int(text)
    except ValueError:
        raise InvalidConfigError(f"{synonym.name}={text}: not a whole number") from None
    return str(number * synonym.factor if number >= 0 else -1)
