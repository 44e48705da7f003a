"""Administration: every advertised version, and one invalid item does not affect the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.kafka.broker import (
    DATA,
    MISSING_ID,
    NO_ID,
    NOW_MS,
    Broker,
    each_version,
    versions,
)
from tests.protocols.kafka.keys import API_VERSIONS, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import SOFTWARE, Tree, picked, produce, written
from tests.protocols.kafka.wire import serving
from tidemill.engine.api import ConfigEntry, ConfigSource, ConfigType
from tidemill.log.errors import StorageError
from tidemill.protocols.kafka import broker_configs

CREATE, DELETE, GROW, ELECT, REASSIGN, REASSIGNING = 19, 20, 37, 43, 45, 46
DESCRIBE_CONFIGS, ALTER, INCREMENTAL, RESOURCES = 32, 33, 44, 74
MOVE, LOG_DIRS, QUORUM, UPDATE_FEATURES = 34, 35, 55, 57
TOPIC, BROKER = 2, 4
MIN_ISR = "min.insync.replicas"


# --- topics --------------------------------------------------------------------------------------


def new_topic(name: str, partitions: int = 3) -> Tree:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": "retention.ms", "value": "1000"}],
    }


@pytest.mark.parametrize("validate_only", [False, True])
@each_version(CREATE)
def test_create_topics_answers_each(broker: Broker, version: int, validate_only: bool) -> None:
    names = ("new", "users", "twice", "twice")
    request = {"topics": [new_topic(name) for name in names], "validate_only": validate_only}
    answer = broker.call(CREATE, version, request)
    new, old, twice = answer["topics"]
    codes = picked(answer["topics"], "name", "error_code")
    assert codes == [("new", 0), ("users", 36), ("twice", 42)]
    assert new["error_message"] is None
    assert "users" in old["error_message"]
    assert twice["error_message"]
    if version >= 5:
        assert (new["num_partitions"], new["replication_factor"]) == (3, 1)
        assert (old["num_partitions"], old["replication_factor"]) == (-1, -1)
        configs = {c["name"]: (c["value"], c["config_source"]) for c in new["configs"]}
        assert configs["retention.ms"] == ("1000", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
        assert old["configs"] == []
        assert new["topic_config_error_code"] == 0
    made = {} if validate_only else {"new": 3}
    assert broker.topics() == {"orders": 3, "users": 1} | made
    if made:
        assert broker.configs("new") == {"retention.ms": "1000"}
        if version >= 7:
            assert (new["topic_id"], old["topic_id"]) == (broker.topic_id("new"), NO_ID)


@each_version(CREATE)
def test_create_topics_with_assignments(broker: Broker, version: int) -> None:
    topic = {
        **new_topic("new", -1),
        "replication_factor": -1,
        "assignments": [{"partition_index": at, "broker_ids": [1]} for at in (0, 1)],
        "configs": [],
    }
    elsewhere = [{"partition_index": 0, "broker_ids": [2]}]
    foreign = topic | {"name": "foreign", "assignments": elsewhere}
    null = new_topic("null") | {"configs": [{"name": "retention.ms", "value": None}]}
    answer = broker.call(CREATE, version, {"topics": [topic, foreign, null]})
    assert [t["error_code"] for t in answer["topics"]] == [0, 39, 40]
    assert broker.topics() == {"orders": 3, "users": 1, "new": 2}


@each_version(DELETE, until=5)
def test_delete_topics_by_name(broker: Broker, version: int) -> None:
    names = ["orders", "__consumer_offsets", "users", "users"]
    answer = broker.call(DELETE, version, {"topic_names": names, "timeout": 1})
    codes = picked(answer["responses"], "name", "error_code")
    assert codes == [("orders", 0), ("__consumer_offsets", 17), ("users", 42)]
    assert broker.topics() == {"users": 1}
    if version >= 5:
        assert answer["responses"][0]["error_message"] is None
        assert "internal" in answer["responses"][1]["error_message"]


def test_delete_topics_by_name_or_id(broker: Broker) -> None:
    first, second, plain = (broker.create(n).topic_id for n in ("first", "second", "plain"))
    asked_and_answered = [
        ((None, first), ("first", first, 0)),
        (("plain", None), ("plain", plain, 0)),
        (("second", None), ("second", second, 0)),
        ((None, MISSING_ID), (None, MISSING_ID, 100)),
        (("second", second), ("second", second, 42)),
        ((None, None), (None, NO_ID, 42)),
        (("first", None), ("first", NO_ID, 42)),
    ]
    topics = [{"name": name, "topic_id": topic_id} for (name, topic_id), _ in asked_and_answered]
    answer = broker.call(DELETE, 6, {"topics": topics, "timeout": 1})
    found = picked(answer["responses"], "name", "topic_id", "error_code")
    assert found == [answered for _, answered in asked_and_answered]
    assert broker.topics() == {"orders": 3, "users": 1}


@pytest.mark.parametrize("validate_only", [False, True])
@each_version(GROW)
def test_create_partitions(broker: Broker, version: int, validate_only: bool) -> None:
    broker.create("other")
    topics = [
        {"name": "orders", "count": 6, "assignments": None},
        {"name": "users", "count": 1, "assignments": None},
        {"name": "other", "count": 2, "assignments": [{"broker_ids": [1]}]},
        {"name": "twice", "count": 2, "assignments": None},
        {"name": "twice", "count": 3, "assignments": None},
    ]
    request = {"topics": topics, "timeout": 1, "validate_only": validate_only}
    answer = broker.call(GROW, version, request)
    codes = picked(answer["results"], "name", "error_code")
    assert codes == [("orders", 0), ("users", 37), ("other", 0), ("twice", 42)]
    assert "users" in answer["results"][1]["error_message"]
    grown = {} if validate_only else {"orders": 6, "other": 2}
    assert broker.topics() == {"orders": 3, "users": 1, "other": 1} | grown


@each_version(ELECT)
def test_elections_are_not_needed(broker: Broker, version: int) -> None:
    asked = [{"topic": "orders", "partitions": [0, 2, 3, -1]}, {"topic": "nope", "partitions": [0]}]
    request = {"election_type": 0, "topic_partitions": asked}
    orders, nope = broker.call(ELECT, version, request)["replica_election_results"]
    assert (orders["topic"], nope["topic"]) == ("orders", "nope")
    codes = picked(orders["partition_result"], "partition_id", "error_code")
    assert codes == [(0, 84), (2, 84), (3, 3), (-1, 3)]
    assert picked(nope["partition_result"], "partition_id", "error_code") == [(0, 3)]
    everything = {"election_type": 0, "topic_partitions": None}
    assert broker.call(ELECT, version, everything)["replica_election_results"] == []


@each_version(REASSIGN)
def test_a_partition_can_only_be_assigned_to_where_it_is(broker: Broker, version: int) -> None:
    changes = [(0, [1]), (1, None), (0, [2]), (0, [1, 1]), (0, []), (7, [1])]
    partitions = [{"partition_index": index, "replicas": to} for index, to in changes]
    topics = [{"name": name, "partitions": partitions} for name in ("orders", "nope")]
    answer = broker.call(REASSIGN, version, {"topics": topics})
    assert answer["error_code"] == 0
    codes = [[each["error_code"] for each in topic["partitions"]] for topic in answer["responses"]]
    assert codes == [[0, 85, 39, 39, 39, 3], [3] * 6]


def test_no_reassignment_is_ever_running(broker: Broker) -> None:
    answer = broker.call(REASSIGNING, 0, {"topics": None})
    assert (answer["error_code"], answer["topics"]) == (0, [])


# --- configs -------------------------------------------------------------------------------------


def describe(
    broker: Broker, version: int, resource: tuple[int, str], keys: Any = None, **flags: bool
) -> Tree:
    kind, name = resource
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (result,) = broker.call(DESCRIBE_CONFIGS, version, {"resources": [asked], **flags})["results"]
    assert (result["resource_type"], result["resource_name"]) == resource
    return dict(result)


def configs_of(
    broker: Broker, version: int, resource: tuple[int, str], keys: Any = None, **flags: bool
) -> dict[str, Tree]:
    """Return what is described of a resource, by name."""
    result = describe(broker, version, resource, keys, **flags)
    return {config["name"]: config for config in result["configs"]}


Change = tuple[int, str, list[tuple[str, str | None, int]]]
"""Kind and name of a resource, and name, value and operation of each config."""


def alter(
    broker: Broker, api: int, version: int, *changes: Change, validate_only: bool = False
) -> list[tuple[str, int]]:
    resources = [
        {
            "resource_type": kind,
            "resource_name": resource,
            "configs": [
                {"name": name, "config_operation": operation, "value": value}
                for name, value, operation in configs
            ],
        }
        for kind, resource, configs in changes
    ]
    request = {"resources": resources, "validate_only": validate_only}
    answer = broker.call(api, version, request)
    for response in answer["responses"]:
        assert bool(response["error_message"]) is bool(response["error_code"])
    return picked(answer["responses"], "resource_name", "error_code")


@each_version(DESCRIBE_CONFIGS)
def test_topic_configs_with_source_synonyms_and_text(broker: Broker, version: int) -> None:
    broker.create("short", retention_ms="1000")
    more = {"include_synonyms": True, "include_documentation": True}
    configs = configs_of(broker, version, (TOPIC, "short"), **more)
    retention, cleanup = configs["retention.ms"], configs["cleanup.policy"]
    assert retention["value"] == "1000"
    assert (retention["config_source"], cleanup["config_source"]) == (1, 5)
    assert picked(retention["synonyms"], "name", "value", "source") == [
        ("retention.ms", "1000", 1),
        ("log.retention.hours", "168", 5),
    ]
    if version >= 3:
        assert (retention["config_type"], cleanup["config_type"]) == (5, 7)
        assert retention["documentation"]


@each_version(DESCRIBE_CONFIGS)
def test_configs_are_bare_where_nothing_more_is_asked(broker: Broker, version: int) -> None:
    retention = configs_of(broker, version, (TOPIC, "orders"))["retention.ms"]
    assert retention["synonyms"] == []
    if version >= 3:
        assert retention["documentation"] is None


def test_configs_are_filtered_by_key(broker: Broker) -> None:
    def named(keys: list[str] | None) -> set[str]:
        return set(configs_of(broker, 4, (TOPIC, "orders"), keys))

    assert {"retention.ms", "cleanup.policy"} < named(None)
    assert named([]) == named(None)
    assert named(["cleanup.policy", "no.such.key"]) == {"cleanup.policy"}
    assert named(["no.such.key"]) == set()


@each_version(DESCRIBE_CONFIGS)
def test_broker_configs_hide_secrets(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = ConfigEntry(
        "ssl.key", "hidden", ConfigSource.STATIC_BROKER, ConfigType.PASSWORD, sensitive=True
    )
    entries = broker_configs.broker_entries
    monkeypatch.setattr(broker_configs, "broker_entries", lambda *of: [secret, *entries(*of)])
    alter(broker, INCREMENTAL, 1, (BROKER, "1", [("log.retention.ms", "6", 0)]))
    configs = configs_of(broker, version, (BROKER, "1"))
    hidden, dynamic, listeners = (
        configs[name] for name in ("ssl.key", "log.retention.ms", "listeners")
    )
    assert (hidden["value"], hidden["is_sensitive"]) == (None, True)
    assert (dynamic["config_source"], listeners["config_source"]) == (2, 4)
    assert (dynamic["read_only"], listeners["read_only"]) == (False, True)


def test_what_was_set_for_a_broker_and_for_all_brokers_is_told_apart(broker: Broker) -> None:
    alter(broker, INCREMENTAL, 1, (BROKER, "", [("log.retention.ms", "5", 0)]))
    alter(broker, INCREMENTAL, 1, (BROKER, "1", [("log.segment.bytes", "2000000", 0)]))
    found = describe(broker, 4, (BROKER, ""))["configs"]
    assert picked(found, "name", "value", "config_source") == [
        ("log.retention.ms", "5", 3),
        (MIN_ISR, "1", 3),
    ]
    configs = configs_of(broker, 4, (BROKER, "1"))
    assert configs["log.retention.ms"]["config_source"] == 3
    assert configs["log.segment.bytes"]["config_source"] == 2


@each_version(DESCRIBE_CONFIGS)
def test_configs_of_missing_resources(broker: Broker, version: int) -> None:
    for resource, code in (((TOPIC, "nope"), 3), ((BROKER, "2"), 42), ((8, "1"), 42)):
        result = describe(broker, version, resource)
        assert (result["error_code"], result["configs"]) == (code, []), resource
        assert result["error_message"]


@pytest.mark.parametrize("validate_only", [False, True])
@each_version(ALTER)
def test_alter_configs_replaces(broker: Broker, version: int, validate_only: bool) -> None:
    before = {"cleanup.policy": "compact", "retention.ms": "1"}
    broker.create("nulls")
    broker.create("set", cleanup_policy="compact", retention_ms="1")
    changes: list[tuple[Change, int]] = [
        ((TOPIC, "set", [("retention.ms", "5", 0)]), 0),
        ((BROKER, "1", [("log.retention.ms", "6", 0)]), 0),
        ((BROKER, "7", [("log.retention.ms", "6", 0)]), 42),
        ((TOPIC, "nulls", [("retention.ms", None, 0)]), 42),
        ((TOPIC, "orders", [("retention.ms", "5", 0), ("retention.ms", "6", 0)]), 42),
        ((16, "metrics", []), 42),
        ((TOPIC, "users", [("retention.ms", "x", 0)]), 40),
    ]
    asked = [change for change, _ in changes]
    found = alter(broker, ALTER, version, *asked, validate_only=validate_only)
    assert found == [(name, code) for (_, name, _), code in changes]
    assert broker.configs("set") == (before if validate_only else {"retention.ms": "5"})
    layers = broker.engine.configs.of_broker()
    assert layers.broker == ({} if validate_only else {"log.retention.ms": "6"})
    assert broker.configs("nulls") == broker.configs("orders") == broker.configs("users") == {}


@pytest.mark.parametrize("validate_only", [False, True])
@each_version(INCREMENTAL)
def test_incremental_alter_configs(broker: Broker, version: int, validate_only: bool) -> None:
    before = {"cleanup.policy": "compact", "retention.ms": "1"}
    broker.create("set", cleanup_policy="compact", retention_ms="1")
    broker.create("lists", cleanup_policy="delete")
    for name in ("twice", "invalid"):
        broker.create(name)
    twice: Change = (TOPIC, "twice", [("retention.ms", "5", 0)])
    changes: list[tuple[Change, int]] = [
        ((TOPIC, "set", [("retention.ms", "5", 0), ("cleanup.policy", None, 1)]), 0),
        ((TOPIC, "lists", [("cleanup.policy", "compact", 2)]), 0),
        ((BROKER, "", [("log.retention.ms", "6", 0)]), 0),
        ((TOPIC, "orders", [("retention.ms", "5", 9)]), 42),
        ((TOPIC, "users", [("retention.ms", None, 0)]), 42),
        (twice, 42),
        ((TOPIC, "nope", [("retention.ms", "x", 0)]), 3),
        ((TOPIC, "invalid", [("retention.ms", "x", 0)]), 40),
    ]
    asked = [change for change, _ in changes]
    found = alter(broker, INCREMENTAL, version, *asked, twice, validate_only=validate_only)
    assert found == [(name, code) for (_, name, _), code in changes]
    assert broker.configs("set") == (before if validate_only else {"retention.ms": "5"})
    policy = "delete" if validate_only else "delete,compact"
    assert broker.configs("lists") == {"cleanup.policy": policy}
    layers = broker.engine.configs.of_broker()
    set_by_client = {} if validate_only else {"log.retention.ms": "6"}
    assert layers.cluster == {"min.insync.replicas": "1", **set_by_client}
    assert broker.configs("orders") == broker.configs("users") == broker.configs("twice") == {}


def test_all_brokers_have_a_min_insync_replicas_that_topics_inherit(broker: Broker) -> None:
    """As in Apache Kafka 4.3: it is set for all brokers from the start, and can't be removed."""

    def shown(resource: tuple[int, str]) -> list[tuple[str, int]]:
        found = configs_of(broker, 4, resource, include_synonyms=True)[MIN_ISR]
        return picked(found["synonyms"], "value", "source")

    for value in ("1", "2"):
        assert alter(broker, INCREMENTAL, 1, (BROKER, "", [(MIN_ISR, value, 0)])) == [("", 0)]
        assert shown((BROKER, "")) == [(value, 3)]
        assert shown((BROKER, "1")) == shown((TOPIC, "orders")) == [(value, 3), ("1", 5)]
    refused: list[Change] = [
        (BROKER, "", [(MIN_ISR, None, 1)]),
        (BROKER, "", [(MIN_ISR, "0", 0)]),
        (BROKER, "", [(MIN_ISR, "many", 0)]),
        (BROKER, "1", [(MIN_ISR, "1", 0)]),
    ]
    for change in refused:
        assert alter(broker, INCREMENTAL, 1, change) == [(change[1], 40)]
    assert alter(broker, ALTER, 1, (BROKER, "", [])) == [("", 40)]
    assert alter(broker, ALTER, 1, (BROKER, "1", [])) == [("1", 0)]
    assert shown((BROKER, "")) == [("2", 3)]


async def test_acks_all_is_answered_though_min_insync_replicas_is_above_the_one_replica() -> None:
    async with serving() as s:
        await s.make_topic("inherits")
        await s.make_topic("own", min_insync_replicas="2")
        client = await s.client()
        config = {"name": MIN_ISR, "config_operation": 0, "value": "3"}
        resource = {"resource_type": BROKER, "resource_name": "", "configs": [config]}
        answer = await client.call(INCREMENTAL, 1, {"resources": [resource]})
        assert answer["responses"][0]["error_code"] == 0
        for name in ("inherits", "own"):
            answer = await client.call(PRODUCE, 7, produce(name, one_batch()))
            assert written(answer) == [(0, 0)]


# --- features ------------------------------------------------------------------------------------

LEVELS = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "transaction.version": 2,
}
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def features(broker: Broker, version: int, *updates: tuple[str, int, int]) -> Tree:
    asked = []
    for name, level, kind in updates:
        how = {"upgrade_type": kind} if version else {"allow_downgrade": kind != UPGRADE}
        asked.append({"feature": name, "max_version_level": level, **how})
    return broker.call(UPDATE_FEATURES, version, {"feature_updates": asked})


@each_version(UPDATE_FEATURES)
def test_a_feature_can_be_set_to_the_level_that_it_has(broker: Broker, version: int) -> None:
    updates = [(name, level, SAFE) for name, level in LEVELS.items()]
    for asked in ([], updates, updates + updates):
        answer = features(broker, version, *asked)
        assert answer["error_code"] == 0
        if version < 2:
            found = picked(answer["results"], "feature", "error_code")
            assert found == [(name, 0) for name, _, _ in asked]


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (("group.version", 2, UPGRADE), "only supports versions 1-1"),
        (("group.version", 0, UPGRADE), "Can't downgrade the version"),
        (("group.version", 0, SAFE), "only supports versions 1-1"),
        (("transaction.version", 1, UNSAFE), "only supports versions 2-2"),
        (("group.version", -1, UPGRADE), "cannot be less than 0"),
        (("metadata.version", 30, UPGRADE), "does not support this feature"),
        (("x" * 30_000, 1, UPGRADE), "does not support this feature"),
        (("nope", 0, UNSAFE), "not found"),
    ],
)
def test_a_feature_can_not_be_set_to_another_level(
    broker: Broker, update: tuple[str, int, int], why: str
) -> None:
    """The words are those of Apache Kafka 4.3."""
    for version in versions(UPDATE_FEATURES):
        answer = features(broker, version, ("share.version", 1, UPGRADE), update)
        assert answer["error_code"] == 95, version
        assert why in answer["error_message"]
        assert len(answer["error_message"]) < 600
        assert not answer.get("results")


@pytest.mark.parametrize("kind", [0, 4, -1])
def test_an_unknown_type_of_update_is_refused(broker: Broker, kind: int) -> None:
    assert features(broker, 2, ("group.version", 1, kind))["error_code"] == 95


@each_version(API_VERSIONS, since=3)
def test_the_features_that_are_advertised_are_those_that_can_be_set(
    broker: Broker, version: int
) -> None:
    """None starts at 0: clients that send v3 fail on that (KAFKA-17492)."""
    answer = broker.call(API_VERSIONS, version, SOFTWARE)
    levels = [(name, level, level) for name, level in LEVELS.items()]
    supported, final = answer["supported_features"], answer["finalized_features"]
    assert picked(supported, "name", "min_version", "max_version") == levels
    assert picked(final, "name", "min_version_level", "max_version_level") == levels
    assert answer["finalized_features_epoch"] >= 0


# --- the cluster ---------------------------------------------------------------------------------


def test_config_resources(broker: Broker) -> None:
    assert broker.call(RESOURCES, 0, {})["config_resources"] == []
    internal = [(t.name, TOPIC) for t in broker.engine.topics.all() if t.internal]
    topics = sorted([("orders", TOPIC), ("users", TOPIC), *internal])

    def listed(*types: int) -> list[tuple[str, int]]:
        answer = broker.call(RESOURCES, 1, {"resource_types": list(types)})
        assert answer["error_code"] == 0
        return picked(answer["config_resources"], "resource_name", "resource_type")

    assert sorted(listed(TOPIC)) == topics
    assert listed(BROKER) == [("1", BROKER)]
    assert listed(16) == []
    assert sorted(listed()) == [("1", BROKER), *topics]
    assert broker.call(RESOURCES, 1, {"resource_types": [99]})["error_code"] == 35


@each_version(LOG_DIRS)
def test_log_dirs_of_all_partitions(broker: Broker, version: int) -> None:
    (folder,) = broker.call(LOG_DIRS, version, {"topics": None})["results"]
    usage = broker.engine.storage.usage()
    assert (folder["error_code"], folder["log_dir"]) == (0, DATA)
    sizes = {
        (t["name"], p["partition_index"]): (p["partition_size"], p["offset_lag"])
        for t in folder["topics"]
        for p in t["partitions"]
    }
    assert sizes == {(p.topic, p.partition): (p.size_bytes, 0) for p in usage.partitions}
    assert {("orders", 0), ("orders", 1), ("orders", 2), ("users", 0)} < set(sizes)
    if version >= 4:
        assert folder["total_bytes"] == usage.total_bytes
        assert 0 < folder["usable_bytes"] <= usage.total_bytes


@each_version(LOG_DIRS)
def test_log_dirs_of_some_partitions(broker: Broker, version: int) -> None:
    topics = [{"topic": "orders", "partitions": [1, 9]}]
    (folder,) = broker.call(LOG_DIRS, version, {"topics": topics})["results"]
    (topic,) = folder["topics"]
    assert picked(topic["partitions"], "partition_index") == [(1,)]


@each_version(LOG_DIRS)
def test_log_dirs_refused(broker: Broker, version: int) -> None:
    broker.fail("storage", "usage", StorageError("gone"))
    answer = broker.call(LOG_DIRS, version, {"topics": None})
    if version >= 3:
        assert (answer["error_code"], answer["results"]) == (56, [])
    else:
        (folder,) = answer["results"]
        assert folder["error_code"] == 56


@each_version(MOVE)
def test_there_is_one_log_dir_to_move_to(broker: Broker, version: int) -> None:
    nope = {"name": "nope", "partitions": [0]}
    dirs = [
        {"path": DATA, "topics": [{"name": "orders", "partitions": [0]}, nope]},
        {"path": "/other", "topics": [{"name": "orders", "partitions": [1]}, nope]},
    ]
    orders, missing = broker.call(MOVE, version, {"dirs": dirs})["results"]
    assert (orders["topic_name"], missing["topic_name"]) == ("orders", "nope")
    assert picked(orders["partitions"], "partition_index", "error_code") == [(0, 0), (1, 57)]
    assert picked(missing["partitions"], "partition_index", "error_code") == [(0, 3), (0, 3)]


def quorum_of(topic: str) -> Tree:
    return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]}


@each_version(QUORUM)
def test_the_quorum_is_this_broker(broker: Broker, version: int) -> None:
    answer = broker.call(QUORUM, version, quorum_of("__cluster_metadata"))
    ((partition,),) = (topic["partitions"] for topic in answer["topics"])
    log = broker.engine.storage.catalog_log()
    assert (partition["leader_id"], partition["leader_epoch"]) == (1, log.leader_epoch)
    assert partition["high_watermark"] == log.high_watermark
    (voter,) = partition["current_voters"]
    assert (voter["replica_id"], voter["log_end_offset"]) == (1, log.end_offset)
    if version >= 1:
        assert voter["last_caught_up_timestamp"] == NOW_MS
    if version >= 2:
        (node,) = answer["nodes"]
        (listener,) = node["listeners"]
        assert (listener["host"], listener["port"]) == ("broker.example", 9092)
    assert broker.call(QUORUM, version, quorum_of("orders"))["error_code"] == 42
