"""Offset APIs: every advertised version there and back; topics by name and, from v10, by id."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.engine.transactions.support import Producer
from tests.protocols.kafka.broker import MISSING_ID, Broker, each_version, partition_codes
from tests.protocols.kafka.trees import Tree, picked
from tidemill.state.errors import CoordinatorLoadingError, IllegalGenerationError

COMMIT, FETCH, OFFSET_DELETE = 8, 9, 47
JOIN, SYNC, CONSUMER_HEARTBEAT = 11, 14, 68


def partition(index: int, offset: int, note: str | None = "note") -> Tree:
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": 2,
        "committed_metadata": note,
    }


def topic(broker: Broker, name: str, *partitions: Tree) -> Tree:
    return {"name": name, "topic_id": id_of(broker, name), "partitions": list(partitions)}


def id_of(broker: Broker, name: str) -> UUID:
    return MISSING_ID if name == "nope" else broker.topic_id(name)


def commit_request(*topics: Tree, **member: object) -> Tree:
    nobody = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return {"group_id": "g", "retention_time": -1, "topics": list(topics)} | nobody | member


@each_version(COMMIT)
def test_commit_stores_every_offset_and_answers_each(broker: Broker, version: int) -> None:
    topics = [
        topic(broker, "orders", partition(0, 10), partition(1, 11, "n" * 5000)),
        topic(broker, "users", partition(0, 12, None), partition(1, 13)),
    ]
    answer = broker.call(COMMIT, version, commit_request(*topics))
    assert partition_codes(answer) == [[0, 12], [0, 3]]
    epoch = 2 if version >= 6 else -1
    assert broker.committed("g") == {
        ("orders", 0): (10, epoch, "note"),
        ("users", 0): (12, epoch, ""),
    }
    key = "topic_id" if version >= 10 else "name"
    assert [each[key] for each in answer["topics"]] == [each[key] for each in topics]


def joined(broker: Broker, subscription: bytes = b"") -> Tree:
    """Make a classic group stable; return the fields by which its member's requests name it."""
    member = {"group_id": "g", "group_instance_id": "s", "member_id": ""}
    timeouts = {"session_timeout": 10_000, "rebalance_timeout": 1000}
    protocols = [{"name": "range", "metadata": subscription}]
    kind = {"protocol_type": "consumer", "protocols": protocols}
    member["member_id"] = broker.call(JOIN, 5, member | timeouts | kind)["member_id"]
    broker.call(SYNC, 3, member | {"generation_id": 1, "assignments": []})
    return member


@each_version(COMMIT)
def test_only_the_present_member_of_a_group_commits(broker: Broker, version: int) -> None:
    member = joined(broker)

    def commit(generation: int, **fields: object) -> list[list[int]]:
        named = member | {"generation_id_or_member_epoch": generation} | fields
        asked = topic(broker, "orders", partition(0, 10), partition(1, 11))
        return partition_codes(broker.call(COMMIT, version, commit_request(asked, **named)))

    assert commit(2) == [[22, 22]]
    assert commit(1, group_instance_id="other") == ([[25, 25]] if version >= 7 else [[0, 0]])
    assert commit(1) == [[0, 0]]


@each_version(COMMIT, until=5)
def test_a_commit_of_an_old_client_says_how_long_it_lasts(broker: Broker, version: int) -> None:
    asked = topic(broker, "orders", partition(0, 10))
    broker.call(COMMIT, version, commit_request(asked, retention_time=9000))
    broker.clock.advance(10_000)
    broker.run(broker.engine._group_coordinator.expire_offsets())
    assert broker.committed("g") == ({} if version <= 4 else {("orders", 0): (10, -1, "note")})


@each_version(COMMIT)
def test_a_refused_commit_is_an_error_of_each_partition(broker: Broker, version: int) -> None:
    broker.fail("groups", "commit", IllegalGenerationError("old"))
    asked = topic(broker, "orders", partition(0, 10), partition(1, 11))
    assert partition_codes(broker.call(COMMIT, version, commit_request(asked))) == [[22, 22]]


def test_commit_to_an_unknown_id_leaves_the_others_alone(broker: Broker) -> None:
    topics = [topic(broker, name, partition(0, 10)) for name in ("nope", "users")]
    answer = broker.call(COMMIT, 10, commit_request(*topics))
    assert partition_codes(answer) == [[100], [0]]
    assert set(broker.committed("g")) == {("users", 0)}


@pytest.fixture
def committed(broker: Broker) -> None:
    """Group ``g`` has committed offsets of two partitions."""
    topics = [
        topic(broker, "orders", partition(0, 42)),
        topic(broker, "users", partition(0, 7, None)),
    ]
    assert partition_codes(broker.call(COMMIT, 9, commit_request(*topics))) == [[0], [0]]


POSITION = ("partition_index", "committed_offset", "metadata", "error_code")
FOUND, ABSENT = (0, 42, "note", 0), (1, -1, "", 0)


def positions(broker: Broker, name: str, *indexes: int) -> Tree:
    """Ask for offsets of a topic."""
    return {"name": name, "topic_id": id_of(broker, name), "partition_indexes": list(indexes)}


def fetch(broker: Broker, version: int, *indexes: int, require_stable: bool = False) -> Tree:
    """Fetch offsets of ``orders``, of all topics if no partition is given; return the group's."""
    topics = [positions(broker, "orders", *indexes)] if indexes else None
    asked: Tree = {"group_id": "g", "topics": topics}
    request = {"groups": [asked]} if version >= 8 else asked
    answer = broker.call(FETCH, version, request | {"require_stable": require_stable})
    return dict(answer["groups"][0]) if version >= 8 else answer


@pytest.mark.usefixtures("committed")
@each_version(FETCH)
def test_fetch_of_one_group(broker: Broker, version: int) -> None:
    answer = fetch(broker, version, 1, 0, require_stable=True)
    (found,) = answer["topics"]
    if version >= 10:
        assert found["topic_id"] == broker.topic_id("orders")
    else:
        assert found["name"] == "orders"
    assert picked(found["partitions"], *POSITION) == [ABSENT, FOUND]
    if version >= 5:
        assert picked(found["partitions"], "committed_leader_epoch") == [(-1,), (2,)]
    assert answer.get("error_code", 0) == 0


@pytest.mark.usefixtures("committed")
@each_version(FETCH, since=2)
def test_fetch_of_null_topics_is_all_of_the_group(broker: Broker, version: int) -> None:
    answer = fetch(broker, version)
    names = [(name,) for name in ("orders", "users")]
    ids = [(broker.topic_id(name),) for (name,) in names]
    found = picked(answer["topics"], "topic_id" if version >= 10 else "name")
    assert found == (ids if version >= 10 else names)
    assert [len(topic["partitions"]) for topic in answer["topics"]] == [1, 1]


@pytest.mark.usefixtures("committed")
@each_version(FETCH, until=7)
def test_fetch_of_no_topics_is_empty(broker: Broker, version: int) -> None:
    assert broker.call(FETCH, version, {"group_id": "g", "topics": []})["topics"] == []


@each_version(FETCH)
def test_a_refused_fetch_is_an_error_of_the_group(broker: Broker, version: int) -> None:
    broker.fail("groups", "committed", CoordinatorLoadingError("loading"))
    answer = fetch(broker, version, 0)
    if version < 2:  # there is no field for it
        assert partition_codes(answer) == [[14]]
    else:
        assert (answer["error_code"], answer["topics"]) == (14, [])


@pytest.mark.usefixtures("committed")
@each_version(FETCH, since=8)
def test_fetch_of_several_groups(broker: Broker, version: int) -> None:
    groups = [
        {"group_id": "g", "topics": None},
        {"group_id": "other", "topics": [positions(broker, "orders", 1)]},
        {"group_id": "g", "topics": []},
    ]
    found = broker.call(FETCH, version, {"groups": groups})["groups"]
    topics = [(each["group_id"], len(each["topics"])) for each in found]
    assert topics == [("g", 2), ("other", 1), ("g", 0)]
    assert picked(found[1]["topics"][0]["partitions"], *POSITION) == [ABSENT]


@each_version(FETCH, since=9)
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
@each_version(FETCH)
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
    topics = [positions(broker, name, 0) for name in ("nope", "orders")]
    request = {"groups": [{"group_id": "g", "topics": topics}]}
    (group,) = broker.call(FETCH, 10, request)["groups"]
    assert partition_codes(group) == [[100], [0]]
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
    joined(broker, subscription=subscription("users"))
    answer = broker.call(OFFSET_DELETE, 0, DELETE_REQUEST)
    assert answer["error_code"] == 0
    assert partition_codes(answer) == [[0, 3], [86]]
    assert set(broker.committed("g")) == {("users", 0)}


def test_offset_delete_of_an_unknown_group(broker: Broker) -> None:
    answer = broker.call(OFFSET_DELETE, 0, DELETE_REQUEST)
    assert (answer["error_code"], answer["topics"]) == (69, [])
