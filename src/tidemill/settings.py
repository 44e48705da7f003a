"""The broker's settings: names, types, units, defaults and bounds, each declared once.

Knows no I/O but reading a settings file and the environment. Topic-level settings (Kafka's
``retention.ms`` and so on) are declared in ``log.config``; here stand the broker's own.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A table of ``tidemill.toml``; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaListener(Section):
    """Where the Kafka protocol is served."""

    port: int = Field(9092, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    advertised_host: str | None = Field(
        None, description="Host that clients are told to connect to; default: the bind host."
    )
    advertised_port: int | None = Field(
        None, ge=1, le=65535, description="Port that clients are told to connect to."
    )
    tls_cert: Path | None = Field(None, description="PEM certificate chain; turns TLS on.")
    tls_key: Path | None = Field(None, description="PEM private key of tls_cert.")


class Limits(Section):
    """Bounds; over them there is back-pressure or a typed error."""

    connections: int = Field(1000, ge=1, description="Open client connections.")
    request_bytes: int = Field(
        104_857_600, ge=1024, description="Largest request in bytes (socket.request.max.bytes)."
    )
    connection_inflight_bytes: int = Field(
        67_108_864, ge=1024, description="Bytes of unanswered requests per connection."
    )
    total_inflight_bytes: int = Field(
        268_435_456, ge=1024, description="Bytes of unanswered requests over all connections."
    )
    fetch_bytes: int = Field(
        57_671_680, ge=1024, description="Largest fetch response in bytes (fetch.max.bytes)."
    )
    idle_seconds: int = Field(
        600, ge=1, description="Idle connections are closed after it (connections.max.idle.ms)."
    )
    open_files: int = Field(512, ge=16, description="Segment files held open at once.")
    partitions: int = Field(20_000, ge=1, description="Partitions over all topics.")


class Groups(Section):
    """Consumer groups."""

    min_session_timeout_ms: int = Field(6000, ge=1, description="group.min.session.timeout.ms")
    max_session_timeout_ms: int = Field(1_800_000, ge=1, description="group.max.session.timeout.ms")
    initial_rebalance_delay_ms: int = Field(
        100, ge=0, description="group.initial.rebalance.delay.ms (Apache Kafka: 3000)."
    )
    max_size: int = Field(10_000, ge=1, description="Members per group (group.max.size).")
    offset_metadata_max_bytes: int = Field(4096, ge=0, description="offset.metadata.max.bytes")
    offsets_retention_minutes: int = Field(10_080, ge=1, description="offsets.retention.minutes")


class Log(Section):
    """The log; topic-level defaults go into ``topic_defaults`` under Kafka's names."""

    topic_defaults: dict[str, str] = Field(
        default_factory=dict,
        description='Defaults of topic configs, e.g. {"retention.ms" = "86400000"}.',
    )
    sync_interval_ms: int = Field(
        50, ge=1, description="Unsynced data is synced at the latest after this, without a waiter."
    )
    retention_check_ms: int = Field(300_000, ge=100, description="log.retention.check.interval.ms")
    cleaner_backoff_ms: int = Field(15_000, ge=100, description="log.cleaner.backoff.ms")
    checkpoint_interval_ms: int = Field(
        5000, ge=100, description="How often recovery points are written."
    )
    producer_id_expiration_ms: int = Field(
        86_400_000, ge=1000, description="producer.id.expiration.ms"
    )


class Settings(Section):
    """All settings of a broker."""

    data_dir: Path = Field(Path("tidemill-data"), description="The data folder.")
    host: str = Field("127.0.0.1", description="Address to bind.")
    auto_create_topics: bool = Field(
        True, description="Create topics on first use (auto.create.topics.enable)."
    )
    default_partitions: int = Field(
        1, ge=1, description="Partitions of a new topic where none are named (num.partitions)."
    )
    kafka: KafkaListener = Field(default_factory=KafkaListener)
    limits: Limits = Field(default_factory=Limits)
    groups: Groups = Field(default_factory=Groups)
    log: Log = Field(default_factory=Log)
