"""Configs: incremental changes, layers of defaults, and how admins see them."""

from __future__ import annotations

import pytest

from tests.state.catalog.test_catalog import CatalogDriver
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidConfigError
from tidemill.state.catalog.types import (
    AlterOp,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    NewTopic,
)
from tidemill.state.errors import InvalidRequestError

SET, DELETE, APPEND, SUBTRACT = AlterOp.SET, AlterOp.DELETE, AlterOp.APPEND, AlterOp.SUBTRACT
S = ConfigSource


def driver_with(**configs: str) -> CatalogDriver:
    driver = CatalogDriver(topic_defaults={"log.retention.hours": "2", "segment.bytes": "2000000"})
    driver.create(NewTopic("t", configs={k.replace("_", "."): v for k, v in configs.items()}))
    return driver


@pytest.fixture
def driver() -> CatalogDriver:
    return driver_with()


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(each for each in entries if each.name == name)


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({}, [("retention.ms", SET, "5")], {"retention.ms": "5"}),
        ({"retention_ms": "5"}, [("retention.ms", DELETE, None)], {}),
        ({}, [("retention.ms", DELETE, None)], {}),
        ({}, [("leader.replication.throttled.replicas", DELETE, None)], {}),
        ({"retention_ms": "5"}, [("nonsense", DELETE, None)], {"retention.ms": "5"}),
        ({}, [("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "delete,compact"}),
        (
            {"cleanup_policy": "compact"},
            [("cleanup.policy", APPEND, "compact,delete")],
            {"cleanup.policy": "compact,delete"},
        ),
        (
            {"cleanup_policy": "compact,delete"},
            [("cleanup.policy", SUBTRACT, "delete"), ("segment.ms", SET, "9")],
            {"cleanup.policy": "compact", "segment.ms": "9"},
        ),
    ],
)
def test_incremental_changes(
    before: dict[str, str], changes: list[tuple[str, AlterOp, str | None]], after: dict[str, str]
) -> None:
    driver = driver_with(**before)
    wanted = [ConfigChange(*change) for change in changes]
    driver.run(driver.catalog.alter_topic("t", wanted, validate_only=True))
    assert driver.catalog.config_of("t") == {k.replace("_", "."): v for k, v in before.items()}
    driver.run(driver.catalog.alter_topic("t", wanted))
    assert driver.restart().config_of("t") == after


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("nonsense", SET, "1")], InvalidConfigError),
        ([("retention.ms", SET, None)], InvalidConfigError),
        ([("retention.ms", SET, "soon")], InvalidConfigError),
        ([("retention.ms", APPEND, "5")], InvalidConfigError),
        ([("cleanup.policy", APPEND, "shred")], InvalidConfigError),
        ([("retention.ms", SET, "5"), ("retention.ms", DELETE, None)], InvalidRequestError),
    ],
)
def test_impossible_changes_are_refused(
    changes: list[tuple[str, AlterOp, str | None]], error: type[TidemillError]
) -> None:
    driver = driver_with()
    with pytest.raises(error):
        driver.catalog.alter_topic("t", [ConfigChange(*change) for change in changes])


def test_replacing_drops_what_is_not_named() -> None:
    driver = driver_with(retention_ms="5")
    driver.run(driver.catalog.replace_topic("t", {"segment.ms": "9", "flush.ms": None}))
    assert driver.catalog.config_of("t") == {"segment.ms": "9"}
    with pytest.raises(InvalidConfigError):
        driver.catalog.replace_topic("t", {"nonsense": "9"})


def test_change_without_effect_writes_nothing() -> None:
    driver = driver_with(retention_ms="5")
    assert driver.catalog.alter_topic("t", [ConfigChange("retention.ms", SET, "5")]).records == []


def test_broker_defaults_change_for_topics_that_set_nothing_themselves() -> None:
    driver = driver_with()
    driver.create(NewTopic("own", configs={"retention.ms": "5"}))
    assert driver.catalog.log_config("t").retention_ms == 2 * 3_600_000
    driver.run(driver.catalog.alter_broker([ConfigChange("log.retention.ms", SET, "77")]))
    assert driver.catalog.log_config("t").retention_ms == 77
    assert driver.catalog.log_config("own").retention_ms == 5
    assert driver.restart().broker_layers().broker == {"log.retention.ms": "77"}
    driver.run(driver.catalog.replace_broker({"log.segment.bytes": "3000000"}))
    assert driver.restart().broker_layers().broker == {"log.segment.bytes": "3000000"}


@pytest.mark.parametrize("name", ["broker.id", "log.retention.hours", "retention.ms", "nonsense"])
def test_other_broker_configs_can_not_be_altered(driver: CatalogDriver, name: str) -> None:
    with pytest.raises(InvalidConfigError):
        driver.catalog.alter_broker([ConfigChange(name, SET, "1")])
    with pytest.raises(InvalidConfigError):
        driver.catalog.replace_broker({name: "1"})


@pytest.mark.parametrize("all_brokers", [False, True])
@pytest.mark.parametrize(
    "name", ["leader.replication.throttled.rate", "log.retention.ms", "node.id", "nonsense"]
)
def test_deleting_a_broker_config_that_is_not_set_changes_nothing(
    name: str, all_brokers: bool
) -> None:
    catalog = driver_with().catalog
    change = ConfigChange(name, DELETE, None)
    assert catalog.alter_broker([change], all_brokers=all_brokers).records == []


@pytest.mark.parametrize("all_brokers", [False, True])
def test_a_config_without_effect_is_stored_and_deleted(all_brokers: bool) -> None:
    driver = driver_with()
    for op, value, after in ((SET, "2", {"log.cleaner.threads": "2"}), (DELETE, None, {})):
        change = ConfigChange("log.cleaner.threads", op, value)
        driver.run(driver.catalog.alter_broker([change], all_brokers=all_brokers))
        layers = driver.restart().broker_layers()
        always = {"min.insync.replicas": "1"}
        assert layers.cluster == {**always, **(after if all_brokers else {})}
        assert layers.broker == ({} if all_brokers else after)
    assert driver.catalog.log_config("t").retention_ms == 2 * 3_600_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleaner.threads", "many"),
        ("log.cleaner.threads", "-1"),
        ("leader.replication.throttled.rate", "-5"),
        ("max.connections", str(2**31)),
        ("transaction.partition.verification.enable", "maybe"),
        ("sasl.login.refresh.window.factor", "7"),
        ("sasl.jaas.config", "x"),
        ("listeners", "PLAINTEXT://:9092"),
        ("ssl.client.auth", "required"),
    ],
)
def test_an_invalid_value_is_refused_also_without_effect(name: str, value: str) -> None:
    catalog = driver_with().catalog
    with pytest.raises(InvalidConfigError, match=name):
        catalog.alter_broker([ConfigChange(name, SET, value)])
    with pytest.raises(InvalidConfigError, match=name):
        catalog.replace_broker({name: value})


def test_a_config_of_single_brokers_can_not_be_set_for_all() -> None:
    catalog = driver_with().catalog
    change = ConfigChange("sasl.kerberos.min.time.before.relogin", SET, "1")
    assert catalog.alter_broker([change], validate_only=True).result is None
    with pytest.raises(InvalidRequestError, match="give a broker's id"):
        catalog.alter_broker([change], all_brokers=True)


def test_a_default_for_all_brokers_is_weaker_than_one_of_the_broker(driver: CatalogDriver) -> None:
    for_all = ConfigChange("log.retention.ms", SET, "88")
    driver.run(driver.catalog.alter_broker([for_all], all_brokers=True))
    retention = entry(driver.catalog.topic_entries("t"), "retention.ms")
    assert (retention.value, retention.source) == ("88", S.DYNAMIC_DEFAULT_BROKER)
    driver.run(driver.catalog.alter_broker([ConfigChange("log.retention.ms", SET, "77")]))
    assert driver.catalog.log_config("t").retention_ms == 77
    retention = entry(driver.catalog.topic_entries("t"), "retention.ms")
    assert retention.synonyms == (
        ("log.retention.ms", "77", S.DYNAMIC_BROKER),
        ("log.retention.ms", "88", S.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "2", S.STATIC_BROKER),
        ("log.retention.hours", "168", S.DEFAULT),
    )
    driver.run(driver.catalog.alter_broker([ConfigChange("log.retention.ms", DELETE, None)]))
    assert driver.catalog.log_config("t").retention_ms == 88
    kept = {"min.insync.replicas": "1"}  # it can't be removed
    driver.run(driver.catalog.replace_broker(kept, all_brokers=True))
    assert driver.catalog.log_config("t").retention_ms == 2 * 3_600_000


def test_changes_that_follow_each_other_are_checked_against_both_layers() -> None:
    driver = driver_with()
    low = ConfigChange("log.cleaner.min.compaction.lag.ms", SET, "100")
    high = ConfigChange("log.cleaner.max.compaction.lag.ms", SET, "10")
    outcome = driver.catalog.alter_broker([low], all_brokers=True)  # in flight
    with pytest.raises(InvalidConfigError):
        driver.catalog.alter_broker([high])
    driver.run(outcome)
    with pytest.raises(InvalidConfigError):
        driver.catalog.alter_broker([high])


def test_a_config_with_its_default_given_at_creation_is_listed_as_set() -> None:
    driver = driver_with(min_insync_replicas="1")
    for entries in (
        driver.restart().topic_entries("t"),
        driver.catalog.new_topic_entries("t", {"min.insync.replicas": "1"}),
    ):
        given = entry(entries, "min.insync.replicas")
        assert (given.value, given.source) == ("1", S.DYNAMIC_TOPIC)


def test_broker_default_that_contradicts_a_topic_is_refused(driver: CatalogDriver) -> None:
    driver.create(NewTopic("own", configs={"min.compaction.lag.ms": "1000"}))
    change = ConfigChange("log.cleaner.max.compaction.lag.ms", SET, "10")
    with pytest.raises(InvalidConfigError):
        driver.catalog.alter_broker([change])


def test_topic_entries_show_value_source_and_synonyms_strongest_first() -> None:
    driver = driver_with(retention_ms="5")
    driver.run(driver.catalog.alter_broker([ConfigChange("log.retention.ms", SET, "77")]))
    entries = driver.catalog.topic_entries("t")
    retention = entry(entries, "retention.ms")
    assert (retention.value, retention.source, retention.type) == (
        "5",
        S.DYNAMIC_TOPIC,
        ConfigType.LONG,
    )
    assert retention.synonyms == (
        ("retention.ms", "5", S.DYNAMIC_TOPIC),
        ("log.retention.ms", "77", S.DYNAMIC_BROKER),
        ("log.retention.hours", "2", S.STATIC_BROKER),
        ("log.retention.hours", "168", S.DEFAULT),
    )
    segment = entry(entries, "segment.bytes")
    assert (segment.value, segment.source) == ("2000000", S.STATIC_BROKER)
    assert segment.synonyms[0] == ("log.segment.bytes", "2000000", S.STATIC_BROKER)
    assert "internal.segment.bytes" not in {each.name for each in entries}


def test_topic_entries_show_a_static_default_in_the_topic_s_unit(driver: CatalogDriver) -> None:
    retention = entry(driver.catalog.topic_entries("t"), "retention.ms")
    assert (retention.value, retention.source) == ("7200000", S.STATIC_BROKER)


KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_topic_entries_have_kafka_s_defaults() -> None:
    driver = CatalogDriver()
    driver.create(NewTopic("t"))
    entries = {each.name: each for each in driver.catalog.topic_entries("t")}
    assert {name: entries[name].value for name in KAFKA_DEFAULTS} == KAFKA_DEFAULTS
    assert entries.pop("min.insync.replicas").source is S.DYNAMIC_DEFAULT_BROKER  # of all brokers
    assert {each.source for each in entries.values()} == {S.DEFAULT}
