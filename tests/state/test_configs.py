"""Configs: incremental changes, layers of defaults, and how admins see them."""

from __future__ import annotations

import pytest

from tests.state.test_catalog import Desk
from tidemill.errors import InvalidConfigError, InvalidRequestError, TidemillError
from tidemill.log.config import DEFINITIONS
from tidemill.settings import Settings
from tidemill.state.broker_configs import BROKER_CONFIGS, broker_entries, static_values
from tidemill.state.types import (
    AlterOp,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    NewTopic,
)

SET, DELETE, APPEND, SUBTRACT = AlterOp.SET, AlterOp.DELETE, AlterOp.APPEND, AlterOp.SUBTRACT
S = ConfigSource


def desk_with(**configs: str) -> Desk:
    desk = Desk(topic_defaults={"log.retention.hours": "2", "segment.bytes": "2000000"})
    desk.create(NewTopic("t", configs={k.replace("_", "."): v for k, v in configs.items()}))
    return desk


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(each for each in entries if each.name == name)


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({}, [("retention.ms", SET, "5")], {"retention.ms": "5"}),
        ({"retention_ms": "5"}, [("retention.ms", DELETE, None)], {}),
        ({}, [("retention.ms", DELETE, None)], {}),
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
    desk = desk_with(**before)
    wanted = [ConfigChange(*change) for change in changes]
    desk.run(desk.catalog.alter_topic("t", wanted, validate_only=True))
    assert desk.catalog.config_of("t") == {k.replace("_", "."): v for k, v in before.items()}
    desk.run(desk.catalog.alter_topic("t", wanted))
    assert desk.restart().config_of("t") == after


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("nonsense", SET, "1")], InvalidConfigError),
        ([("nonsense", DELETE, None)], InvalidConfigError),
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
    desk = desk_with()
    with pytest.raises(error):
        desk.catalog.alter_topic("t", [ConfigChange(*change) for change in changes])


def test_replacing_drops_what_is_not_named() -> None:
    desk = desk_with(retention_ms="5")
    desk.run(desk.catalog.replace_topic("t", {"segment.ms": "9", "flush.ms": None}))
    assert desk.catalog.config_of("t") == {"segment.ms": "9"}
    with pytest.raises(InvalidConfigError):
        desk.catalog.replace_topic("t", {"nonsense": "9"})


def test_change_without_effect_writes_nothing() -> None:
    desk = desk_with(retention_ms="5")
    assert desk.catalog.alter_topic("t", [ConfigChange("retention.ms", SET, "5")]).records == []


def test_broker_defaults_change_for_topics_that_set_nothing_themselves() -> None:
    desk = desk_with()
    desk.create(NewTopic("own", configs={"retention.ms": "5"}))
    assert desk.catalog.log_config("t").retention_ms == 2 * 3_600_000
    desk.run(desk.catalog.alter_broker([ConfigChange("log.retention.ms", SET, "77")]))
    assert desk.catalog.log_config("t").retention_ms == 77
    assert desk.catalog.log_config("own").retention_ms == 5
    assert desk.restart().broker_config() == {"log.retention.ms": "77"}
    desk.run(desk.catalog.replace_broker({"log.segment.bytes": "3000000"}))
    assert desk.restart().broker_config() == {"log.segment.bytes": "3000000"}


@pytest.mark.parametrize("name", ["broker.id", "log.retention.hours", "retention.ms", "nonsense"])
def test_other_broker_configs_can_not_be_altered(name: str) -> None:
    desk = desk_with()
    with pytest.raises(InvalidConfigError):
        desk.catalog.alter_broker([ConfigChange(name, SET, "1")])
    with pytest.raises(InvalidConfigError):
        desk.catalog.replace_broker({name: "1"})


def test_broker_default_that_contradicts_a_topic_is_refused() -> None:
    desk = desk_with()
    desk.create(NewTopic("own", configs={"min.compaction.lag.ms": "1000"}))
    change = ConfigChange("log.cleaner.max.compaction.lag.ms", SET, "10")
    with pytest.raises(InvalidConfigError):
        desk.catalog.alter_broker([change])


def test_topic_entries_show_value_source_and_synonyms_strongest_first() -> None:
    desk = desk_with(retention_ms="5")
    desk.run(desk.catalog.alter_broker([ConfigChange("log.retention.ms", SET, "77")]))
    entries = desk.catalog.topic_entries("t")
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


def test_topic_entries_show_a_static_default_in_the_topic_s_unit() -> None:
    desk = desk_with()
    retention = entry(desk.catalog.topic_entries("t"), "retention.ms")
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
    desk = Desk()
    desk.create(NewTopic("t"))
    entries = {each.name: each for each in desk.catalog.topic_entries("t")}
    assert {name: entries[name].value for name in KAFKA_DEFAULTS} == KAFKA_DEFAULTS
    assert {each.source for each in entries.values()} == {S.DEFAULT}


def test_broker_entries_show_settings_topic_defaults_and_what_can_be_altered() -> None:
    settings = Settings(default_partitions=3)
    static = static_values(
        settings,
        node_id=1,
        listener="PLAINTEXT://127.0.0.1:9092",
        advertised_listener="PLAINTEXT://me:9092",
    )
    entries = broker_entries(static, {"log.retention.ms": "77"}, {"retention.ms": "5"})
    names = [each.name for each in entries]
    assert names == sorted(set(names))
    assert set(static) <= set(BROKER_CONFIGS) <= set(names)
    assert {s.name for each in DEFINITIONS.values() for s in each.synonyms} <= set(names)
    assert entry(entries, "num.partitions").value == "3"
    assert entry(entries, "num.partitions").source is S.STATIC_BROKER
    assert entry(entries, "log.retention.check.interval.ms").source is S.DEFAULT
    assert entry(entries, "broker.id").read_only
    retention = entry(entries, "log.retention.ms")
    assert (retention.value, retention.source, retention.read_only) == (
        "77",
        S.DYNAMIC_BROKER,
        False,
    )
    assert retention.synonyms == (
        ("log.retention.ms", "77", S.DYNAMIC_BROKER),
        ("log.retention.ms", "5", S.STATIC_BROKER),
    )
    hours = entry(entries, "log.retention.hours")
    assert (hours.value, hours.source, hours.type) == ("168", S.DEFAULT, ConfigType.INT)
