"""The broker's configs as admins see them: Apache Kafka's names and defaults, our values.

Admin UIs read them to learn what the broker does. Shown are Kafka's broker configs that have a
meaning here or that tools ask for; what differs from Kafka's default comes from the settings.
Knows settings and declarations only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemill.log.config import DEFINITIONS, topic_defaults
from tidemill.settings import Settings
from tidemill.state.configs import DYNAMIC_BROKER_CONFIGS, default_synonym
from tidemill.state.types import ConfigEntry, ConfigSource, ConfigType

_T = ConfigType


class BrokerConfig(NamedTuple):
    """One broker config that is not the default of a topic config."""

    type: ConfigType
    default: str | None
    doc: str


BROKER_CONFIGS: dict[str, BrokerConfig] = {
    "advertised.listeners": BrokerConfig(_T.LIST, None, "Addresses that clients are told of."),
    "auto.create.topics.enable": BrokerConfig(
        _T.BOOLEAN, "true", "Whether a topic is created when it is first asked for."
    ),
    "auto.leader.rebalance.enable": BrokerConfig(
        _T.BOOLEAN, "true", "Whether leaders move back to preferred replicas; one broker leads all."
    ),
    "background.threads": BrokerConfig(_T.INT, "10", "Threads of Apache Kafka; no effect here."),
    "broker.id": BrokerConfig(_T.INT, "-1", "The broker's id."),
    "broker.rack": BrokerConfig(_T.STRING, None, "The rack of the broker; not used."),
    "connections.max.idle.ms": BrokerConfig(
        _T.LONG, "600000", "Idle connections are closed after this time."
    ),
    "controlled.shutdown.enable": BrokerConfig(
        _T.BOOLEAN, "true", "Whether leaders move away before a stop; there is one broker."
    ),
    "default.replication.factor": BrokerConfig(
        _T.INT, "1", "Replicas of a topic created without naming a number."
    ),
    "delete.topic.enable": BrokerConfig(_T.BOOLEAN, "true", "Whether topics can be deleted."),
    "fetch.max.bytes": BrokerConfig(_T.INT, "57671680", "Largest fetch response."),
    "group.initial.rebalance.delay.ms": BrokerConfig(
        _T.INT, "3000", "How long the first rebalance of an empty group waits for more members."
    ),
    "group.max.session.timeout.ms": BrokerConfig(
        _T.INT, "1800000", "Longest session timeout that a member may ask for."
    ),
    "group.max.size": BrokerConfig(_T.INT, "2147483647", "Members per group."),
    "group.min.session.timeout.ms": BrokerConfig(
        _T.INT, "6000", "Shortest session timeout that a member may ask for."
    ),
    "inter.broker.listener.name": BrokerConfig(
        _T.STRING, None, "Listener between brokers; there is one broker."
    ),
    "listener.security.protocol.map": BrokerConfig(
        _T.STRING, "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", ""
    ),
    "listeners": BrokerConfig(_T.LIST, "PLAINTEXT://:9092", "Addresses that the broker binds."),
    "log.cleaner.backoff.ms": BrokerConfig(
        _T.LONG, "15000", "How long compaction sleeps when there is nothing to do."
    ),
    "log.cleaner.enable": BrokerConfig(_T.BOOLEAN, "true", "Whether logs are compacted."),
    "log.cleaner.threads": BrokerConfig(_T.INT, "1", "Threads of compaction."),
    "log.dir": BrokerConfig(_T.STRING, "/tmp/kafka-logs", "The data folder."),
    "log.dirs": BrokerConfig(_T.LIST, None, "The data folders."),
    "log.retention.check.interval.ms": BrokerConfig(
        _T.LONG, "300000", "How often retention is applied."
    ),
    "max.connections": BrokerConfig(_T.INT, "2147483647", "Open client connections."),
    "node.id": BrokerConfig(_T.INT, "-1", "The broker's id."),
    "num.io.threads": BrokerConfig(_T.INT, "8", "Threads of Apache Kafka; no effect here."),
    "num.network.threads": BrokerConfig(_T.INT, "3", "Threads of Apache Kafka; no effect here."),
    "num.partitions": BrokerConfig(
        _T.INT, "1", "Partitions of a topic created without naming a number."
    ),
    "num.recovery.threads.per.data.dir": BrokerConfig(
        _T.INT, "2", "Threads of Apache Kafka; no effect here."
    ),
    "num.replica.fetchers": BrokerConfig(_T.INT, "1", "Replication; there is one broker."),
    "offset.metadata.max.bytes": BrokerConfig(
        _T.INT, "4096", "Longest metadata string of a committed offset."
    ),
    "offsets.retention.check.interval.ms": BrokerConfig(
        _T.LONG, "600000", "How often offsets are checked for expiry."
    ),
    "offsets.retention.minutes": BrokerConfig(
        _T.INT, "10080", "How long offsets outlive their group's last member."
    ),
    "offsets.topic.compression.codec": BrokerConfig(
        _T.INT, "0", "Codec of the topic of committed offsets."
    ),
    "offsets.topic.num.partitions": BrokerConfig(
        _T.INT, "50", "Partitions of the topic of committed offsets."
    ),
    "offsets.topic.replication.factor": BrokerConfig(
        _T.SHORT, "3", "Replicas of the topic of committed offsets."
    ),
    "process.roles": BrokerConfig(_T.LIST, "", "Roles of the process."),
    "producer.id.expiration.ms": BrokerConfig(
        _T.INT, "86400000", "How long an idle producer's sequence numbers are kept."
    ),
    "queued.max.requests": BrokerConfig(_T.INT, "500", "Requests waiting for Kafka's threads."),
    "replica.fetch.max.bytes": BrokerConfig(_T.INT, "1048576", "Replication; one broker."),
    "replica.lag.time.max.ms": BrokerConfig(_T.LONG, "30000", "Replication; one broker."),
    "security.inter.broker.protocol": BrokerConfig(
        _T.STRING, "PLAINTEXT", "Protocol between brokers; there is one broker."
    ),
    "socket.receive.buffer.bytes": BrokerConfig(_T.INT, "102400", "Buffer of the socket."),
    "socket.request.max.bytes": BrokerConfig(_T.INT, "104857600", "Largest request."),
    "socket.send.buffer.bytes": BrokerConfig(_T.INT, "102400", "Buffer of the socket."),
    "transaction.max.timeout.ms": BrokerConfig(
        _T.INT, "900000", "Longest transaction timeout that a producer may ask for."
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
}
"""Broker configs by Kafka's name, with Kafka's defaults; those of topics come from DEFINITIONS."""


def static_values(
    settings: Settings, *, node_id: int, listener: str, advertised_listener: str
) -> dict[str, str]:
    """What the settings mean under Kafka's names; listeners as ``PLAINTEXT://host:port``.

    Defaults of topic configs (``log.topic_defaults``) are not among them.
    """
    log, groups, limits = settings.log, settings.groups, settings.limits
    transactions = settings.transactions
    values: dict[str, object] = {
        "advertised.listeners": advertised_listener,
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": node_id,
        "connections.max.idle.ms": limits.idle_seconds * 1000,
        "fetch.max.bytes": limits.fetch_bytes,
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": groups.max_session_timeout_ms,
        "group.max.size": groups.max_size,
        "group.min.session.timeout.ms": groups.min_session_timeout_ms,
        "listeners": listener,
        "log.cleaner.backoff.ms": log.cleaner_backoff_ms,
        "log.dir": settings.data_dir,
        "log.dirs": settings.data_dir,
        "log.retention.check.interval.ms": log.retention_check_ms,
        "max.connections": limits.connections,
        "node.id": node_id,
        "num.partitions": settings.default_partitions,
        "offset.metadata.max.bytes": groups.offset_metadata_max_bytes,
        "offsets.retention.minutes": groups.offsets_retention_minutes,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "process.roles": "broker,controller",
        "producer.id.expiration.ms": log.producer_id_expiration_ms,
        "socket.request.max.bytes": limits.request_bytes,
        "transaction.max.timeout.ms": transactions.max_timeout_ms,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transactional.id.expiration.ms": transactions.id_expiration_ms,
    }
    return {name: str(value) for name, value in values.items()}


def broker_entries(
    static: Mapping[str, str], dynamic: Mapping[str, str], topic_static: Mapping[str, str]
) -> list[ConfigEntry]:
    """All broker configs with value, source and synonyms, by name.

    Args:
        static: values under broker names (see ``static_values``).
        dynamic: the broker's dynamic configs.
        topic_static: static defaults of topic configs, under topic or broker names.
    """
    entries = [
        _entry(name, each.type, each.default, each.doc, static, {})
        for name, each in BROKER_CONFIGS.items()
    ]
    topic_static = _broker_names(topic_static)
    for each in DEFINITIONS.values():
        for synonym in each.synonyms:
            carrier, default = default_synonym(each)
            entries.append(
                _entry(
                    synonym.name,
                    _T.INT if synonym.factor != 1 else each.type,
                    default if synonym.name == carrier else None,
                    f"Default of the topic config {each.name}. {each.doc}",
                    topic_static,
                    dynamic,
                )
            )
    return sorted(entries, key=lambda entry: entry.name)


def _broker_names(topic_static: Mapping[str, str]) -> dict[str, str]:
    """Static defaults of topic configs under broker names only."""
    topic_defaults(topic_static)  # refuses unknown names
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
    dynamic: Mapping[str, str],
) -> ConfigEntry:
    chain: list[tuple[str, str | None, ConfigSource]] = []
    if name in dynamic:
        chain.append((name, dynamic[name], ConfigSource.DYNAMIC_BROKER))
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
        read_only=name not in DYNAMIC_BROKER_CONFIGS,
        doc=doc,
        synonyms=tuple(chain),
    )
