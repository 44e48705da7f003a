"""The broker's configs under Kafka's names."""

from __future__ import annotations

from tidemill.log.config.parse import DEFINITIONS
from tidemill.protocols.kafka.broker_configs import (
    BROKER_CONFIGS,
    broker_entries,
    static_values,
)
from tidemill.protocols.kafka.node import Node
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Log, Settings
from tidemill.state.catalog.broker_rules import WITHOUT_EFFECT, BrokerLayers
from tidemill.state.catalog.types import ConfigEntry, ConfigSource, ConfigType

S = ConfigSource


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (found,) = (each for each in entries if each.name == name)
    return found


def entries(settings: Settings, node: Node, layers: BrokerLayers) -> list[ConfigEntry]:
    return broker_entries(static_values(settings, node), layers)


def test_listeners_have_the_bound_and_the_advertised_address() -> None:
    settings = Settings(host="0.0.0.0", sections=(KafkaListener(port=9999),))
    found = entries(settings, Node(7, "me", 1234), BrokerLayers({}, {}, {"log.retention.ms": "77"}))
    assert entry(found, "listeners").value == "PLAINTEXT://0.0.0.0:9999"
    assert entry(found, "advertised.listeners").value == "PLAINTEXT://me:1234"
    assert entry(found, "node.id").value == "7"
    assert entry(found, "log.retention.ms").source is S.DYNAMIC_BROKER


def test_broker_entries_show_settings_topic_defaults_and_what_can_be_altered() -> None:
    settings = Settings(default_partitions=3)
    static = static_values(settings, Node(1, "me", 9092))
    layers = BrokerLayers({"retention.ms": "5"}, {}, {"log.retention.ms": "77"})
    entries = broker_entries(static, layers)
    names = [each.name for each in entries]
    assert names == sorted(set(names))
    assert set(static) <= set(BROKER_CONFIGS) <= set(names)
    assert {s.name for each in DEFINITIONS.values() for s in each.synonyms} <= set(names)
    assert entry(entries, "num.partitions").value == "3"
    assert entry(entries, "num.partitions").source is S.STATIC_BROKER
    assert entry(entries, "log.retention.check.interval.ms").source is S.DEFAULT
    assert entry(entries, "broker.id").read_only
    retention = entry(entries, "log.retention.ms")
    assert (retention.value, retention.source) == ("77", S.DYNAMIC_BROKER)
    assert not retention.read_only
    assert retention.synonyms == (
        ("log.retention.ms", "77", S.DYNAMIC_BROKER),
        ("log.retention.ms", "5", S.STATIC_BROKER),
        ("log.retention.hours", "168", S.DEFAULT),
    )
    hours = entry(entries, "log.retention.hours")
    assert (hours.value, hours.source, hours.type) == ("168", S.DEFAULT, ConfigType.INT)


def test_a_broker_config_without_effect_says_so_and_where_its_value_comes_from() -> None:
    layers = BrokerLayers({}, {"log.cleaner.threads": "2"}, {"log.cleaner.backoff.ms": "7"})
    node = Node(1, "me", 9092)
    found = entries(Settings(log=Log(cleaner_backoff_ms=500)), node, layers)
    threads = entry(found, "log.cleaner.threads")
    assert (threads.value, threads.source) == ("2", S.DYNAMIC_DEFAULT_BROKER)
    assert threads.synonyms[1:] == (("log.cleaner.threads", "1", S.DEFAULT),)
    backoff = entry(found, "log.cleaner.backoff.ms")
    assert backoff.synonyms == (
        ("log.cleaner.backoff.ms", "7", S.DYNAMIC_BROKER),
        ("log.cleaner.backoff.ms", "500", S.STATIC_BROKER),
        ("log.cleaner.backoff.ms", "15000", S.DEFAULT),
    )
    for name in WITHOUT_EFFECT:
        assert entry(found, name).doc.endswith("Accepted without effect."), name
        assert not entry(found, name).read_only


DYNAMIC_IN_KAFKA = """
background.threads compression.gzip.level compression.lz4.level compression.type
compression.zstd.level config.providers cordoned.log.dirs
follower.fetch.last.tiered.offset.enable group.consumer.assignment.interval.ms
group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms
group.streams.assignment.interval.ms listener.security.protocol.map listeners
log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms
log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
log.cleaner.min.compaction.lag.ms log.cleaner.threads log.cleanup.policy
log.flush.interval.messages log.flush.interval.ms log.index.interval.bytes
log.index.size.max.bytes log.local.retention.bytes log.local.retention.ms
log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
log.message.timestamp.type log.preallocate log.retention.bytes log.retention.ms
log.roll.jitter.ms log.roll.ms log.segment.bytes log.segment.delete.delay.ms
max.connection.creation.rate max.connections max.connections.per.ip
max.connections.per.ip.overrides message.max.bytes metric.reporters min.insync.replicas
num.io.threads num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers
principal.builder.class producer.id.expiration.ms remote.fetch.max.wait.ms
remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
remote.log.manager.follower.thread.pool.size remote.log.reader.threads sasl.enabled.mechanisms
sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.mechanism.inter.broker.protocol share.coordinator.cached.buffer.max.bytes
transaction.partition.verification.enable unclean.leader.election.enable
"""
"""What DescribeConfigs of Apache Kafka 4.3.0 lists as not read-only, without those of TLS."""
DECIDES_ABOUT_ACCESS = """
config.providers cordoned.log.dirs listener.security.protocol.map listeners metric.reporters
principal.builder.class sasl.enabled.mechanisms sasl.jaas.config
sasl.kerberos.principal.to.local.rules sasl.mechanism.inter.broker.protocol
"""
"""What must not be accepted without effect: a client would believe that it is in force."""


def test_what_kafka_lets_one_alter_can_be_altered_unless_it_decides_about_access() -> None:
    found = entries(Settings(), Node(1, "me", 9092), BrokerLayers())
    alterable = {each.name for each in found if not each.read_only}
    wanted = set(DYNAMIC_IN_KAFKA.split()) - set(DECIDES_ABOUT_ACCESS.split())
    assert wanted <= alterable
    throttles = {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
    assert alterable - wanted == throttles
