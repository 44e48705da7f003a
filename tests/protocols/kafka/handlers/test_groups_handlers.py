"""Group APIs: every advertised version there and back, and what each error becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from tests.protocols.kafka.broker import Broker, each_version, versions
from tests.protocols.kafka.trees import Tree, picked
from tidemill import telemetry
from tidemill.engine.api import CommitRequest, GroupDescription, OffsetToCommit
from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    CoordinatorLoadingError,
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    UnknownMemberIdError,
)

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE = 11, 12, 13, 14, 15, 16, 42
CONSUMER_HEARTBEAT = 68

JOIN_REQUEST = {
    "group_id": "g",
    "session_timeout": 10_000,
    "rebalance_timeout": 60_000,
    "member_id": "",
    "group_instance_id": "static-1",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"R"}, {"name": "sticky", "metadata": b"S"}],
    "reason": "rejoin",
}


def join(broker: Broker, version: int = 5, **fields: object) -> Tree:
    """Join as a client does, and return the answer."""
    answer = broker.call(JOIN, version, JOIN_REQUEST | fields)
    if answer["error_code"] == 79:
        fields["member_id"] = answer["member_id"]
        answer = broker.call(JOIN, version, JOIN_REQUEST | fields)
    assert answer["error_code"] == 0
    return answer


@pytest.fixture
def member(broker: Broker) -> Tree:
    """The static member of a stable group: the fields by which its requests name it."""
    joined = join(broker)
    fields = {key: joined[key] for key in ("member_id", "generation_id")}
    return {"group_id": "g", "group_instance_id": "static-1"} | fields


@pytest.fixture
def stable(broker: Broker, member: Tree) -> Tree:
    """The member, when it has its assignment."""
    assert broker.call(SYNC, 5, sync_request(member))["error_code"] == 0
    return member


def described(broker: Broker, group: str = "g") -> GroupDescription:
    return broker.engine.groups.describe(group)


@each_version(JOIN)
def test_join_gives_the_leader_all_members(broker: Broker, version: int) -> None:
    leader = join(broker, version)["member_id"]
    other = JOIN_REQUEST | {"group_instance_id": None, "protocols": [{"name": "range"}]}

    async def rebalance() -> tuple[Tree, Tree]:
        return await asyncio.gather(
            broker.answer(JOIN, 3, other),
            broker.answer(JOIN, version, JOIN_REQUEST | {"member_id": leader}),
        )

    follower, answer = broker.run(rebalance())
    assert answer["error_code"] == follower["error_code"] == 0
    assert answer["generation_id"] == follower["generation_id"] == 2
    assert answer["protocol_name"] == "range"
    assert answer["leader"] == answer["member_id"] == leader
    assert (follower["leader"], follower["members"]) == (leader, [])
    members = answer["members"]
    both = [(leader, b"R"), (follower["member_id"], b"")]
    assert picked(members, "member_id", "metadata") == both
    if version >= 5:
        assert picked(members, "group_instance_id") == [("static-1",), (None,)]
    if version >= 7:
        assert answer["protocol_type"] == "consumer"


@each_version(JOIN, since=5)
def test_a_static_leader_that_restarts_can_skip_the_assignment_since_v9(
    broker: Broker, stable: Tree, version: int
) -> None:
    answer = join(broker, version)
    assert answer["generation_id"] == stable["generation_id"]
    assert answer.get("skip_assignment", False) is (version >= 9)


@pytest.fixture
def _logged_as_in_a_broker() -> Iterator[None]:
    telemetry.configure("info")
    yield
    telemetry.configure("warning")


@pytest.mark.usefixtures("_logged_as_in_a_broker")
@each_version(JOIN)
def test_join_passes_on_the_fields_of_its_version(broker: Broker, version: int) -> None:
    first = broker.call(JOIN, version, JOIN_REQUEST | {"group_instance_id": None})
    assert first["error_code"] == (79 if version >= 4 else 0)
    with capture_logs() as lines:
        join(broker, version, group_id="g2")
    (line,) = [each for each in lines if each["event"] == "member.joined"]
    assert line.get("reason") == ("rejoin" if version >= 8 else None)
    group = broker.engine._group_coordinator.machine._classic.get("g2")
    assert group is not None
    (found,) = group.members.values()
    assert found.session_timeout_ms == 10_000
    assert found.rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)
    assert found.protocols == (("range", b"R"), ("sticky", b"S"))
    assert found.instance_id == ("static-1" if version >= 5 else None)
    assert (found.client_id, found.client_host) == ("client", "10.0.0.7")


@pytest.mark.parametrize(
    ("error", "code", "member_id"),
    [
        (MemberIdRequiredError("join with it", member_id="given"), 79, "given"),
        (UnknownMemberIdError("who?"), 25, "m1"),
        (FencedInstanceIdError("fenced"), 82, "m1"),
        (InconsistentGroupProtocolError("no common protocol"), 23, "m1"),
        (CoordinatorLoadingError("loading"), 14, "m1"),
        (BrokerStoppingError("stopping"), 15, "m1"),
    ],
)
def test_a_refused_join_keeps_the_member_id(
    broker: Broker, error: TidemillError, code: int, member_id: str
) -> None:
    broker.fail("groups", "join", error)
    for version in versions(JOIN):
        answer = broker.call(JOIN, version, JOIN_REQUEST | {"member_id": "m1"})
        assert (answer["error_code"], answer["member_id"]) == (code, member_id), version
        assert (answer["generation_id"], answer["leader"], answer["members"]) == (-1, "", [])
        assert answer["protocol_name"] == (None if version >= 7 else "")


def sync_request(member: Tree, **fields: object) -> Tree:
    return {
        **member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member["member_id"], "assignment": b"A"}],
        **fields,
    }


@each_version(SYNC)
def test_sync_returns_the_assignment(broker: Broker, member: Tree, version: int) -> None:
    answer = broker.call(SYNC, version, sync_request(member))
    assert (answer["error_code"], answer["assignment"]) == (0, b"A")
    if version >= 5:
        assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")
    assert [each.assignment for each in described(broker).members] == [b"A"]


@each_version(SYNC)
@pytest.mark.parametrize(
    ("fields", "code", "since"),
    [
        ({"generation_id": 9}, 22, 0),
        ({"group_instance_id": "static-2"}, 25, 3),
        ({"protocol_name": "sticky"}, 23, 5),
    ],
)
def test_a_refused_sync_has_an_empty_assignment(
    broker: Broker, member: Tree, version: int, fields: Tree, code: int, since: int
) -> None:
    answer = broker.call(SYNC, version, sync_request(member, **fields))
    expected = (code, b"") if version >= since else (0, b"A")
    assert (answer["error_code"], answer["assignment"]) == expected


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_sync_v5_needs_the_protocol(broker: Broker, member: Tree, missing: str) -> None:
    answer = broker.call(SYNC, 5, sync_request(member, **{missing: None}))
    assert answer["error_code"] == 23
    assert described(broker).state == "CompletingRebalance"


@each_version(HEARTBEAT)
def test_heartbeat(broker: Broker, stable: Tree, version: int) -> None:
    for fields, code, since in (
        ({}, 0, 0),
        ({"generation_id": 9}, 22, 0),
        ({"group_instance_id": "static-2"}, 25, 3),
    ):
        answer = broker.call(HEARTBEAT, version, stable | fields)
        assert answer["error_code"] == (code if version >= since else 0), fields


@each_version(LEAVE, until=2)
def test_leave_of_one_member_carries_its_error(broker: Broker, stable: Tree, version: int) -> None:
    assert broker.call(LEAVE, version, stable | {"member_id": "m"})["error_code"] == 25
    assert len(described(broker).members) == 1
    assert broker.call(LEAVE, version, stable)["error_code"] == 0
    assert described(broker).members == ()


@pytest.mark.usefixtures("_logged_as_in_a_broker")
@each_version(LEAVE, since=3)
def test_leave_of_several_answers_each(broker: Broker, stable: Tree, version: int) -> None:
    left = stable["member_id"]
    members = [
        {"member_id": left, "group_instance_id": None, "reason": "bye"},
        {"member_id": "", "group_instance_id": "s", "reason": None},
    ]
    with capture_logs() as lines:
        answer = broker.call(LEAVE, version, {"group_id": "g", "members": members})
    assert answer["error_code"] == 0
    found = picked(answer["members"], "member_id", "group_instance_id", "error_code")
    assert found == [(left, None, 0), ("", "s", 25)]
    assert described(broker).members == ()
    (line,) = [each for each in lines if each["event"] == "member.left"]
    assert line.get("reason") == ("bye" if version >= 5 else None)


@each_version(LEAVE)
def test_leave_of_an_unknown_group_and_one_that_is_refused(broker: Broker, version: int) -> None:
    request = {"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]}
    answer = broker.call(LEAVE, version, request)
    if version < 3:
        assert answer["error_code"] == 25
    else:
        assert (answer["error_code"], answer["members"][0]["error_code"]) == (0, 25)
    broker.fail("groups", "leave", CoordinatorLoadingError("loading"))
    assert broker.call(LEAVE, version, request)["error_code"] == 14


def empty_group(broker: Broker, group: str) -> None:
    """Make a group without members, which has a committed offset."""
    commit = CommitRequest(group, -1, "", None, (OffsetToCommit("orders", 0, 1),))
    broker.run(broker.engine.groups.commit(commit))


@pytest.mark.usefixtures("stable")
@each_version(LIST)
def test_list_groups_filters_by_state_and_type(broker: Broker, version: int) -> None:
    empty_group(broker, "empty")
    member = {"group_id": "modern", "member_id": "m", "subscribed_topic_names": ["orders"]}
    broker.call(CONSUMER_HEARTBEAT, 1, member | {"rebalance_timeout": 1000, "topic_partitions": []})
    request = {"states_filter": ["stable"], "types_filter": ["classic"]}
    answer = broker.call(LIST, version, request)
    assert answer["error_code"] == 0
    groups = {group["group_id"]: group for group in answer["groups"]}
    wanted = {"g", "empty", "modern"} if version < 4 else {"g", "modern"} if version < 5 else {"g"}
    assert set(groups) == wanted
    assert groups["g"]["protocol_type"] == "consumer"
    if version >= 4:
        assert groups["g"]["group_state"] == "Stable"
    if version >= 5:
        assert groups["g"]["group_type"] == "classic"


@each_version(DESCRIBE)
def test_describe_groups_with_members(broker: Broker, stable: Tree, version: int) -> None:
    request = {"groups": ["g"], "include_authorized_operations": False}
    (group,) = broker.call(DESCRIBE, version, request)["groups"]
    assert (group["error_code"], group["group_id"], group["group_state"]) == (0, "g", "Stable")
    assert (group["protocol_type"], group["protocol_data"]) == ("consumer", "range")
    (found,) = group["members"]
    assert (found["member_id"], found["client_id"]) == (stable["member_id"], "client")
    assert (found["member_metadata"], found["member_assignment"]) == (b"R", b"A")
    if version >= 3:
        assert group["authorized_operations"] == -(2**31)
    if version >= 4:
        assert found["group_instance_id"] == "static-1"


@pytest.mark.usefixtures("stable")
@each_version(DESCRIBE)
def test_an_unknown_group_is_dead_before_v6_and_then_an_error(broker: Broker, version: int) -> None:
    request = {"groups": ["nope", "g"], "include_authorized_operations": True}
    unknown, known = broker.call(DESCRIBE, version, request)["groups"]
    assert (unknown["group_id"], unknown["group_state"]) == ("nope", "Dead")
    assert unknown["members"] == []
    assert (unknown["error_code"], known["error_code"]) == (69 if version >= 6 else 0, 0)
    if version >= 6:
        assert "nope" in unknown["error_message"]
    if version >= 3:
        assert known["authorized_operations"] == 3400


@pytest.mark.usefixtures("stable")
@each_version(DELETE)
def test_delete_groups_answers_for_every_group_once(broker: Broker, version: int) -> None:
    empty_group(broker, "a")
    empty_group(broker, "b")
    answer = broker.call(DELETE, version, {"groups_names": ["g", "a", "nope", "b", "a"]})
    codes = picked(answer["results"], "group_id", "error_code")
    assert codes == [("g", 68), ("a", 0), ("nope", 69), ("b", 0)]
    assert [each.group_id for each in broker.engine.groups.listings()] == ["g"]
