"""The sections of the settings that belong to the engine and not to a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tidemill.settings.section import INT, LONG, Section, host_and_port


class Limits(Section):
    """Limits of the broker. Above a limit, the broker stops reading or answers with an error."""

    connections: int = Field(
        1000,
        ge=1,
        le=INT,
        description="Largest number of open client connections of all protocols (max.connections).",
    )
    request_bytes: int = Field(
        104_857_600,
        ge=1024,
        le=INT,
        description="Largest request in bytes (socket.request.max.bytes).",
    )
    connection_inflight_bytes: int = Field(
        67_108_864,
        ge=1024,
        le=LONG,
        description="Largest size of the unanswered requests of a connection, in bytes. An AMQP "
        "connection is closed if several unfinished messages take more.",
    )
    total_inflight_bytes: int = Field(
        268_435_456,
        ge=1024,
        le=LONG,
        description="Largest size of the unanswered requests of all connections, in bytes, and "
        "also of their unread responses. One batch can be more than that.",
    )
    fetch_bytes: int = Field(
        57_671_680,
        ge=1024,
        le=INT,
        description="Largest fetch response in bytes (fetch.max.bytes).",
    )
    idle_seconds: int = Field(
        600,
        ge=1,
        le=INT,
        description="How long a connection can be idle before the broker closes it, in seconds "
        "(connections.max.idle.ms).",
    )
    open_files: int = Field(
        4096,
        ge=16,
        le=INT,
        description="Largest number of segment files that are open at the same time.",
    )
    partitions: int = Field(
        20_000, ge=1, le=INT, description="Largest number of partitions of all topics together."
    )


class Groups(Section):
    """Consumer groups."""

    min_session_timeout_ms: int = Field(
        6000,
        ge=1,
        le=INT,
        description="Shortest session timeout that a member can use, in milliseconds "
        "(group.min.session.timeout.ms).",
    )
    max_session_timeout_ms: int = Field(
        1_800_000,
        ge=1,
        le=INT,
        description="Longest session timeout that a member can use, in milliseconds "
        "(group.max.session.timeout.ms).",
    )
    initial_rebalance_delay_ms: int = Field(
        100,
        ge=0,
        le=INT,
        description="How long an empty group waits for more members before its first rebalance, "
        "in milliseconds (group.initial.rebalance.delay.ms; Apache Kafka: 3000).",
    )
    max_size: int = Field(
        1000, ge=1, le=INT, description="Largest number of members of a group (group.max.size)."
    )
    consumer_session_timeout_ms: int = Field(
        45_000,
        ge=1,
        le=INT,
        description="Session timeout of members with the consumer protocol, in milliseconds "
        "(group.consumer.session.timeout.ms).",
    )
    consumer_heartbeat_interval_ms: int = Field(
        5000,
        ge=1,
        le=INT,
        description="How often members with the consumer protocol send a heartbeat, in "
        "milliseconds (group.consumer.heartbeat.interval.ms).",
    )
    consumer_max_size: int = Field(
        1000,
        ge=1,
        le=INT,
        description="Largest number of members of a group with the consumer protocol "
        "(group.consumer.max.size).",
    )
    consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = Field(
        "bidirectional",
        description="Whether a group can change between the classic and the consumer protocol "
        "while it has members (group.consumer.migration.policy).",
    )
    share_session_timeout_ms: int = Field(
        45_000,
        ge=1,
        le=INT,
        description="Session timeout of members of share groups, in milliseconds "
        "(group.share.session.timeout.ms).",
    )
    share_heartbeat_interval_ms: int = Field(
        5000,
        ge=1,
        le=INT,
        description="How often members of share groups send a heartbeat, in milliseconds "
        "(group.share.heartbeat.interval.ms).",
    )
    share_max_size: int = Field(
        200,
        ge=1,
        le=1000,
        description="Largest number of members of a share group (group.share.max.size).",
    )
    share_max_sessions: int = Field(
        2000,
        ge=1,
        le=INT,
        description="Largest number of share sessions (group.share.max.share.sessions).",
    )
    share_record_lock_ms: int = Field(
        30_000,
        ge=1000,
        le=3_600_000,
        description="How long a member of a share group can keep a record before it is delivered "
        "again, in milliseconds (group.share.record.lock.duration.ms).",
    )
    share_delivery_limit: int = Field(
        5,
        ge=2,
        le=25,
        description="How often a share group delivers a record before it gives up "
        "(group.share.delivery.count.limit).",
    )
    share_max_record_locks: int = Field(
        2000,
        ge=100,
        le=10_000,
        description="Most records of a partition that a share group has in flight "
        "(group.share.partition.max.record.locks).",
    )
    max_member_bytes: int = Field(
        1_048_576,
        ge=1024,
        description="Largest size of what a member sends when it joins a group, in bytes.",
    )
    max_group_bytes: int = Field(
        8_388_608,
        ge=1024,
        le=15_728_640,
        description="Largest size of a group with its members and their assignments, in bytes.",
    )
    max_total_bytes: int = Field(
        134_217_728, ge=1024, description="Largest size of all groups together, in bytes."
    )
    offset_metadata_max_bytes: int = Field(
        4096,
        ge=0,
        le=INT,
        description="Longest metadata string of a committed offset, in bytes "
        "(offset.metadata.max.bytes).",
    )
    offsets_retention_minutes: int = Field(
        10_080,
        ge=1,
        le=INT,
        description="How long the committed offsets of an empty group are kept, in minutes "
        "(offsets.retention.minutes).",
    )


class Queues(Section):
    """Queues and exchanges."""

    strict_arguments: bool = Field(
        False,
        description="Whether a queue, an exchange or a consumer is refused if it has an argument "
        "that is not known. Otherwise the argument changes nothing, and the log has a warning.",
    )


class Log(Section):
    """The log. ``topic_defaults`` has the defaults of topic configs under Kafka's names."""

    topic_defaults: dict[str, str] = Field(
        default_factory=dict,
        description='Defaults of topic configs, e.g. {"retention.ms" = "86400000"}.',
    )
    sync_interval_ms: int = Field(
        50,
        ge=1,
        le=INT,
        description="How long data can be unsynced if no client waits for its sync, in "
        "milliseconds.",
    )
    journal_bytes: int = Field(
        67_108_864,
        ge=1_048_576,
        le=LONG,
        description="Largest size of the journal's files, in bytes. They are created as needed and "
        "kept.",
    )
    retention_check_ms: int = Field(
        300_000,
        ge=100,
        le=INT,
        description="How often the broker deletes what retention allows, in milliseconds "
        "(log.retention.check.interval.ms).",
    )
    cleaner_backoff_ms: int = Field(
        15_000,
        ge=100,
        le=INT,
        description="How often the broker looks for logs to compact, in milliseconds "
        "(log.cleaner.backoff.ms).",
    )
    checkpoint_interval_ms: int = Field(
        5000,
        ge=100,
        le=INT,
        description="How often the broker writes recovery points, in milliseconds.",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000,
        ge=1000,
        le=INT,
        description="How long the sequence numbers of an idle producer are kept, in milliseconds "
        "(producer.id.expiration.ms).",
    )


class Transactions(Section):
    """The transaction coordinator."""

    max_timeout_ms: int = Field(
        900_000,
        ge=1,
        le=INT,
        description="Longest transaction timeout that a producer can use, in milliseconds "
        "(transaction.max.timeout.ms).",
    )
    id_expiration_ms: int = Field(
        604_800_000,
        ge=1000,
        le=INT,
        description="How long an idle transactional id is kept, in milliseconds "
        "(transactional.id.expiration.ms).",
    )


class Security(Section):
    """Access control. Without a super user, everyone who can connect may do everything."""

    super_users: str = Field(
        "",
        description="Principals that may do everything, separated by ';', e.g. "
        '"User:alice;User:bob" (super.users). With one, access needs rules: tidemill acl create.',
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False,
        description="Whether everyone may use a resource that no rule is for "
        "(allow.everyone.if.no.acl.found).",
    )
    admin_file: Path | None = Field(
        None,
        description="File with super users, one in each line as name:password. The broker creates "
        "them when it starts, or changes their passwords to these.",
    )


STATSD_PORT = 8125


def _statsd_server(text: str) -> str:
    if text:
        host_and_port(text, STATSD_PORT)
    return text


OTHER_NAMES = ("kafka_exporter", "rabbitmq")


def _other_names(text: str) -> str:
    """Check names of other projects.

    Raises:
        ValueError: one is not known.
    """
    for name in filter(None, (each.strip() for each in text.split(","))):
        if name not in OTHER_NAMES:
            raise ValueError(f"invalid name {name[:50]!r}: use {' or '.join(OTHER_NAMES)}")
    return text


class Telemetry(Section):
    """The broker's log lines, on stderr, and its metrics."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of the events that are logged."
    )
    format: Literal["auto", "human", "logfmt", "json"] = Field(
        "auto", description="Format of a log line; auto is human on a terminal, logfmt elsewhere."
    )
    metrics_series: int = Field(
        500,
        ge=1,
        le=100_000,
        description="Topics, groups and queues with metrics of their own, of each as many. The "
        "rest is counted together.",
    )
    metrics_names: Annotated[str, AfterValidator(_other_names)] = Field(
        "",
        description="Names of other projects under which metrics are shown as well, with commas: "
        "kafka_exporter, rabbitmq. Their dashboards show data then.",
    )
    statsd: Annotated[str, AfterValidator(_statsd_server)] = Field(
        "",
        description="HOST or HOST:PORT of a StatsD server, which gets the metrics over UDP; the "
        "default port is 8125. Without it, none are sent.",
    )
    statsd_prefix: str = Field(
        "", pattern=r"^[A-Za-z0-9_.-]{0,100}$", description="First part of the names there."
    )
    statsd_interval_ms: int = Field(
        10_000, ge=100, le=3_600_000, description="How often they are sent, in milliseconds."
    )
    statsd_tags: bool = Field(
        False,
        description="Whether labels are tags of DogStatsD (|#listener:kafka) and not parts of the "
        "names.",
    )

    def shows_names_of(self, project: str) -> bool:
        """Return whether ``metrics_names`` has a project."""
        return project in (each.strip() for each in self.metrics_names.split(","))


class Webhooks(Section):
    """Webhooks that go out, in a process of its own beside the broker."""

    run: bool = Field(
        True,
        description="Whether the broker starts a worker process that delivers webhooks, as soon as "
        "the first one is created.",
    )


class Bridges(Section):
    """Bridges to direct messaging, in a process of its own beside the broker."""

    run: bool = Field(
        True,
        description="Whether the broker starts a worker process that runs bridges, as soon as the "
        "first one is created.",
    )


class Views(Section):
    """Materialized views of topics, in a process of its own beside the broker."""

    run: bool = Field(
        True,
        description="Whether the broker starts a worker process that keeps views current, as soon "
        "as the first one is created.",
    )


class Sources(Section):
    """Change data capture in a process of its own beside the broker."""

    run: bool = Field(
        True,
        description="Whether the broker starts a worker process for the sources of change data "
        "capture, as soon as the first one is created.",
    )
