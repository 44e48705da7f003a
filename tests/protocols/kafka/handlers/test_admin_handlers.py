"""Administration: every advertised version, and one invalid item does not affect the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.kafka.fake_engine_admin import (
    DYNAMIC,
    LISTENERS,
    MISSING_ID,
    OTHER_ID,
    SECRET,
    TOPIC_ID,
    FakeEngine,
    call,
    versions,
)
from tidemill.engine.api import AlterOp, ConfigChange, NewTopic
from tidemill.errors import TopicExistsError
from tidemill.log.errors import InvalidConfigError, InvalidTopicError, StorageError
from tidemill.protocols.kafka import broker_configs
from tidemill.state.errors import InvalidPartitionsError

CREATE, DELETE, GROW, ELECT, REASSIGN, REASSIGNING = 19, 20, 37, 43, 45, 46
DESCRIBE_CONFIGS, ALTER, INCREMENTAL, RESOURCES = 32, 33, 44, 74
MOVE, QUORUM = 34, 55
LOG_DIRS, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, QUOTAS, SCRAM = 35, 29, 30, 31, 48, 50
TOPIC, BROKER = 2, 4


@pytest.fixture
def broker() -> FakeEngine:
    return FakeEngine()


# --- topics --------------------------------------------------------------------------------------


def new_topic(name: str, partitions: int = 3) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": "retention.ms", "value": "1000"}],
    }


@pytest.mark.parametrize("version", versions(CREATE))
def test_create_topics_answers_each(broker: FakeEngine, version: int) -> None:
    broker.answers["create_topics"] = {"old": TopicExistsError("Topic 'old' exists.")}
    request = {
        "topics": [new_topic("new"), new_topic("old"), new_topic("twice"), new_topic("twice")],
        "validate_only": True,
    }
    answer = call(broker, CREATE, version, request)
    new, old, twice = answer["topics"]
    assert [(t["name"], t["error_code"]) for t in answer["topics"]] == [
        ("new", 0),
        ("old", 36),
        ("twice", 42),
    ]
    assert new["error_message"] is None
    assert old["error_message"] == "Topic 'old' exists."
    assert twice["error_message"]
    made = NewTopic("new", 3, 1, {}, {"retention.ms": "1000"})
    assert broker.calls[0] == (
        "create_topics",
        ([made, NewTopic("old", 3, 1, {}, {"retention.ms": "1000"})], True),
    )
    if version >= 5:
        assert (new["num_partitions"], new["replication_factor"]) == (3, 1)
        assert (old["num_partitions"], old["replication_factor"]) == (-1, -1)
        assert [(c["name"], c["value"], c["config_source"]) for c in new["configs"]] == [
            ("retention.ms", "1000", 1),
            ("cleanup.policy", "delete", 5),
        ]
        assert old["configs"] == []
        assert new["topic_config_error_code"] == 0
    if version >= 7:
        assert new["topic_id"] == TOPIC_ID
        assert old["topic_id"] is None


@pytest.mark.parametrize("version", versions(CREATE))
def test_create_topics_with_assignments(broker: FakeEngine, version: int) -> None:
    topic = {
        **new_topic("new", -1),
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": [1]}],
        "configs": [{"name": "retention.ms", "value": None}],
    }
    call(broker, CREATE, version, {"topics": [topic], "validate_only": False})
    wanted = NewTopic("new", -1, -1, {0: [1]}, {"retention.ms": None})
    assert broker.calls[0] == ("create_topics", ([wanted], False))


@pytest.mark.parametrize("version", [v for v in versions(DELETE) if v < 6])
def test_delete_topics_by_name(broker: FakeEngine, version: int) -> None:
    broker.answers["delete_topics"] = {"__internal": InvalidTopicError("internal")}
    request = {"topic_names": ["orders", "__internal", "users", "users"], "timeout": 1}
    answer = call(broker, DELETE, version, request)
    assert [(r["name"], r["error_code"]) for r in answer["responses"]] == [
        ("orders", 0),
        ("__internal", 17),
        ("users", 42),
    ]
    assert broker.calls == [("delete_topics", ["orders", "__internal"])]
    if version >= 5:
        assert answer["responses"][0]["error_message"] is None
        assert answer["responses"][1]["error_message"] == "internal"


def test_delete_topics_by_name_or_id(broker: FakeEngine) -> None:
    asked = [
        {"name": None, "topic_id": TOPIC_ID},
        {"name": "plain", "topic_id": None},
        {"name": "users", "topic_id": None},
        {"name": None, "topic_id": MISSING_ID},
        {"name": "users", "topic_id": OTHER_ID},
        {"name": None, "topic_id": None},
        {"name": "orders", "topic_id": None},
    ]
    answer = call(broker, DELETE, 6, {"topics": asked, "timeout": 1})
    assert [(r["name"], r["topic_id"], r["error_code"]) for r in answer["responses"]] == [
        ("orders", TOPIC_ID, 0),
        ("plain", None, 0),
        ("users", OTHER_ID, 0),
        (None, MISSING_ID, 100),
        ("users", OTHER_ID, 42),
        (None, None, 42),
        ("orders", None, 42),
    ]
    assert broker.calls == [("delete_topics", ["orders", "plain", "users"])]


@pytest.mark.parametrize("version", versions(GROW))
def test_create_partitions(broker: FakeEngine, version: int) -> None:
    broker.answers["create_partitions"] = {"users": InvalidPartitionsError("fewer")}
    request = {
        "topics": [
            {"name": "orders", "count": 6, "assignments": None},
            {"name": "users", "count": 1, "assignments": [{"broker_ids": [1]}]},
            {"name": "twice", "count": 2, "assignments": None},
            {"name": "twice", "count": 3, "assignments": None},
        ],
        "timeout": 1,
        "validate_only": True,
    }
    answer = call(broker, GROW, version, request)
    assert [(r["name"], r["error_code"]) for r in answer["results"]] == [
        ("orders", 0),
        ("users", 37),
        ("twice", 42),
    ]
    assert answer["results"][1]["error_message"] == "fewer"
    assert broker.calls == [
        ("create_partitions", ("orders", 6, None, True)),
        ("create_partitions", ("users", 1, [[1]], True)),
    ]


@pytest.mark.parametrize("version", versions(ELECT))
def test_elections_are_not_needed(broker: FakeEngine, version: int) -> None:
    partitions = [{"topic": "orders", "partitions": [0, 2]}]
    request = {"election_type": 0, "topic_partitions": partitions}
    (topic,) = call(broker, ELECT, version, request)["replica_election_results"]
    assert topic["topic"] == "orders"
    assert [(p["partition_id"], p["error_code"]) for p in topic["partition_result"]] == [
        (0, 84),
        (2, 84),
    ]
    everything = {"election_type": 0, "topic_partitions": None}
    assert call(broker, ELECT, version, everything)["replica_election_results"] == []


@pytest.mark.parametrize("version", versions(REASSIGN))
def test_reassignments(broker: FakeEngine, version: int) -> None:
    partitions = [
        {"partition_index": 0, "replicas": [1]},
        {"partition_index": 1, "replicas": None},
    ]
    request = {"topics": [{"name": "orders", "partitions": partitions}]}
    answer = call(broker, REASSIGN, version, request)
    assert answer["error_code"] == 0
    (topic,) = answer["responses"]
    assert [p["error_code"] for p in topic["partitions"]] == [0, 85]


def test_no_reassignment_is_ever_running(broker: FakeEngine) -> None:
    answer = call(broker, REASSIGNING, 0, {"topics": None})
    assert (answer["error_code"], answer["topics"]) == (0, [])


# --- configs -------------------------------------------------------------------------------------


def describe(
    broker: FakeEngine, version: int, resource: tuple[int, str], keys: Any = None, **flags: bool
) -> dict[str, Any]:
    resources = [
        {"resource_type": resource[0], "resource_name": resource[1], "configuration_keys": keys}
    ]
    (result,) = call(broker, DESCRIBE_CONFIGS, version, {"resources": resources, **flags})[
        "results"
    ]
    assert (result["resource_type"], result["resource_name"]) == resource
    return result  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
def test_topic_configs_with_source_synonyms_and_text(broker: FakeEngine, version: int) -> None:
    result = describe(
        broker, version, (TOPIC, "orders"), include_synonyms=True, include_documentation=True
    )
    retention, cleanup = result["configs"]
    assert (retention["name"], retention["value"]) == ("retention.ms", "1000")
    assert (retention["config_source"], cleanup["config_source"]) == (1, 5)
    assert [(s["name"], s["value"], s["source"]) for s in retention["synonyms"]] == [
        ("retention.ms", "1000", 1),
        ("log.retention.ms", "604800000", 5),
    ]
    if version >= 3:
        assert (retention["config_type"], cleanup["config_type"]) == (5, 7)
        assert retention["documentation"] == "How long."


@pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
def test_configs_are_bare_where_nothing_more_is_asked(broker: FakeEngine, version: int) -> None:
    retention, _ = describe(broker, version, (TOPIC, "orders"))["configs"]
    assert retention["synonyms"] == []
    if version >= 3:
        assert retention["documentation"] is None


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (None, ["retention.ms", "cleanup.policy"]),
        ([], ["retention.ms", "cleanup.policy"]),
        (["cleanup.policy", "no.such.key"], ["cleanup.policy"]),
        (["no.such.key"], []),
    ],
)
def test_configs_are_filtered_by_key(broker: FakeEngine, keys: Any, names: list[str]) -> None:
    result = describe(broker, 4, (TOPIC, "orders"), keys)
    assert [config["name"] for config in result["configs"]] == names


@pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
def test_broker_configs_hide_secrets(
    broker: FakeEngine, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [SECRET, DYNAMIC, LISTENERS]
    monkeypatch.setattr(broker_configs, "entries", lambda *_: entries)
    secret, dynamic, listeners = describe(broker, version, (BROKER, "1"))["configs"]
    assert (secret["value"], secret["is_sensitive"]) == (None, True)
    assert (dynamic["config_source"], listeners["config_source"]) == (2, 4)
    assert (dynamic["read_only"], listeners["read_only"]) == (False, True)


def test_the_empty_broker_name_shows_what_was_set_for_all_brokers(broker: FakeEngine) -> None:
    (config,) = describe(broker, 4, (BROKER, ""))["configs"]
    assert (config["name"], config["value"], config["config_source"]) == (
        "log.retention.ms",
        "5",
        3,
    )


def test_a_broker_shows_what_was_set_for_it_and_for_all_brokers(broker: FakeEngine) -> None:
    configs = {c["name"]: c for c in describe(broker, 4, (BROKER, "1"))["configs"]}
    assert configs["log.retention.ms"]["config_source"] == 3
    assert configs["log.segment.bytes"]["config_source"] == 2


@pytest.mark.parametrize("version", versions(DESCRIBE_CONFIGS))
@pytest.mark.parametrize(
    ("resource", "code"), [((TOPIC, "nope"), 3), ((BROKER, "2"), 42), ((8, "1"), 42)]
)
def test_configs_of_missing_resources(
    broker: FakeEngine, version: int, resource: tuple[int, str], code: int
) -> None:
    result = describe(broker, version, resource)
    assert (result["error_code"], result["configs"]) == (code, [])
    assert result["error_message"]


def alter(
    broker: FakeEngine, api: int, version: int, *resources: tuple[int, str, list[Any]]
) -> list[tuple[str, int]]:
    request = {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": c[0], "config_operation": c[-1], "value": c[1]} for c in configs
                ],
            }
            for kind, name, configs in resources
        ],
        "validate_only": True,
    }
    answer = call(broker, api, version, request)
    for response in answer["responses"]:
        assert bool(response["error_message"]) is bool(response["error_code"])
    return [(r["resource_name"], r["error_code"]) for r in answer["responses"]]


@pytest.mark.parametrize("version", versions(ALTER))
def test_alter_configs_replaces(broker: FakeEngine, version: int) -> None:
    outcome = alter(
        broker,
        ALTER,
        version,
        (TOPIC, "orders", [("retention.ms", "5", 0)]),
        (BROKER, "1", [("log.retention.ms", "6", 0)]),
        (BROKER, "7", [("log.retention.ms", "6", 0)]),
        (TOPIC, "nulls", [("retention.ms", None, 0)]),
        (TOPIC, "keys", [("retention.ms", "5", 0), ("retention.ms", "6", 0)]),
        (16, "metrics", []),
    )
    assert outcome == [
        ("orders", 0),
        ("1", 0),
        ("7", 42),
        ("nulls", 42),
        ("keys", 42),
        ("metrics", 42),
    ]
    assert broker.calls == [
        ("replace_topic_configs", ("orders", {"retention.ms": "5"}, True)),
        ("replace_broker_configs", ({"log.retention.ms": "6"}, True, False)),
    ]


@pytest.mark.parametrize("version", versions(INCREMENTAL))
def test_incremental_alter_configs(broker: FakeEngine, version: int) -> None:
    outcome = alter(
        broker,
        INCREMENTAL,
        version,
        (TOPIC, "orders", [("retention.ms", "5", 0), ("cleanup.policy", None, 1)]),
        (TOPIC, "lists", [("cleanup.policy", "compact", 2)]),
        (BROKER, "", [("log.retention.ms", "6", 0)]),
        (TOPIC, "op", [("retention.ms", "5", 9)]),
        (TOPIC, "null", [("retention.ms", None, 0)]),
        (TOPIC, "twice", []),
        (TOPIC, "twice", []),
    )
    assert outcome == [
        ("orders", 0),
        ("lists", 0),
        ("", 0),
        ("op", 42),
        ("null", 42),
        ("twice", 42),
    ]
    set_and_delete = [
        ConfigChange("retention.ms", AlterOp.SET, "5"),
        ConfigChange("cleanup.policy", AlterOp.DELETE, None),
    ]
    append = [ConfigChange("cleanup.policy", AlterOp.APPEND, "compact")]
    assert broker.calls == [
        ("alter_topic_configs", ("orders", set_and_delete, True)),
        ("alter_topic_configs", ("lists", append, True)),
        (
            "alter_broker_configs",
            ([ConfigChange("log.retention.ms", AlterOp.SET, "6")], True, True),
        ),
    ]


@pytest.mark.parametrize(
    ("api", "call_name"), [(ALTER, "replace_topic_configs"), (INCREMENTAL, "alter_topic_configs")]
)
def test_an_invalid_config_is_reported(broker: FakeEngine, api: int, call_name: str) -> None:
    broker.answers[call_name] = InvalidConfigError("retention.ms: not a number")
    resource = (TOPIC, "orders", [("retention.ms", "x", 0)])
    assert alter(broker, api, 1, resource) == [("orders", 40)]


def test_config_resources(broker: FakeEngine) -> None:
    assert call(broker, RESOURCES, 0, {})["config_resources"] == []

    def listed(*types: int) -> list[tuple[str, int]]:
        answer = call(broker, RESOURCES, 1, {"resource_types": list(types)})
        assert answer["error_code"] == 0
        return [(r["resource_name"], r["resource_type"]) for r in answer["config_resources"]]

    assert listed(TOPIC) == [("orders", TOPIC), ("users", TOPIC)]
    assert listed(BROKER) == [("1", BROKER)]
    assert listed(16) == []
    assert listed() == [("1", BROKER), ("orders", TOPIC), ("users", TOPIC)]
    assert call(broker, RESOURCES, 1, {"resource_types": [99]})["error_code"] == 35


# --- the cluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(LOG_DIRS))
def test_log_dirs_of_all_partitions(broker: FakeEngine, version: int) -> None:
    answer = call(broker, LOG_DIRS, version, {"topics": None})
    (folder,) = answer["results"]
    assert (folder["error_code"], folder["log_dir"]) == (0, "/data")
    sizes = {
        (t["name"], p["partition_index"]): (p["partition_size"], p["offset_lag"])
        for t in folder["topics"]
        for p in t["partitions"]
    }
    assert sizes == {("orders", 0): (100, 0), ("orders", 1): (200, 0), ("users", 0): (7, 0)}
    if version >= 4:
        assert (folder["total_bytes"], folder["usable_bytes"]) == (1000, 400)


@pytest.mark.parametrize("version", versions(LOG_DIRS))
def test_log_dirs_of_some_partitions(broker: FakeEngine, version: int) -> None:
    topics = [{"topic": "orders", "partitions": [1, 9]}]
    (folder,) = call(broker, LOG_DIRS, version, {"topics": topics})["results"]
    (topic,) = folder["topics"]
    assert [p["partition_index"] for p in topic["partitions"]] == [1]


@pytest.mark.parametrize("version", versions(LOG_DIRS))
def test_log_dirs_refused(broker: FakeEngine, version: int) -> None:
    broker.answers["log_dirs"] = StorageError("gone")
    answer = call(broker, LOG_DIRS, version, {"topics": None})
    if version >= 3:
        assert (answer["error_code"], answer["results"]) == (56, [])
    else:
        (folder,) = answer["results"]
        assert folder["error_code"] == 56


@pytest.mark.parametrize("version", versions(MOVE))
def test_there_is_one_log_dir_to_move_to(broker: FakeEngine, version: int) -> None:
    dirs = [
        {"path": "/data", "topics": [{"name": "orders", "partitions": [0]}]},
        {"path": "/other", "topics": [{"name": "orders", "partitions": [1]}]},
    ]
    (topic,) = call(broker, MOVE, version, {"dirs": dirs})["results"]
    assert topic["topic_name"] == "orders"
    assert [(p["partition_index"], p["error_code"]) for p in topic["partitions"]] == [
        (0, 0),
        (1, 57),
    ]


def quorum_of(topic: str) -> dict[str, Any]:
    return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]}


@pytest.mark.parametrize("version", versions(QUORUM))
def test_the_quorum_is_this_broker(broker: FakeEngine, version: int) -> None:
    answer = call(broker, QUORUM, version, quorum_of("__cluster_metadata"))
    ((partition,),) = (topic["partitions"] for topic in answer["topics"])
    assert (partition["leader_id"], partition["leader_epoch"]) == (1, 3)
    assert partition["high_watermark"] == 40
    (voter,) = partition["current_voters"]
    assert (voter["replica_id"], voter["log_end_offset"]) == (1, 42)
    if version >= 1:
        assert voter["last_caught_up_timestamp"] == 5_000
    if version >= 2:
        (node,) = answer["nodes"]
        (listener,) = node["listeners"]
        assert (listener["host"], listener["port"]) == ("broker.example", 9092)
    assert call(broker, QUORUM, version, quorum_of("orders"))["error_code"] == 42


ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.parametrize("version", versions(DESCRIBE_ACLS))
def test_access_control_is_off(broker: FakeEngine, version: int) -> None:
    described = call(broker, DESCRIBE_ACLS, version, ACL_FILTER)
    assert (described["error_code"], described["resources"]) == (54, [])
    created = call(broker, CREATE_ACLS, version, {"creations": [ACL, ACL]})
    assert [r["error_code"] for r in created["results"]] == [54, 54]
    deleted = call(broker, DELETE_ACLS, version, {"filters": [ACL_FILTER]})
    assert [r["error_code"] for r in deleted["filter_results"]] == [54]


@pytest.mark.parametrize("version", versions(QUOTAS))
def test_there_are_no_quotas(broker: FakeEngine, version: int) -> None:
    answer = call(broker, QUOTAS, version, {"components": [], "strict": False})
    assert (answer["error_code"], answer["entries"]) == (0, [])


def test_there_are_no_scram_users(broker: FakeEngine) -> None:
    answer = call(broker, SCRAM, 0, {"users": None})
    assert (answer["error_code"], answer["results"]) == (0, [])
    (result,) = call(broker, SCRAM, 0, {"users": [{"name": "ann"}]})["results"]
    assert (result["user"], result["error_code"]) == ("ann", 91)
