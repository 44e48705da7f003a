"""Group APIs: every advertised version there and back, and what each error becomes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.kafka.fake_engine_admin import FakeEngine, call, versions
from tidemill.engine.api import (
    GroupDescription,
    GroupMemberInfo,
    JoinMember,
    JoinResult,
    LeaveMember,
)
from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import TidemillError
from tidemill.state.errors import (
    CoordinatorLoadingError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE = 11, 12, 13, 14, 15, 16, 42

JOIN_REQUEST = {
    "group_id": "g",
    "session_timeout": 10_000,
    "rebalance_timeout": 60_000,
    "member_id": "m1",
    "group_instance_id": "static-1",
    "protocol_type": "consumer",
    "protocols": [
        {"name": "range", "metadata": b"R"},
        {"name": "sticky", "metadata": b"S"},
    ],
    "reason": "rejoin",
}


@pytest.fixture
def broker() -> FakeEngine:
    return FakeEngine()


@pytest.mark.parametrize("version", versions(JOIN))
def test_join_gives_the_leader_all_members(broker: FakeEngine, version: int) -> None:
    broker.answers["join_group"] = JoinResult(
        4,
        "consumer",
        "range",
        "m1",
        "m1",
        (JoinMember("m1", "static-1", b"R"), JoinMember("m2", None, b"")),
        skip_assignment=True,
    )
    answer = call(broker, JOIN, version, JOIN_REQUEST)
    assert answer["error_code"] == 0
    assert answer["generation_id"] == 4
    assert answer["protocol_name"] == "range"
    assert answer["leader"] == answer["member_id"] == "m1"
    assert [m["member_id"] for m in answer["members"]] == ["m1", "m2"]
    assert [m["metadata"] for m in answer["members"]] == [b"R", b""]
    if version >= 5:
        assert [m["group_instance_id"] for m in answer["members"]] == ["static-1", None]
    if version >= 7:
        assert answer["protocol_type"] == "consumer"
    if version >= 9:
        assert answer["skip_assignment"] is True


@pytest.mark.parametrize("version", versions(JOIN))
def test_join_passes_on_the_fields_of_its_version(broker: FakeEngine, version: int) -> None:
    broker.answers["join_group"] = JoinResult(1, "consumer", "range", "m1", "m1")
    call(broker, JOIN, version, JOIN_REQUEST)
    ((_, join),) = broker.calls
    assert join.group_id == "g"
    assert join.member_id == "m1"
    assert join.session_timeout_ms == 10_000
    assert join.rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)
    assert join.protocols == (("range", b"R"), ("sticky", b"S"))
    assert join.require_known_member_id is (version >= 4)
    assert join.instance_id == ("static-1" if version >= 5 else None)
    assert join.reason == ("rejoin" if version >= 8 else None)
    assert join.supports_skipping_assignment is (version >= 9)
    assert (join.client_id, join.client_host) == ("client", "10.0.0.7")


@pytest.mark.parametrize("version", versions(JOIN))
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
    broker: FakeEngine, version: int, error: TidemillError, code: int, member_id: str
) -> None:
    broker.answers["join_group"] = error
    answer = call(broker, JOIN, version, JOIN_REQUEST)
    assert answer["error_code"] == code
    assert answer["member_id"] == member_id
    assert answer["generation_id"] == -1
    assert answer["leader"] == ""
    assert answer["members"] == []
    assert answer["protocol_name"] == (None if version >= 7 else "")


SYNC_REQUEST = {
    "group_id": "g",
    "generation_id": 3,
    "member_id": "m1",
    "group_instance_id": "s",
    "protocol_type": "consumer",
    "protocol_name": "range",
    "assignments": [{"member_id": "m1", "assignment": b"A"}],
}


@pytest.mark.parametrize("version", versions(SYNC))
def test_sync_returns_the_assignment(broker: FakeEngine, version: int) -> None:
    answer = call(broker, SYNC, version, SYNC_REQUEST)
    assert (answer["error_code"], answer["assignment"]) == (0, b"\1")
    ((_, sync),) = broker.calls
    assert (sync.generation, sync.member_id) == (3, "m1")
    assert sync.assignments == (("m1", b"A"),)
    assert sync.instance_id == ("s" if version >= 3 else None)
    assert sync.protocol == ("range" if version >= 5 else None)
    if version >= 5:
        assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")


@pytest.mark.parametrize("version", versions(SYNC))
def test_a_refused_sync_has_an_empty_assignment(broker: FakeEngine, version: int) -> None:
    broker.answers["sync_group"] = RebalanceInProgressError("join again")
    answer = call(broker, SYNC, version, SYNC_REQUEST)
    assert (answer["error_code"], answer["assignment"]) == (27, b"")


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_sync_v5_needs_the_protocol(broker: FakeEngine, missing: str) -> None:
    answer = call(broker, SYNC, 5, {**SYNC_REQUEST, missing: None})
    assert answer["error_code"] == 23
    assert broker.calls == []


@pytest.mark.parametrize("version", versions(HEARTBEAT))
@pytest.mark.parametrize(("error", "code"), [(None, 0), (IllegalGenerationError("old"), 22)])
def test_heartbeat(
    broker: FakeEngine, version: int, error: TidemillError | None, code: int
) -> None:
    broker.answers["heartbeat"] = error
    request = {"group_id": "g", "generation_id": 2, "member_id": "m", "group_instance_id": "s"}
    assert call(broker, HEARTBEAT, version, request)["error_code"] == code
    assert broker.calls == [("heartbeat", ("g", 2, "m", "s" if version >= 3 else None))]


@pytest.mark.parametrize("version", [v for v in versions(LEAVE) if v < 3])
@pytest.mark.parametrize(("error", "code"), [(None, 0), (UnknownMemberIdError("?"), 25)])
def test_leave_of_one_member_carries_its_error(
    broker: FakeEngine, version: int, error: TidemillError | None, code: int
) -> None:
    broker.answers["leave_group"] = [error]
    answer = call(broker, LEAVE, version, {"group_id": "g", "member_id": "m"})
    assert answer["error_code"] == code
    assert broker.calls == [("leave_group", ("g", [LeaveMember("m")]))]


@pytest.mark.parametrize("version", [v for v in versions(LEAVE) if v >= 3])
def test_leave_of_several_answers_each(broker: FakeEngine, version: int) -> None:
    broker.answers["leave_group"] = [None, UnknownMemberIdError("?")]
    members = [
        {"member_id": "m", "group_instance_id": None, "reason": "bye"},
        {"member_id": "", "group_instance_id": "s", "reason": None},
    ]
    answer = call(broker, LEAVE, version, {"group_id": "g", "members": members})
    assert answer["error_code"] == 0
    assert [
        (m["member_id"], m["group_instance_id"], m["error_code"]) for m in answer["members"]
    ] == [("m", None, 0), ("", "s", 25)]
    ((_, (_, passed)),) = broker.calls
    assert passed[0].reason == ("bye" if version >= 5 else None)


@pytest.mark.parametrize("version", versions(LEAVE))
def test_leave_refused_as_a_whole(broker: FakeEngine, version: int) -> None:
    broker.answers["leave_group"] = CoordinatorLoadingError("loading")
    request = {"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]}
    assert call(broker, LEAVE, version, request)["error_code"] == 14


@pytest.mark.parametrize("version", versions(LEAVE))
def test_leave_of_an_unknown_group(broker: FakeEngine, version: int) -> None:
    broker.answers["leave_group"] = UnknownMemberIdError("no such group")
    request = {"group_id": "g", "member_id": "m", "members": [{"member_id": "m"}]}
    answer = call(broker, LEAVE, version, request)
    if version < 3:
        assert answer["error_code"] == 25
    else:
        assert (answer["error_code"], answer["members"][0]["error_code"]) == (0, 25)


@pytest.mark.parametrize("version", versions(LIST))
def test_list_groups_filters_by_state_and_type(broker: FakeEngine, version: int) -> None:
    request = {"states_filter": ["Stable"], "types_filter": ["classic"]}
    answer = call(broker, LIST, version, request)
    (group,) = answer["groups"]
    assert (answer["error_code"], group["group_id"], group["protocol_type"]) == (0, "g", "consumer")
    if version >= 4:
        assert group["group_state"] == "Stable"
    if version >= 5:
        assert group["group_type"] == "classic"
    assert broker.calls == [
        (
            "list_groups",
            (("Stable",) if version >= 4 else (), ("classic",) if version >= 5 else ()),
        )
    ]


STABLE = GroupDescription(
    "g",
    "Stable",
    "consumer",
    "range",
    (GroupMemberInfo("m", "s", "client", "/10.0.0.7", b"M", b"A"),),
)


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_describe_groups_with_members(broker: FakeEngine, version: int) -> None:
    broker.answers["describe_group"] = {"g": STABLE}
    answer = call(broker, DESCRIBE, version, {"groups": ["g"], "include_authorized_operations": 0})
    (group,) = answer["groups"]
    assert (group["error_code"], group["group_id"], group["group_state"]) == (0, "g", "Stable")
    assert (group["protocol_type"], group["protocol_data"]) == ("consumer", "range")
    (member,) = group["members"]
    assert (member["member_id"], member["client_id"]) == ("m", "client")
    assert (member["member_metadata"], member["member_assignment"]) == (b"M", b"A")
    if version >= 3:
        assert group["authorized_operations"] == -(2**31)
    if version >= 4:
        assert member["group_instance_id"] == "s"


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_an_unknown_group_is_dead_before_v6_and_then_an_error(
    broker: FakeEngine, version: int
) -> None:
    broker.answers["describe_group"] = {"g": STABLE}
    answer = call(
        broker, DESCRIBE, version, {"groups": ["nope", "g"], "include_authorized_operations": True}
    )
    unknown, known = answer["groups"]
    assert unknown["group_id"] == "nope"
    assert unknown["group_state"] == "Dead"
    assert unknown["members"] == []
    assert known["error_code"] == 0
    if version >= 6:
        assert unknown["error_code"] == 69
        assert "nope" in unknown["error_message"]
    else:
        assert unknown["error_code"] == 0
    if version >= 3:
        assert known["authorized_operations"] == 3400


@pytest.mark.parametrize("version", versions(DELETE))
def test_delete_groups_answers_for_every_group_once(broker: FakeEngine, version: int) -> None:
    broker.answers["delete_group"] = {
        "busy": NonEmptyGroupError("members"),
        "nope": GroupIdNotFoundError("?"),
    }
    answer = call(broker, DELETE, version, {"groups_names": ["busy", "a", "nope", "b", "a"]})
    results: list[dict[str, Any]] = answer["results"]
    assert [(r["group_id"], r["error_code"]) for r in results] == [
        ("busy", 68),
        ("a", 0),
        ("nope", 69),
        ("b", 0),
    ]
