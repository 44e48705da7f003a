"""The broker configs that clients can alter while the broker runs, and their layers.

Apache Kafka 4.3 has two kinds of them. The defaults of topic configs have an effect here. The
others size threads, buffers and connections of Apache Kafka, or are about other brokers: they are
accepted, checked, stored and described, and have no effect, which their documentation says. Admin
tools set them, and would fail otherwise. What decides about access (listeners, TLS, SASL
mechanisms, plug-ins) is not in the list: to accept it without effect would be dangerous.

This module must not know which topics exist.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.log.config.definition import (
    MAX_LONG,
    ConfigDef,
    ConfigType,
    at_least,
    between,
)
from tidemill.log.config.parse import DEFINITIONS, topic_defaults
from tidemill.log.errors import InvalidConfigError
from tidemill.state.errors import InvalidRequestError

_T = ConfigType

DYNAMIC_BROKER_CONFIGS: dict[str, str] = {
    each.synonyms[0].name: name for name, each in DEFINITIONS.items() if each.synonyms
}
"""Broker configs that clients can alter -> the topic config whose default they are."""

_THREADS, _CLEANER = "Threads of Apache Kafka.", "Compaction of Apache Kafka."
_REMOTE = "Remote storage; there is none."
_KERBEROS = "Kerberos, which is not supported."
_TOKENS = "Renewal of SASL tokens, which are not supported."
_GROUPS = "Assignments in the background; here the broker assigns immediately."
_RATE = "Limits replication; there is one broker."
_POSITIVE, _NOT_NEGATIVE, _BUFFER = at_least(1), at_least(0), at_least(512 * 1024)
_MOST_INT, _MOST_LONG, _MOST_DOUBLE = str(2**31 - 1), str(MAX_LONG), str(sys.float_info.max)

WITHOUT_EFFECT: dict[str, ConfigDef] = {
    name: ConfigDef(name, kind, default, None, f"{doc} Accepted without effect.", check)
    for name, kind, default, check, doc in (
        ("background.threads", _T.INT, "10", _POSITIVE, _THREADS),
        ("follower.fetch.last.tiered.offset.enable", _T.BOOLEAN, "false", None, _REMOTE),
        ("follower.replication.throttled.rate", _T.LONG, None, _NOT_NEGATIVE, _RATE),
        ("group.consumer.assignment.interval.ms", _T.INT, "1000", _NOT_NEGATIVE, _GROUPS),
        (
            "group.coordinator.cached.buffer.max.bytes",
            _T.INT,
            "1048588",
            _BUFFER,
            "Buffers of Apache Kafka's group coordinator.",
        ),
        ("group.share.assignment.interval.ms", _T.INT, "1000", _NOT_NEGATIVE, _GROUPS),
        ("group.streams.assignment.interval.ms", _T.INT, "1000", _NOT_NEGATIVE, _GROUPS),
        ("leader.replication.throttled.rate", _T.LONG, None, _NOT_NEGATIVE, _RATE),
        (
            "log.cleaner.backoff.ms",
            _T.LONG,
            "15000",
            _NOT_NEGATIVE,
            "How long compaction waits when there is nothing to compact. The broker takes it from "
            "its setting log.cleaner_backoff_ms when it starts.",
        ),
        ("log.cleaner.dedupe.buffer.size", _T.LONG, "134217728", _POSITIVE, _CLEANER),
        ("log.cleaner.io.buffer.load.factor", _T.DOUBLE, "0.9", None, _CLEANER),
        ("log.cleaner.io.buffer.size", _T.INT, "524288", _NOT_NEGATIVE, _CLEANER),
        ("log.cleaner.io.max.bytes.per.second", _T.DOUBLE, _MOST_DOUBLE, None, _CLEANER),
        (
            "log.cleaner.threads",
            _T.INT,
            "1",
            _NOT_NEGATIVE,
            "Threads of compaction. It runs on the event loop here, in slices.",
        ),
        (
            "max.connection.creation.rate",
            _T.INT,
            _MOST_INT,
            _NOT_NEGATIVE,
            "Limits how many connections are accepted in a second.",
        ),
        (
            "max.connections",
            _T.INT,
            _MOST_INT,
            _NOT_NEGATIVE,
            "Open client connections. The broker takes it from its setting limits.connections "
            "when it starts.",
        ),
        (
            "max.connections.per.ip",
            _T.INT,
            _MOST_INT,
            _NOT_NEGATIVE,
            "Limits the connections of an address.",
        ),
        (
            "max.connections.per.ip.overrides",
            _T.STRING,
            "",
            None,
            "Limits the connections of single addresses.",
        ),
        ("num.io.threads", _T.INT, "8", _POSITIVE, _THREADS),
        ("num.network.threads", _T.INT, "3", _POSITIVE, _THREADS),
        ("num.recovery.threads.per.data.dir", _T.INT, "2", _POSITIVE, _THREADS),
        ("num.replica.fetchers", _T.INT, "1", _POSITIVE, "Replication; there is one broker."),
        (
            "producer.id.expiration.ms",
            _T.INT,
            "86400000",
            _POSITIVE,
            "How long an idle producer's sequence numbers are kept. The broker takes it from its "
            "setting log.producer_id_expiration_ms when it starts.",
        ),
        ("remote.fetch.max.wait.ms", _T.INT, "500", _POSITIVE, _REMOTE),
        ("remote.list.offsets.request.timeout.ms", _T.LONG, "30000", _POSITIVE, _REMOTE),
        ("remote.log.index.file.cache.total.size.bytes", _T.LONG, "1073741824", _POSITIVE, _REMOTE),
        ("remote.log.manager.copier.thread.pool.size", _T.INT, "10", _POSITIVE, _REMOTE),
        ("remote.log.manager.copy.max.bytes.per.second", _T.LONG, _MOST_LONG, _POSITIVE, _REMOTE),
        ("remote.log.manager.expiration.thread.pool.size", _T.INT, "10", _POSITIVE, _REMOTE),
        ("remote.log.manager.fetch.max.bytes.per.second", _T.LONG, _MOST_LONG, _POSITIVE, _REMOTE),
        ("remote.log.manager.follower.thread.pool.size", _T.INT, "2", _POSITIVE, _REMOTE),
        ("remote.log.reader.threads", _T.INT, "10", _POSITIVE, _REMOTE),
        (
            "replica.alter.log.dirs.io.max.bytes.per.second",
            _T.LONG,
            None,
            _NOT_NEGATIVE,
            "Limits moves between data folders; there is one folder.",
        ),
        ("sasl.kerberos.kinit.cmd", _T.STRING, "/usr/bin/kinit", None, _KERBEROS),
        ("sasl.kerberos.min.time.before.relogin", _T.LONG, "60000", None, _KERBEROS),
        ("sasl.kerberos.service.name", _T.STRING, None, None, _KERBEROS),
        ("sasl.kerberos.ticket.renew.jitter", _T.DOUBLE, "0.05", None, _KERBEROS),
        ("sasl.kerberos.ticket.renew.window.factor", _T.DOUBLE, "0.8", None, _KERBEROS),
        ("sasl.login.refresh.buffer.seconds", _T.SHORT, "300", between(0, 3600), _TOKENS),
        ("sasl.login.refresh.min.period.seconds", _T.SHORT, "60", between(0, 900), _TOKENS),
        ("sasl.login.refresh.window.factor", _T.DOUBLE, "0.8", between(0.5, 1), _TOKENS),
        ("sasl.login.refresh.window.jitter", _T.DOUBLE, "0.05", between(0, 0.25), _TOKENS),
        ("share.coordinator.cached.buffer.max.bytes", _T.INT, "1048588", _BUFFER, _GROUPS),
        (
            "transaction.partition.verification.enable",
            _T.BOOLEAN,
            "true",
            None,
            "Whether writes are checked against the coordinator; they always are.",
        ),
    )
}
"""Broker configs that clients can alter, and that have no effect here."""
_PER_BROKER = "sasl."
"""The beginning of those that can be set for one broker only."""
_CLUSTER_ONLY = "min.insync.replicas"
"""Always set for all brokers, and never for one: so it is in Apache Kafka, where the eligible
leader replicas (KIP-966) depend on it."""


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """The layers of broker configs. A layer is stronger than those above it.

    Attributes:
        static: the settings, under topic or broker names.
        cluster: what clients set for all brokers (the empty broker name of KIP-226).
        broker: what clients set for this broker.
    """

    static: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, str] = field(default_factory=dict)
    broker: Mapping[str, str] = field(default_factory=dict)

    def defaults(self) -> dict[str, str]:
        """Return the defaults of topic configs that are in force, under topic names."""
        cluster, broker = _of_topics(self.cluster), _of_topics(self.broker)
        return topic_defaults(self.static) | topic_defaults(cluster) | topic_defaults(broker)


def layers_of(
    static: Mapping[str, str], cluster: Mapping[str, str], broker: Mapping[str, str]
) -> BrokerLayers:
    """Return the layers, with what is always set for all brokers.

    Args:
        cluster: what the catalog has stored for all brokers.
        broker: what it has stored for this broker.
    """
    value = static.get(_CLUSTER_ONLY, DEFINITIONS[_CLUSTER_ONLY].default or "")
    return BrokerLayers(static, {_CLUSTER_ONLY: value, **cluster}, dict(broker))


def check_cluster_only(
    before: Mapping[str, str], after: Mapping[str, str], *, all_brokers: bool
) -> None:
    """Check that a change of one layer leaves what only all brokers have in its place.

    Raises:
        InvalidConfigError: it is removed from the layer of all brokers, or set for one broker.
    """
    if all_brokers and _CLUSTER_ONLY not in after:
        raise InvalidConfigError(
            f"{_CLUSTER_ONLY} of all brokers can't be removed", hint="Set it to 1."
        )
    stored = before.get(_CLUSTER_ONLY)
    if not all_brokers and after.get(_CLUSTER_ONLY, stored) != stored:
        raise InvalidConfigError(
            f"{_CLUSTER_ONLY} can't be set for one broker",
            hint="Set it for all brokers (with an empty broker name), or for a topic.",
        )


def _of_topics(configs: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in configs.items() if name in DYNAMIC_BROKER_CONFIGS}


def check_values(configs: Mapping[str, str], *, all_brokers: bool) -> None:
    """Check the names of one layer's configs, and the values of those without effect.

    Args:
        all_brokers: whether the layer is that of all brokers.
    """
    for name, value in configs.items():
        definition = dynamic_definition(name)
        if name in WITHOUT_EFFECT:
            definition.parse(value)
        if all_brokers and name.startswith(_PER_BROKER):
            raise InvalidRequestError(f"{name} can't be set for all brokers: give a broker's id")


def dynamic_definition(name: str) -> ConfigDef:
    """Return the definition of a broker config: its own, or that of its topic config."""
    if name in WITHOUT_EFFECT:
        return WITHOUT_EFFECT[name]
    topic_name = DYNAMIC_BROKER_CONFIGS.get(name)
    if topic_name is None:
        raise InvalidConfigError(
            f"broker config {name!r} can't be altered while the broker runs",
            hint="Only defaults of topic configs can, under their broker names: log.retention.ms "
            "for example. The others are in the broker's settings.",
        )
    return DEFINITIONS[topic_name]
