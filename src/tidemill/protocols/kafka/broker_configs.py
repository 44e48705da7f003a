"""The broker's configs as admins see them: Apache Kafka's names and defaults, tidemill's values.

Admin UIs read them. The list has those of Kafka's broker configs that mean something here or that
tools ask for. A value that differs from Kafka's default comes from the settings. This module must
not know the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tidemill.log.config.parse import DEFINITIONS, topic_defaults
from tidemill.protocols.kafka.node import Node
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings
from tidemill.state.catalog.broker_rules import (
    DYNAMIC_BROKER_CONFIGS,
    WITHOUT_EFFECT,
    BrokerLayers,
)
from tidemill.state.catalog.configs import default_synonym
from tidemill.state.catalog.types import ConfigEntry, ConfigSource, ConfigType

_T = ConfigType


class BrokerConfig(NamedTuple):
    """A broker config that is not the default of a topic config."""

    type: ConfigType
    default: str | None
    doc: str


BROKER_CONFIGS: dict[str, BrokerConfig] = {
    "advertised.listeners": BrokerConfig(_T.LIST, None, "Addresses that clients connect to."),
    "allow.everyone.if.no.acl.found": BrokerConfig(
        _T.BOOLEAN, "false", "Whether everyone may use a resource that no rule is for."
    ),
    "auto.create.topics.enable": BrokerConfig(
        _T.BOOLEAN, "true", "Whether the broker creates a topic when a client first uses it."
    ),
    "auto.leader.rebalance.enable": BrokerConfig(
        _T.BOOLEAN, "true", "Whether leaders return to preferred replicas; no effect here."
    ),
    "broker.id": BrokerConfig(_T.INT, "-1", "The broker's id."),
    "broker.rack": BrokerConfig(_T.STRING, None, "The rack of the broker; not used."),
    "connections.max.idle.ms": BrokerConfig(
        _T.LONG, "600000", "How long a connection may be idle before the broker closes it."
    ),
    "controlled.shutdown.enable": BrokerConfig(
        _T.BOOLEAN, "true", "Whether leaders move away before a stop; no effect here."
    ),
    "default.replication.factor": BrokerConfig(
        _T.INT, "1", "Replicas of a topic that is created without a number."
    ),
    "delete.topic.enable": BrokerConfig(_T.BOOLEAN, "true", "Whether topics can be deleted."),
    "fetch.max.bytes": BrokerConfig(_T.INT, "57671680", "Largest fetch response."),
    "group.initial.rebalance.delay.ms": BrokerConfig(
        _T.INT, "3000", "How long the first rebalance of a group waits for more members."
    ),
    "group.max.session.timeout.ms": BrokerConfig(
        _T.INT, "1800000", "Longest session timeout that a member can use."
    ),
    "group.max.size": BrokerConfig(_T.INT, "2147483647", "Members per group."),
    "group.min.session.timeout.ms": BrokerConfig(
        _T.INT, "6000", "Shortest session timeout that a member can use."
    ),
    "inter.broker.listener.name": BrokerConfig(
        _T.STRING, None, "Listener between brokers; there is one broker."
    ),
    "listener.security.protocol.map": BrokerConfig(
        _T.STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", ""
    ),
    "listeners": BrokerConfig(_T.LIST, "PLAINTEXT://:9092", "Addresses that the broker binds."),
    "log.cleaner.enable": BrokerConfig(_T.BOOLEAN, "true", "Whether logs are compacted."),
    "log.dir": BrokerConfig(_T.STRING, "/tmp/kafka-logs", "The data folder."),
    "log.dirs": BrokerConfig(_T.LIST, None, "The data folders."),
    "log.retention.check.interval.ms": BrokerConfig(
        _T.LONG, "300000", "How often the broker deletes what retention allows."
    ),
    "node.id": BrokerConfig(_T.INT, "-1", "The broker's id."),
    "num.partitions": BrokerConfig(
        _T.INT, "1", "Partitions of a topic that is created without a number."
    ),
    "offset.metadata.max.bytes": BrokerConfig(
        _T.INT, "4096", "Longest metadata string of a committed offset."
    ),
    "offsets.retention.check.interval.ms": BrokerConfig(
        _T.LONG, "600000", "How often offsets are checked for expiry."
    ),
    "offsets.retention.minutes": BrokerConfig(
        _T.INT, "10080", "How long the offsets of a group without members are kept."
    ),
    "offsets.topic.compression.codec": BrokerConfig(
        _T.INT, "0", "Compression of the topic of committed offsets."
    ),
    "offsets.topic.num.partitions": BrokerConfig(
        _T.INT, "50", "Partitions of the topic of committed offsets."
    ),
    "offsets.topic.replication.factor": BrokerConfig(
        _T.SHORT, "3", "Replicas of the topic of committed offsets."
    ),
    "process.roles": BrokerConfig(_T.LIST, "", "Roles of the process."),
    "queued.max.requests": BrokerConfig(
        _T.INT, "500", "Requests that wait for Kafka's threads; no effect here."
    ),
    "replica.fetch.max.bytes": BrokerConfig(_T.INT, "1048576", "Replication; one broker."),
    "replica.lag.time.max.ms": BrokerConfig(_T.LONG, "30000", "Replication; one broker."),
    "security.inter.broker.protocol": BrokerConfig(
        _T.STRING, "PLAINTEXT", "Protocol between brokers; there is one broker."
    ),
    "socket.receive.buffer.bytes": BrokerConfig(_T.INT, "102400", "Buffer of the socket."),
    "socket.request.max.bytes": BrokerConfig(_T.INT, "104857600", "Largest request."),
    "socket.send.buffer.bytes": BrokerConfig(_T.INT, "102400", "Buffer of the socket."),
    "super.users": BrokerConfig(_T.STRING, "", "Principals that may do everything."),
    "transaction.max.timeout.ms": BrokerConfig(
        _T.INT, "900000", "Longest transaction timeout that a producer can use."
    ),
    "transaction.state.log.min.isr": BrokerConfig(
        _T.INT, "2", "In-sync replicas of the topic of transactions."
    ),
    "transaction.state.log.num.partitions": BrokerConfig(
        _T.INT, "50", "Partitions of the topic of transactions."
    ),
    "transaction.state.log.replication.factor": BrokerConfig(
        _T.SHORT, "3", "Replicas of the topic of transactions."
    ),
    "transactional.id.expiration.ms": BrokerConfig(
        _T.INT, "604800000", "How long an idle transactional id is kept."
    ),
} | {name: BrokerConfig(each.type, each.default, each.doc) for name, each in WITHOUT_EFFECT.items()}
"""Kafka's broker configs with Kafka's defaults. DEFINITIONS adds the defaults of topic configs."""


def static_values(settings: Settings, node: Node) -> dict[str, str]:
    """Return the values of the settings under Kafka's names.

    The defaults of topic configs (``log.topic_defaults``) are not in the result.
    """
    kafka = settings.section(KafkaListener)
    scheme = kafka.security_protocol()
    log, groups, limits = settings.log, settings.groups, settings.limits
    transactions = settings.transactions
    values: dict[str, object] = {
        "advertised.listeners": f"{scheme}://{node.host}:{node.port}",
        "allow.everyone.if.no.acl.found": str(
            settings.security.allow_everyone_if_no_acl_found
        ).lower(),
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": node.node_id,
        "connections.max.idle.ms": limits.idle_seconds * 1000,
        "fetch.max.bytes": limits.fetch_bytes,
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": groups.max_session_timeout_ms,
        "group.max.size": groups.max_size,
        "group.min.session.timeout.ms": groups.min_session_timeout_ms,
        "listeners": f"{scheme}://{settings.host}:{kafka.port}",
        "log.cleaner.backoff.ms": log.cleaner_backoff_ms,
        "log.dir": settings.data_dir,
        "log.dirs": settings.data_dir,
        "log.retention.check.interval.ms": log.retention_check_ms,
        "max.connections": limits.connections,
        "node.id": node.node_id,
        "num.partitions": settings.default_partitions,
        "offset.metadata.max.bytes": groups.offset_metadata_max_bytes,
        "offsets.retention.minutes": groups.offsets_retention_minutes,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "process.roles": "broker,controller",
        "producer.id.expiration.ms": log.producer_id_expiration_ms,
        "socket.request.max.bytes": limits.request_bytes,
        "super.users": settings.security.super_users,
        "transaction.max.timeout.ms": transactions.max_timeout_ms,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transactional.id.expiration.ms": transactions.id_expiration_ms,
    }
    return {name: str(value) for name, value in values.items()}


def cluster_entries(layers: BrokerLayers) -> list[ConfigEntry]:
    """Return the configs that clients have set for all brokers, sorted by name."""
    known = {entry.name: entry for entry in broker_entries({}, layers)}
    return [
        replace(
            known[name],
            value=value,
            source=ConfigSource.DYNAMIC_DEFAULT_BROKER,
            synonyms=((name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),),
        )
        for name, value in sorted(layers.cluster.items())
        if name in known
    ]


def broker_entries(static: Mapping[str, str], layers: BrokerLayers) -> list[ConfigEntry]:
    """Return all broker configs with value, source and synonyms, sorted by name.

    Args:
        static: the values of ``static_values``.
        layers: the layers of the broker's configs. Their settings are defaults of topic configs.
    """
    entries = [
        _entry(name, each.type, each.default, each.doc, static, layers)
        for name, each in BROKER_CONFIGS.items()
    ]
    topic_static = _broker_names(layers.static)
    for each in DEFINITIONS.values():
        carrier, default = default_synonym(each) if each.synonyms else ("", "")
        weaker: list[ConfigEntry] = []
        for synonym in reversed(each.synonyms):
            entry = _entry(
                synonym.name,
                _T.INT if synonym.factor != 1 else each.type,
                default if synonym.name == carrier else None,
                f"Default of the topic config {each.name}. {each.doc}",
                topic_static,
                layers,
            )
            weaker.insert(0, entry)
            if entry.synonyms:  # a value that is set also shows what would apply without it
                chain = [link for found in weaker for link in found.synonyms]
                entry = replace(entry, synonyms=tuple(chain))
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry.name)


def _broker_names(topic_static: Mapping[str, str]) -> dict[str, str]:
    """Return static defaults of topic configs under broker names only."""
    topic_defaults(topic_static)  # raises an error for an unknown name
    renamed = {}
    for name, value in topic_static.items():
        found = DEFINITIONS.get(name)
        renamed[found.synonyms[0].name if found and found.synonyms else name] = value
    return renamed


def _entry(
    name: str,
    kind: ConfigType,
    default: str | None,
    doc: str,
    static: Mapping[str, str],
    layers: BrokerLayers,
) -> ConfigEntry:
    chain: list[tuple[str, str | None, ConfigSource]] = []
    if name in layers.broker:
        chain.append((name, layers.broker[name], ConfigSource.DYNAMIC_BROKER))
    if name in layers.cluster:
        chain.append((name, layers.cluster[name], ConfigSource.DYNAMIC_DEFAULT_BROKER))
    if name in static and static[name] != default:
        chain.append((name, static[name], ConfigSource.STATIC_BROKER))
    if default is not None:
        chain.append((name, default, ConfigSource.DEFAULT))
    _, value, source = chain[0] if chain else (name, None, ConfigSource.DEFAULT)
    return ConfigEntry(
        name,
        value,
        source,
        kind,
        read_only=name not in DYNAMIC_BROKER_CONFIGS and name not in WITHOUT_EFFECT,
        doc=doc,
        synonyms=tuple(chain),
    )
