"""Topic configs have Kafka's names, defaults and bounds; invalid ones are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tidemill.log.config.definition import ConfigType
from tidemill.log.config.parse import DEFINITIONS, definition, parse_config, topic_defaults
from tidemill.log.config.topic import LogConfig
from tidemill.log.errors import InvalidConfigError
from tidemill.state.catalog import types

KAFKA = json.loads((Path(__file__).parents[2] / "golden/topic_configs_java.json").read_text())


@pytest.mark.parametrize("name", sorted(KAFKA))
def test_declared_as_in_apache_kafka(name: str) -> None:
    ours = DEFINITIONS[name]
    assert {
        "type": ours.type.name,
        "default": ours.default,
        "internal": ours.internal,
        "synonyms": [each.name for each in ours.synonyms],
    } == {key: KAFKA[name][key] for key in ("type", "default", "internal", "synonyms")}
    if not ours.fixed and not ours.internal:
        assert ours.valid == KAFKA[name]["valid"]


def test_only_limits_of_lag_are_declared_besides_those_of_kafka() -> None:
    own = ["lag.group", "lag.max.bytes", "lag.max.ms", "lag.max.records", "lag.policy"]
    assert list(DEFINITIONS) == sorted([*KAFKA, *own])


def test_state_shows_the_same_types() -> None:
    assert types.ConfigType is ConfigType


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_every_default_is_accepted_and_documented(name: str) -> None:
    each = DEFINITIONS[name]
    assert each.doc.endswith(".")
    if each.default is not None:
        config = parse_config({name: each.default})
        assert getattr(config, each.field) == getattr(LogConfig(), each.field)


def test_without_overrides_all_values_are_kafkas_defaults() -> None:
    assert parse_config({}) == LogConfig()


def test_values_are_parsed_to_their_types() -> None:
    config = parse_config(
        {
            "cleanup.policy": " compact , delete ",
            "retention.ms": "-1",
            "min.cleanable.dirty.ratio": "0.01",
            "unclean.leader.election.enable": "TRUE",
            "compression.type": "zstd",
            "segment.bytes": "1048576",
        }
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.compact
    assert config.delete
    assert config.retention_ms == -1
    assert config.min_cleanable_dirty_ratio == 0.01
    assert config.unclean_leader_election_enable is True
    assert config.compression_type == "zstd"
    assert config.segment_bytes == 1 << 20


def test_a_config_can_not_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogConfig().retention_ms = 1  # type: ignore[misc]


def test_an_empty_policy_keeps_everything() -> None:
    config = parse_config({"cleanup.policy": ""})
    assert not config.compact
    assert not config.delete


INVALID = {
    "retention.ms": ["-2", "week", "1.5", "1_000", "", "9223372036854775808"],
    "max.message.bytes": ["2147483648", "-1"],
    "segment.bytes": ["1048575"],
    "segment.ms": ["0"],
    "segment.index.bytes": ["3"],
    "min.cleanable.dirty.ratio": ["1.01", "-0.1", "nan"],
    "cleanup.policy": ["compact,drop", "compact,compact", "compact,", "Compact"],
    "compression.type": ["brotli", "none"],
    "compression.gzip.level": ["0"],
    "compression.lz4.level": ["18"],
    "compression.zstd.level": ["23"],
    "message.timestamp.type": ["createtime"],
    "preallocate": ["yes"],
    "unclean.leader.election.enable": ["1"],
    "internal.segment.bytes": ["0"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in INVALID.items() for value in values]
)
def test_invalid_values_are_refused_with_their_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_config({name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote.storage.enable", "true"),
        ("preallocate", "true"),
        ("local.retention.ms", "1000"),
        ("local.retention.bytes", "1000"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1"),
    ],
)
def test_unsupported_configs_accept_only_their_default(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match="one broker") as caught:
        parse_config({name: value})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.msx", "Did you mean retention.ms?"),
        ("retention_ms", "Did you mean retention.ms?"),
        ("cleanup.polcy", "Did you mean cleanup.policy?"),
        ("log.retention.hours", "On a topic it is called retention.ms."),
        ("message.format.version", "Leave it out: Apache Kafka 4.0 removed it."),
        ("zzz", "See the reference of topic configs."),
    ],
)
def test_an_unknown_name_gets_a_suggestion(name: str, hint: str) -> None:
    for refused in (lambda: parse_config({name: "1"}), lambda: definition(name)):
        with pytest.raises(InvalidConfigError, match="unknown topic config") as caught:
            refused()
        assert caught.value.hint == hint


def test_lags_in_conflict_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms"):
        parse_config({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})


def test_compacted_segments_roll_within_the_longest_lag() -> None:
    overrides = {"max.compaction.lag.ms": "5000", "segment.ms": "9000"}
    assert parse_config(overrides).max_segment_ms == 9000
    assert parse_config({**overrides, "cleanup.policy": "compact"}).max_segment_ms == 5000


# --- the broker's defaults -----------------------------------------------------------------------


def test_a_topics_own_value_overrides_the_brokers_default() -> None:
    defaults = {"retention.ms": "5", "segment.bytes": "2097152"}
    config = parse_config({"retention.ms": "6"}, defaults)
    assert (config.retention_ms, config.segment_bytes) == (6, 2097152)


def test_broker_names_are_converted_to_topic_names_and_units() -> None:
    assert topic_defaults(
        {
            "log.retention.hours": "2",
            "log.roll.jitter.hours": "1",
            "message.max.bytes": "7",
            "log.cleaner.min.cleanable.ratio": "0.1",
        }
    ) == {
        "retention.ms": "7200000",
        "segment.jitter.ms": "3600000",
        "max.message.bytes": "7",
        "min.cleanable.dirty.ratio": "0.1",
    }


def test_the_synonym_with_the_highest_priority_counts() -> None:
    three = {"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}
    assert topic_defaults(three) == {"retention.ms": "3"}
    assert topic_defaults({**three, "retention.ms": "4"}) == {"retention.ms": "4"}
    del three["log.retention.ms"]
    assert topic_defaults(three) == {"retention.ms": "120000"}


def test_unlimited_stays_unlimited_in_other_units() -> None:
    assert topic_defaults({"log.retention.hours": "-1"}) == {"retention.ms": "-1"}


@pytest.mark.parametrize("configs", [{"log.retention.days": "1"}, {"log.retention.hours": "x"}])
def test_bad_broker_defaults_are_refused(configs: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError, match=r"log\.retention"):
        parse_config({}, configs)
