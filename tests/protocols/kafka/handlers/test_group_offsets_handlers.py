"""Offset APIs: every advertised version there and back; topics by name and, from v10, by id."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.kafka.fake_engine_admin import (
    MISSING_ID,
    OTHER_ID,
    TOPIC_ID,
    FakeEngine,
    call,
    versions,
)
from tidemill.engine.api import CommittedOffset, OffsetToCommit
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.state.errors import (
    CoordinatorLoadingError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    OffsetMetadataTooLargeError,
    UnstableOffsetCommitError,
)

COMMIT, FETCH, OFFSET_DELETE = 8, 9, 47


@pytest.fixture
def broker() -> FakeEngine:
    broker = FakeEngine()
    broker.answers["fetch_offsets"] = {
        ("orders", 0): CommittedOffset(42, 3, "note", 1_000),
        ("users", 0): CommittedOffset(7, -1, "", 1_000),
    }
    return broker


def commit_request(*topic_ids: Any) -> dict[str, Any]:
    names = {TOPIC_ID: "orders", OTHER_ID: "users", MISSING_ID: "nope"}
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": 5,
        "member_id": "m",
        "group_instance_id": "s",
        "retention_time": 9000,
        "topics": [
            {
                "name": names[topic_id],
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": 10 + partition,
                        "committed_leader_epoch": 2,
                        "committed_metadata": None if partition else "note",
                    }
                    for partition in (0, 1)
                ],
            }
            for topic_id in topic_ids
        ],
    }


def codes(answer: dict[str, Any]) -> list[list[int]]:
    return [[p["error_code"] for p in topic["partitions"]] for topic in answer["topics"]]


@pytest.mark.parametrize("version", versions(COMMIT))
def test_commit_passes_on_every_offset_and_answers_each(broker: FakeEngine, version: int) -> None:
    broker.answers["commit_offsets"] = [None, OffsetMetadataTooLargeError("long"), None, None]
    answer = call(broker, COMMIT, version, commit_request(TOPIC_ID, OTHER_ID))
    assert codes(answer) == [[0, 12], [0, 0]]
    ((_, commit),) = broker.calls
    epoch = 2 if version >= 6 else -1
    assert commit.offsets == (
        OffsetToCommit("orders", 0, 10, epoch, "note"),
        OffsetToCommit("orders", 1, 11, epoch, None),
        OffsetToCommit("users", 0, 10, epoch, "note"),
        OffsetToCommit("users", 1, 11, epoch, None),
    )
    assert (commit.group_id, commit.generation, commit.member_id) == ("g", 5, "m")
    assert commit.instance_id == ("s" if version >= 7 else None)
    assert commit.retention_ms == (9000 if version <= 4 else -1)
    if version >= 10:
        assert [topic["topic_id"] for topic in answer["topics"]] == [TOPIC_ID, OTHER_ID]
    else:
        assert [topic["name"] for topic in answer["topics"]] == ["orders", "users"]


@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_refused_commit_is_an_error_of_each_partition(broker: FakeEngine, version: int) -> None:
    broker.answers["commit_offsets"] = IllegalGenerationError("old")
    answer = call(broker, COMMIT, version, commit_request(TOPIC_ID))
    assert codes(answer) == [[22, 22]]


def test_commit_to_an_unknown_id_leaves_the_others_alone(broker: FakeEngine) -> None:
    answer = call(broker, COMMIT, 10, commit_request(MISSING_ID, OTHER_ID))
    assert codes(answer) == [[100, 100], [0, 0]]
    ((_, commit),) = broker.calls
    assert {offset.topic for offset in commit.offsets} == {"users"}


FOUND = {
    "partition_index": 0,
    "committed_offset": 42,
    "committed_leader_epoch": 3,
    "metadata": "note",
    "error_code": 0,
}
ABSENT = {
    "partition_index": 1,
    "committed_offset": -1,
    "committed_leader_epoch": -1,
    "metadata": "",
    "error_code": 0,
}


def lookups(broker: FakeEngine) -> list[tuple[str, tuple[str, int], bool]]:
    """The partitions that were looked up: group, partition, whether they had to be stable."""
    return [
        (group, at, stable)
        for name, (group, partitions, stable) in broker.calls
        if name == "fetch_offsets"
        for at in partitions or ()
    ]


def without_epoch(partition: dict[str, Any], version: int) -> dict[str, Any]:
    return {k: v for k, v in partition.items() if version >= 5 or k != "committed_leader_epoch"}


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v < 8])
def test_fetch_of_one_group(broker: FakeEngine, version: int) -> None:
    request = {
        "group_id": "g",
        "topics": [{"name": "orders", "partition_indexes": [0, 1]}],
        "require_stable": True,
    }
    answer = call(broker, FETCH, version, request)
    (topic,) = answer["topics"]
    assert topic["name"] == "orders"
    assert topic["partitions"] == [without_epoch(p, version) for p in (FOUND, ABSENT)]
    assert answer.get("error_code", 0) == 0
    assert lookups(broker) == [
        ("g", ("orders", 0), version >= 7),
        ("g", ("orders", 1), version >= 7),
    ]


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if 2 <= v < 8])
def test_fetch_of_null_topics_is_all_of_the_group(broker: FakeEngine, version: int) -> None:
    answer = call(broker, FETCH, version, {"group_id": "g", "topics": None})
    assert [(t["name"], len(t["partitions"])) for t in answer["topics"]] == [
        ("orders", 1),
        ("users", 1),
    ]


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v < 8])
def test_fetch_of_no_topics_is_empty(broker: FakeEngine, version: int) -> None:
    assert call(broker, FETCH, version, {"group_id": "g", "topics": []})["topics"] == []


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v < 8])
def test_fetch_refused_before_v8(broker: FakeEngine, version: int) -> None:
    broker.answers["fetch_offsets"] = CoordinatorLoadingError("loading")
    request = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}
    answer = call(broker, FETCH, version, request)
    if version < 2:
        assert codes(answer) == [[14]]
    else:
        assert answer["error_code"] == 14
        assert answer["topics"] == []


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v >= 8])
def test_fetch_of_several_groups(broker: FakeEngine, version: int) -> None:
    topic = {"name": "orders", "topic_id": TOPIC_ID, "partition_indexes": [1, 0]}
    request = {
        "groups": [
            {"group_id": "all", "topics": None},
            {"group_id": "some", "topics": [topic], "member_id": "m", "member_epoch": 4},
            {"group_id": "none", "topics": []},
        ],
        "require_stable": False,
    }
    every, some, none = call(broker, FETCH, version, request)["groups"]
    assert (every["group_id"], some["group_id"], none["group_id"]) == ("all", "some", "none")
    key = "topic_id" if version >= 10 else "name"
    assert [t[key] for t in every["topics"]] == (
        [TOPIC_ID, OTHER_ID] if version >= 10 else ["orders", "users"]
    )
    assert some["topics"][0]["partitions"] == [ABSENT, FOUND]
    assert none["topics"] == []
    assert lookups(broker) == [
        ("all", ("orders", 0), False),
        ("all", ("users", 0), False),
        ("some", ("orders", 1), False),
        ("some", ("orders", 0), False),
    ]


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v >= 8])
def test_fetch_refused_is_an_error_of_the_group(broker: FakeEngine, version: int) -> None:
    broker.answers["fetch_offsets"] = CoordinatorLoadingError("loading")
    (group,) = call(broker, FETCH, version, {"groups": [{"group_id": "g", "topics": None}]})[
        "groups"
    ]
    assert (group["error_code"], group["topics"]) == (14, [])


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v >= 7])
def test_an_offset_of_an_open_transaction_is_an_error_of_its_partition(
    broker: FakeEngine, version: int
) -> None:
    broker.answers["fetch_offsets"]["orders", 1] = UnstableOffsetCommitError("open")
    topic = {"name": "orders", "topic_id": TOPIC_ID, "partition_indexes": [0, 1]}
    for topics in ([topic], None):
        asked = {"group_id": "g", "topics": topics}
        request = asked if version < 8 else {"groups": [asked]}
        answer = call(broker, FETCH, version, {**request, "require_stable": True})
        group = answer if version < 8 else answer["groups"][0]
        assert group["error_code"] == 0
        assert group["topics"][0]["partitions"] == [FOUND, {**ABSENT, "error_code": 88}]


def test_fetch_by_an_unknown_id(broker: FakeEngine) -> None:
    topics = [
        {"topic_id": MISSING_ID, "partition_indexes": [0]},
        {"topic_id": TOPIC_ID, "partition_indexes": [0]},
    ]
    (group,) = call(broker, FETCH, 10, {"groups": [{"group_id": "g", "topics": topics}]})["groups"]
    assert codes(group) == [[100], [0]]
    assert group["topics"][0]["partitions"][0]["committed_offset"] == -1


def test_fetch_of_all_by_id_leaves_out_deleted_topics(broker: FakeEngine) -> None:
    broker.answers["fetch_offsets"][("gone", 0)] = CommittedOffset(1, -1, "", 1)
    (group,) = call(broker, FETCH, 10, {"groups": [{"group_id": "g", "topics": None}]})["groups"]
    assert [topic["topic_id"] for topic in group["topics"]] == [TOPIC_ID, OTHER_ID]


DELETE_REQUEST = {
    "group_id": "g",
    "topics": [
        {"name": "orders", "partitions": [{"partition_index": 0}, {"partition_index": 1}]},
        {"name": "users", "partitions": [{"partition_index": 0}]},
    ],
}


def test_offset_delete_answers_each_partition(broker: FakeEngine) -> None:
    broker.answers["delete_offsets"] = [
        None,
        GroupSubscribedToTopicError("busy"),
        UnknownTopicOrPartitionError("?"),
    ]
    answer = call(broker, OFFSET_DELETE, 0, DELETE_REQUEST)
    assert answer["error_code"] == 0
    assert codes(answer) == [[0, 86], [3]]
    asked = [("orders", 0), ("orders", 1), ("users", 0)]
    assert broker.calls == [("delete_offsets", ("g", asked))]


def test_offset_delete_of_an_unknown_group(broker: FakeEngine) -> None:
    broker.answers["delete_offsets"] = GroupIdNotFoundError("?")
    answer = call(broker, OFFSET_DELETE, 0, DELETE_REQUEST)
    assert (answer["error_code"], answer["topics"]) == (69, [])
