"""Offset APIs: every advertised version there and back; topics by name and, from v10, by id."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.transactions.support import Producer
from tests.protocols.kafka.broker import MISSING_ID, Broker, versions
from tidemill.state.errors import CoordinatorLoadingError, IllegalGenerationError

COMMIT, FETCH, OFFSET_DELETE = 8, 9, 47
JOIN, SYNC, CONSUMER_HEARTBEAT = 11, 14, 68


def partition(index: int, offset: int, note: str | None = "note") -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": 2,
        "committed_metadata": note,
    }


def topic(broker: Broker, name: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    topic_id = MISSING_ID if name == "nope" else broker.topic_id(name)
    return {"name": name, "topic_id": topic_id, "partitions": list(partitions)}


def commit_request(*topics: dict[str, Any], **member: object) -> dict[str, Any]:
    nobody = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return {"group_id": "g", "retention_time": -1, "topics": list(topics)} | nobody | member


def codes(answer: dict[str, Any]) -> list[list[int]]:
    return [[p["error_code"] for p in topic["partitions"]] for topic in answer["topics"]]


@pytest.mark.parametrize("version", versions(COMMIT))
def test_commit_stores_every_offset_and_answers_each(broker: Broker, version: int) -> None:
    topics = [
        topic(broker, "orders", partition(0, 10), partition(1, 11, "n" * 5000)),
        topic(broker, "users", partition(0, 12, None), partition(1, 13)),
    ]
    answer = broker.call(COMMIT, version, commit_request(*topics))
    assert codes(answer) == [[0, 12], [0, 3]]
    epoch = 2 if version >= 6 else -1
    assert broker.committed("g") == {
        ("orders", 0): (10, epoch, "note"),
        ("users", 0): (12, epoch, ""),
    }
    key = "topic_id" if version >= 10 else "name"
    assert [each[key] for each in answer["topics"]] == [each[key] for each in topics]


@pytest.mark.parametrize("version", versions(COMMIT))
def test_only_the_present_member_of_a_group_commits(broker: Broker, version: int) -> None:
    static = {"group_id": "g", "group_instance_id": "s"}
    joined = broker.call(
        JOIN,
        5,
        static
        | {"session_timeout": 10_000, "rebalance_timeout": 1000, "member_id": ""}
        | {"protocol_type": "consumer", "protocols": [{"name": "range"}]},
    )
    member = {"member_id": joined["member_id"], **static}
    broker.call(SYNC, 3, member | {"generation_id": 1, "assignments": []})

    def commit(generation: int, **fields: object) -> list[list[int]]:
        named = member | {"generation_id_or_member_epoch": generation} | fields
        asked = topic(broker, "orders", partition(0, 10), partition(1, 11))
        return codes(broker.call(COMMIT, version, commit_request(asked, **named)))

    assert commit(2) == [[22, 22]]
    assert commit(1, group_instance_id="other") == ([[25, 25]] if version >= 7 else [[0, 0]])
    assert commit(1) == [[0, 0]]


@pytest.mark.parametrize("version", [v for v in versions(COMMIT) if v <= 5])
def test_a_commit_of_an_old_client_says_how_long_it_lasts(broker: Broker, version: int) -> None:
    asked = topic(broker, "orders", partition(0, 10))
    broker.call(COMMIT, version, commit_request(asked, retention_time=9000))
    broker.clock.advance(10_000)
    broker.run(broker.engine._group_coordinator.expire_offsets())
    assert broker.committed("g") == ({} if version <= 4 else {("orders", 0): (10, -1, "note")})


@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_refused_commit_is_an_error_of_each_partition(broker: Broker, version: int) -> None:
    broker.fail("groups", "commit", IllegalGenerationError("old"))
    asked = topic(broker, "orders", partition(0, 10), partition(1, 11))
    assert codes(broker.call(COMMIT, version, commit_request(asked))) == [[22, 22]]


def test_commit_to_an_unknown_id_leaves_the_others_alone(broker: Broker) -> None:
    topics = [topic(broker, name, partition(0, 10)) for name in ("nope", "users")]
    answer = broker.call(COMMIT, 10, commit_request(*topics))
    assert codes(answer) == [[100], [0]]
    assert set(broker.committed("g")) == {("users", 0)}


@pytest.fixture
def committed(broker: Broker) -> None:
    """Group ``g`` has committed offsets of two partitions."""
    topics = [
        topic(broker, "orders", partition(0, 42)),
        topic(broker, "users", partition(0, 7, None)),
    ]
    assert codes(broker.call(COMMIT, 9, commit_request(*topics))) == [[0], [0]]


FOUND = {
    "partition_index": 0,
    "committed_offset": 42,
    "committed_leader_epoch": 2,
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


def fetch(
    broker: Broker, version: int, *indexes: int, require_stable: bool = False
) -> dict[str, Any]:
    """Fetch offsets of ``orders``, of all topics if no partition is given; return the group's."""
    name = {"name": "orders", "topic_id": broker.topic_id("orders")}
    asked: dict[str, Any] = {"group_id": "g", "topics": [name | {"partition_indexes": indexes}]}
    if not indexes:
        asked["topics"] = None
    request = {"groups": [asked]} if version >= 8 else asked
    answer = broker.call(FETCH, version, request | {"require_stable": require_stable})
    return dict(answer["groups"][0]) if version >= 8 else answer


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("version", versions(FETCH))
def test_fetch_of_one_group(broker: Broker, version: int) -> None:
    answer = fetch(broker, version, 1, 0, require_stable=True)
    (found,) = answer["topics"]
    if version >= 10:
        assert found["topic_id"] == broker.topic_id("orders")
    else:
        assert found["name"] == "orders"
    left_out = () if version >= 5 else ("committed_leader_epoch",)
    assert found["partitions"] == [
        {key: value for key, value in each.items() if key not in left_out}
        for each in (ABSENT, FOUND)
    ]
    assert answer.get("error_code", 0) == 0


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v >= 2])
def test_fetch_of_null_topics_is_all_of_the_group(broker: Broker, version: int) -> None:
    answer = fetch(broker, version)
    key = "topic_id" if version >= 10 else "name"
    ids = [broker.topic_id(name) for name in ("orders", "users")]
    assert [(t[key], len(t["partitions"])) for t in answer["topics"]] == [
        (name, 1) for name in (ids if version >= 10 else ("orders", "users"))
    ]


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v < 8])
def test_fetch_of_no_topics_is_empty(broker: Broker, version: int) -> None:
    assert broker.call(FETCH, version, {"group_id": "g", "topics": []})["topics"] == []


@pytest.mark.parametrize("version", versions(FETCH))
def test_a_refused_fetch_is_an_error_of_the_group(broker: Broker, version: int) -> None:
    broker.fail("groups", "committed", CoordinatorLoadingError("loading"))
    answer = fetch(broker, version, 0)
    if version < 2:  # there is no field for it
        assert codes(answer) == [[14]]
    else:
        assert (answer["error_code"], answer["topics"]) == (14, [])


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v >= 8])
def test_fetch_of_several_groups(broker: Broker, version: int) -> None:
    name = {"name": "orders", "topic_id": broker.topic_id("orders")}
    groups = [
        {"group_id": "g", "topics": None},
        {"group_id": "other", "topics": [name | {"partition_indexes": [1]}]},
        {"group_id": "g", "topics": []},
    ]
    every, other, none = broker.call(FETCH, version, {"groups": groups})["groups"]
    assert (every["group_id"], other["group_id"], none["group_id"]) == ("g", "other", "g")
    assert [len(each["topics"]) for each in (every, other, none)] == [2, 1, 0]
    assert other["topics"][0]["partitions"] == [ABSENT]


@pytest.mark.parametrize("version", [v for v in versions(FETCH) if v >= 9])
def test_a_member_that_fetches_with_an_old_epoch_is_refused(broker: Broker, version: int) -> None:
    member = {"group_id": "g", "member_id": "m"}
    joined = {"member_epoch": 0, "rebalance_timeout": 1000, "topic_partitions": []}
    broker.call(CONSUMER_HEARTBEAT, 1, member | joined | {"subscribed_topic_names": ["orders"]})
    found = [
        broker.call(FETCH, version, {"groups": [member | {"member_epoch": epoch, "topics": None}]})
        for epoch in (1, 4)
    ]
    assert [answer["groups"][0]["error_code"] for answer in found] == [0, 113]


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("version", versions(FETCH))
def test_an_offset_of_an_open_transaction_is_an_error_of_its_partition(
    broker: Broker, version: int
) -> None:
    producer = broker.run(Producer(broker.engine).init())
    broker.run(producer.commit_offset("g", "orders", 50))
    for indexes in ((0, 1), ()):
        if not indexes and version < 2:
            continue
        answer = fetch(broker, version, *indexes, require_stable=True)
        assert answer.get("error_code", 0) == 0
        first = answer["topics"][0]["partitions"][0]
        unstable = (88, -1) if version >= 7 else (0, 42)
        assert (first["error_code"], first["committed_offset"]) == unstable
        assert fetch(broker, version, 0)["topics"][0]["partitions"][0]["error_code"] == 0


@pytest.mark.usefixtures("committed")
def test_fetch_by_an_unknown_id(broker: Broker) -> None:
    topics = [
        {"topic_id": topic_id, "partition_indexes": [0]}
        for topic_id in (MISSING_ID, broker.topic_id("orders"))
    ]
    request = {"groups": [{"group_id": "g", "topics": topics}]}
    (group,) = broker.call(FETCH, 10, request)["groups"]
    assert codes(group) == [[100], [0]]
    assert group["topics"][0]["partitions"][0]["committed_offset"] == -1


@pytest.mark.usefixtures("committed")
def test_fetch_of_all_by_id_leaves_out_deleted_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is deleted before its offsets are."""
    positions = broker.door.groups.positions
    monkeypatch.setattr(
        broker.door.groups, "positions", lambda group: [*positions(group), ("gone", 0)]
    )
    ids = [broker.topic_id(name) for name in ("orders", "users")]
    assert [topic["topic_id"] for topic in fetch(broker, 10)["topics"]] == ids


DELETE_REQUEST = {
    "group_id": "g",
    "topics": [
        {"name": "orders", "partitions": [{"partition_index": 0}, {"partition_index": 9}]},
        {"name": "users", "partitions": [{"partition_index": 0}]},
    ],
}


def subscription(*topics: str) -> bytes:
    """Return what a consumer of a classic group says about itself: version 0, topics, no data."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


@pytest.mark.usefixtures("committed")
def test_offset_delete_answers_each_partition(broker: Broker) -> None:
    joined = broker.call(
        JOIN,
        3,
        {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 1000, "member_id": ""}
        | {"protocol_type": "consumer"}
        | {"protocols": [{"name": "range", "metadata": subscription("users")}]},
    )
    broker.call(SYNC, 3, {"group_id": "g", "generation_id": 1, "member_id": joined["member_id"]})
    answer = broker.call(OFFSET_DELETE, 0, DELETE_REQUEST)
    assert answer["error_code"] == 0
    assert codes(answer) == [[0, 3], [86]]
    assert set(broker.committed("g")) == {("users", 0)}


def test_offset_delete_of_an_unknown_group(broker: Broker) -> None:
    answer = broker.call(OFFSET_DELETE, 0, DELETE_REQUEST)
    assert (answer["error_code"], answer["topics"]) == (69, [])
