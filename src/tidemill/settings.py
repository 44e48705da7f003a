"""The broker's settings: names, types, units, defaults and bounds, each declared once.

Knows no I/O: ``cli.settings_file`` reads them from a file, the environment and flags. Topic-level
settings (Kafka's ``retention.ms`` and so on) are declared in ``log.config``; here stand the
broker's own.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

ENV_PREFIX = "TIDEMILL_"
"""An environment variable is this and the key, dots as underscores: TIDEMILL_KAFKA_PORT."""


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

    min_session_timeout_ms: int = Field(
        6000,
        ge=1,
        description="Shortest session timeout a member may ask for, in milliseconds "
        "(group.min.session.timeout.ms).",
    )
    max_session_timeout_ms: int = Field(
        1_800_000,
        ge=1,
        description="Longest session timeout a member may ask for, in milliseconds "
        "(group.max.session.timeout.ms).",
    )
    initial_rebalance_delay_ms: int = Field(
        100,
        ge=0,
        description="How long an empty group waits for more members before its first rebalance, "
        "in milliseconds (group.initial.rebalance.delay.ms; Apache Kafka: 3000).",
    )
    max_size: int = Field(10_000, ge=1, description="Members per group (group.max.size).")
    offset_metadata_max_bytes: int = Field(
        4096,
        ge=0,
        description="Longest metadata string of a committed offset, in bytes "
        "(offset.metadata.max.bytes).",
    )
    offsets_retention_minutes: int = Field(
        10_080,
        ge=1,
        description="Committed offsets of an empty group are dropped after this many minutes "
        "(offsets.retention.minutes).",
    )


class Log(Section):
    """The log; topic-level defaults go into ``topic_defaults`` under Kafka's names."""

    topic_defaults: dict[str, str] = Field(
        default_factory=dict,
        description='Defaults of topic configs, e.g. {"retention.ms" = "86400000"}.',
    )
    sync_interval_ms: int = Field(
        50,
        ge=1,
        description="Data that nobody waits for is synced at the latest after this many "
        "milliseconds.",
    )
    retention_check_ms: int = Field(
        300_000,
        ge=100,
        description="How often retention is applied, in milliseconds "
        "(log.retention.check.interval.ms).",
    )
    cleaner_backoff_ms: int = Field(
        15_000,
        ge=100,
        description="How often compaction looks for work, in milliseconds "
        "(log.cleaner.backoff.ms).",
    )
    checkpoint_interval_ms: int = Field(
        5000, ge=100, description="How often recovery points are written, in milliseconds."
    )
    producer_id_expiration_ms: int = Field(
        86_400_000,
        ge=1000,
        description="An idle producer's sequence numbers are forgotten after it, in milliseconds "
        "(producer.id.expiration.ms).",
    )


class Transactions(Section):
    """The coordinator of transactions."""

    max_timeout_ms: int = Field(
        900_000,
        ge=1,
        description="Longest transaction timeout that a producer may ask for, in milliseconds "
        "(transaction.max.timeout.ms).",
    )
    id_expiration_ms: int = Field(
        604_800_000,
        ge=1000,
        description="An idle transactional id is forgotten after it, in milliseconds "
        "(transactional.id.expiration.ms).",
    )


class Telemetry(Section):
    """What the broker says about itself, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe event that is logged."
    )
    format: Literal["auto", "human", "logfmt", "json"] = Field(
        "auto", description="Form of a log line; auto is human on a terminal, logfmt elsewhere."
    )


class Settings(Section):
    """All settings of a broker."""

    data_dir: Path = Field(Path("tidemill-data"), description="The data folder.")
    host: str = Field("127.0.0.1", description="Address to bind.")
    node_id: int = Field(1, ge=0, le=2**31 - 1, description="The broker's id (node.id).")
    auto_create_topics: bool = Field(
        True, description="Create topics on first use (auto.create.topics.enable)."
    )
    default_partitions: int = Field(
        1, ge=1, description="Partitions of a new topic where none are named (num.partitions)."
    )
    kafka: KafkaListener = Field(default_factory=KafkaListener)
    limits: Limits = Field(default_factory=Limits)
    groups: Groups = Field(default_factory=Groups)
    transactions: Transactions = Field(default_factory=Transactions)
    log: Log = Field(default_factory=Log)
    telemetry: Telemetry = Field(default_factory=Telemetry)


# --- what there is to set ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingDef:
    """One setting, as the reference and ``config show`` present it.

    Attributes:
        key: dotted name, as in ``tidemill.toml``.
        env: its environment variable.
        type: type and bounds, for people.
        default: value when nobody sets it.
        description: what it does.
        is_map: a table of free keys (topic configs).
        is_path: a path; relative ones in a file are relative to that file.
    """

    key: str
    env: str
    type: str
    default: object
    description: str
    is_map: bool = False
    is_path: bool = False


def definitions(model: type[Section] = Settings, prefix: str = "") -> Iterator[SettingDef]:
    """All settings in the order of their declaration, tables after single keys."""
    sections: list[tuple[str, type[Section]]] = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            sections.append((f"{prefix}{name}.", annotation))
            continue
        key = prefix + name
        default = field.get_default(call_default_factory=True)
        yield SettingDef(
            key=key,
            env=ENV_PREFIX + key.replace(".", "_").upper(),
            type=_type_text(field),
            default=default,
            description=field.description or "",
            is_map=typing.get_origin(annotation) is dict,
            is_path=Path in (annotation, *typing.get_args(annotation)),
        )
    for section_prefix, section in sections:
        yield from definitions(section, section_prefix)


def _type_text(field: FieldInfo) -> str:
    annotation = field.annotation
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return ", ".join(str(option) for option in options)
    if typing.get_origin(annotation) is dict:
        return "table of text"
    if isinstance(annotation, types.UnionType):
        annotation = next(option for option in options if option is not type(None))
    names = {int: "integer", bool: "true or false", str: "text", Path: "path"}
    text = names[typing.cast(type, annotation)]
    low = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        return f"{text}, {low} to {high}"
    return f"{text}, at least {low}" if low is not None else text
