"""Plain data of the catalog: topics and configs, as clients and admins see them.

This module must not contain behaviour, I/O or numbers of a protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidemill.log.config.definition import ConfigType as ConfigType


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as clients see it."""

    name: str
    topic_id: UUID
    partitions: int
    internal: bool
    leader_epoch: int = 0


@dataclass(slots=True)
class NewTopic:
    """A topic to create. -1 partitions or replicas mean the default of the broker."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, list[int]] = field(default_factory=dict)
    """Partition -> broker ids. With it, ``partitions`` and ``replication_factor`` must be -1."""
    configs: Mapping[str, str | None] = field(default_factory=dict)


class ConfigSource(enum.Enum):
    """The layer that a config's value comes from."""

    DYNAMIC_TOPIC = enum.auto()
    """The topic's own config."""
    DYNAMIC_GROUP = enum.auto()
    """The group's own config."""
    DYNAMIC_BROKER = enum.auto()
    """A broker config that a client set for this broker while it was running."""
    DYNAMIC_DEFAULT_BROKER = enum.auto()
    """A broker config that a client set for all brokers while they were running."""
    STATIC_BROKER = enum.auto()
    """The broker's settings."""
    DEFAULT = enum.auto()
    """Apache Kafka's default."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config with the value that is in force."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    read_only: bool = False
    sensitive: bool = False
    doc: str = ""
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    """(name, value, source) of each layer that sets the config, the strongest first."""


class AlterOp(enum.Enum):
    """The operation of an incremental config change (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One incremental config change."""

    name: str
    op: AlterOp
    value: str | None
