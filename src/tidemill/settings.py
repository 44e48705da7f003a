"""The broker's settings: names, types, units, defaults and limits, each declared once.

``cli.server.settings_file`` reads them from a file, the environment and flags. The configs of
topics (Kafka's ``retention.ms`` and others) are declared in ``log.config``. This module must not
do I/O.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

ENV_PREFIX = "TIDEMILL_"
"""An environment variable is this prefix and the key, with '_' for '.': TIDEMILL_KAFKA_PORT."""


_INT, _LONG = 2**31 - 1, 2**63 - 1
"""Upper limits of numbers: Kafka's int and long, which clients see them as."""


def _host(name: str | None) -> str | None:
    """Check a host name or address. A URL or a port in it would reach clients and fail there.

    Raises:
        ValueError: it is not a host.
    """
    if name is None:
        return None
    is_address_6 = re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%\w+)?", name)
    if not is_address_6 and not re.fullmatch(r"[\w.-]+", name):
        raise ValueError("expected a host name or an address, without a scheme or a port")
    return name


class Section(BaseModel):
    """A table of ``tidemill.toml``. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaListener(Section):
    """The listener of the Kafka protocol."""

    port: int = Field(9092, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    advertised_host: Annotated[str | None, AfterValidator(_host)] = Field(
        None, description="Host that clients connect to; default: the address in `host`."
    )
    advertised_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port that clients connect to; default: the port it listens on.",
    )
    tls_cert: Path | None = Field(
        None, description="File with a PEM certificate chain. With it, the listener uses TLS."
    )
    tls_key: Path | None = Field(None, description="File with the PEM private key of tls_cert.")


class AmqpListener(Section):
    """The listener of AMQP 0-9-1, for queues."""

    port: int = Field(5672, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    enabled: bool = Field(True, description="Whether the broker serves AMQP.")
    users_file: Path | None = Field(
        None,
        description="File with a user in each line: name, colon, password. Default: only guest "
        "with the password guest, from the same machine.",
    )
    tls_cert: Path | None = Field(
        None, description="File with a PEM certificate chain. With it, the listener uses TLS."
    )
    tls_key: Path | None = Field(None, description="File with the PEM private key of tls_cert.")


class Limits(Section):
    """Limits of the broker. Above a limit, the broker stops reading or answers with an error."""

    connections: int = Field(
        1000,
        ge=1,
        le=_INT,
        description="Largest number of open client connections (max.connections).",
    )
    request_bytes: int = Field(
        104_857_600,
        ge=1024,
        le=_INT,
        description="Largest request in bytes (socket.request.max.bytes).",
    )
    connection_inflight_bytes: int = Field(
        67_108_864,
        ge=1024,
        le=_LONG,
        description="Largest size of the unanswered requests of a connection, in bytes.",
    )
    total_inflight_bytes: int = Field(
        268_435_456,
        ge=1024,
        le=_LONG,
        description="Largest size of the unanswered requests of all connections, in bytes, and "
        "also of their unread responses. One batch can be more than that.",
    )
    fetch_bytes: int = Field(
        57_671_680,
        ge=1024,
        le=_INT,
        description="Largest fetch response in bytes (fetch.max.bytes).",
    )
    idle_seconds: int = Field(
        600,
        ge=1,
        le=_INT,
        description="How long a connection can be idle before the broker closes it, in seconds "
        "(connections.max.idle.ms).",
    )
    open_files: int = Field(
        4096,
        ge=16,
        le=_INT,
        description="Largest number of segment files that are open at the same time.",
    )
    partitions: int = Field(
        20_000, ge=1, le=_INT, description="Largest number of partitions of all topics together."
    )


class Groups(Section):
    """Consumer groups."""

    min_session_timeout_ms: int = Field(
        6000,
        ge=1,
        le=_INT,
        description="Shortest session timeout that a member can use, in milliseconds "
        "(group.min.session.timeout.ms).",
    )
    max_session_timeout_ms: int = Field(
        1_800_000,
        ge=1,
        le=_INT,
        description="Longest session timeout that a member can use, in milliseconds "
        "(group.max.session.timeout.ms).",
    )
    initial_rebalance_delay_ms: int = Field(
        100,
        ge=0,
        le=_INT,
        description="How long an empty group waits for more members before its first rebalance, "
        "in milliseconds (group.initial.rebalance.delay.ms; Apache Kafka: 3000).",
    )
    max_size: int = Field(
        1000, ge=1, le=_INT, description="Largest number of members of a group (group.max.size)."
    )
    consumer_session_timeout_ms: int = Field(
        45_000,
        ge=1,
        le=_INT,
        description="Session timeout of members with the consumer protocol, in milliseconds "
        "(group.consumer.session.timeout.ms).",
    )
    consumer_heartbeat_interval_ms: int = Field(
        5000,
        ge=1,
        le=_INT,
        description="How often members with the consumer protocol send a heartbeat, in "
        "milliseconds (group.consumer.heartbeat.interval.ms).",
    )
    consumer_max_size: int = Field(
        1000,
        ge=1,
        le=_INT,
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
        le=_INT,
        description="Session timeout of members of share groups, in milliseconds "
        "(group.share.session.timeout.ms).",
    )
    share_heartbeat_interval_ms: int = Field(
        5000,
        ge=1,
        le=_INT,
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
        le=_INT,
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
        le=_INT,
        description="Longest metadata string of a committed offset, in bytes "
        "(offset.metadata.max.bytes).",
    )
    offsets_retention_minutes: int = Field(
        10_080,
        ge=1,
        le=_INT,
        description="How long the committed offsets of an empty group are kept, in minutes "
        "(offsets.retention.minutes).",
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
        le=_INT,
        description="How long data can be unsynced if no client waits for its sync, in "
        "milliseconds.",
    )
    journal_bytes: int = Field(
        67_108_864,
        ge=1_048_576,
        le=_LONG,
        description="Largest size of the journal's files, in bytes. They are created as needed and "
        "kept.",
    )
    retention_check_ms: int = Field(
        300_000,
        ge=100,
        le=_INT,
        description="How often the broker deletes what retention allows, in milliseconds "
        "(log.retention.check.interval.ms).",
    )
    cleaner_backoff_ms: int = Field(
        15_000,
        ge=100,
        le=_INT,
        description="How often the broker looks for logs to compact, in milliseconds "
        "(log.cleaner.backoff.ms).",
    )
    checkpoint_interval_ms: int = Field(
        5000,
        ge=100,
        le=_INT,
        description="How often the broker writes recovery points, in milliseconds.",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000,
        ge=1000,
        le=_INT,
        description="How long the sequence numbers of an idle producer are kept, in milliseconds "
        "(producer.id.expiration.ms).",
    )


class Transactions(Section):
    """The transaction coordinator."""

    max_timeout_ms: int = Field(
        900_000,
        ge=1,
        le=_INT,
        description="Longest transaction timeout that a producer can use, in milliseconds "
        "(transaction.max.timeout.ms).",
    )
    id_expiration_ms: int = Field(
        604_800_000,
        ge=1000,
        le=_INT,
        description="How long an idle transactional id is kept, in milliseconds "
        "(transactional.id.expiration.ms).",
    )


class Telemetry(Section):
    """The broker's log lines, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of the events that are logged."
    )
    format: Literal["auto", "human", "logfmt", "json"] = Field(
        "auto", description="Format of a log line; auto is human on a terminal, logfmt elsewhere."
    )


class Sources(Section):
    """Change data capture in a process of its own beside the broker."""

    run: bool = Field(
        True,
        description="Whether the broker starts a worker process for the sources of change data "
        "capture, as soon as the first one is created.",
    )


class Settings(Section):
    """All settings of a broker."""

    data_dir: Path = Field(Path("tidemill-data"), description="The data folder.")
    host: Annotated[str, AfterValidator(_host)] = Field(
        "127.0.0.1", description="Address to listen on."
    )
    node_id: int = Field(1, ge=0, le=2**31 - 1, description="The broker's id (node.id).")
    auto_create_topics: bool = Field(
        True,
        description="Whether the broker creates a topic when a client first uses it "
        "(auto.create.topics.enable).",
    )
    default_partitions: int = Field(
        1,
        ge=1,
        le=_INT,
        description="Partitions of a topic that is created without a number (num.partitions).",
    )
    kafka: KafkaListener = Field(default_factory=KafkaListener)
    amqp: AmqpListener = Field(default_factory=AmqpListener)
    limits: Limits = Field(default_factory=Limits)
    groups: Groups = Field(default_factory=Groups)
    transactions: Transactions = Field(default_factory=Transactions)
    log: Log = Field(default_factory=Log)
    sources: Sources = Field(default_factory=Sources)
    telemetry: Telemetry = Field(default_factory=Telemetry)


# --- definitions for the reference and for ``config show`` ---------------------------------------


@dataclass(frozen=True, slots=True)
class SettingDef:
    """A setting, as the reference and ``config show`` present it.

    Attributes:
        key: the dotted name, as in ``tidemill.toml``.
        env: its environment variable.
        type: the type and limits, for people.
        default: the default value.
        description: what it does.
        is_map: whether it is a table of free keys (topic configs).
        is_path: whether it is a path. A relative path in a file is relative to that file.
    """

    key: str
    env: str
    type: str
    default: object
    description: str
    is_map: bool = False
    is_path: bool = False


def definitions(model: type[Section] = Settings, prefix: str = "") -> Iterator[SettingDef]:
    """Yield all settings in the order of their declaration, tables after single keys."""
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
