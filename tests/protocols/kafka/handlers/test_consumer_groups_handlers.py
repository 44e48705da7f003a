"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: every version there and back."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.protocols.kafka.fake_engine_admin import FakeEngine, call, versions
from tidemill.engine.api import (
    ConsumerGroupInfo,
    ConsumerHeartbeat,
    ConsumerMemberInfo,
    HeartbeatResult,
)
from tidemill.engine.errors import BrokerStoppingError, GroupAuthorizationError
from tidemill.errors import TidemillError
from tidemill.state.consumer_groups.types import ClassicProtocols, ConsumerMember
from tidemill.state.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)

HEARTBEAT, DESCRIBE = 68, 69
T = UUID(int=7)

REQUEST = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 3,
    "instance_id": "i",
    "rack_id": "r",
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ["t", "u"],
    "subscribed_topic_regex": "t.*",
    "server_assignor": "range",
    "topic_partitions": [{"topic_id": T, "partitions": [1, 0]}],
}


@pytest.fixture
def broker() -> FakeEngine:
    return FakeEngine()


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_a_heartbeat_passes_on_the_fields_of_its_version(broker: FakeEngine, version: int) -> None:
    call(broker, HEARTBEAT, version, REQUEST)
    (sent,) = [request for name, request in broker.calls if name == "consumer_heartbeat"]
    assert isinstance(sent, ConsumerHeartbeat)
    assert (sent.group_id, sent.member_id, sent.member_epoch) == ("g", "m", 3)
    assert (sent.instance_id, sent.rack_id, sent.assignor) == ("i", "r", "range")
    assert (sent.rebalance_timeout_ms, sent.topic_names) == (60_000, ("t", "u"))
    assert sent.owned == {T: frozenset([0, 1])}
    assert sent.topic_pattern == ("t.*" if version >= 1 else None)
    assert sent.chooses_member_id is (version >= 1)


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_what_a_heartbeat_leaves_out_is_unchanged(broker: FakeEngine, version: int) -> None:
    short = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 3,
        "subscribed_topic_names": None,
        "topic_partitions": None,
    }
    call(broker, HEARTBEAT, version, short)
    (sent,) = [request for name, request in broker.calls if name == "consumer_heartbeat"]
    assert sent.rebalance_timeout_ms == -1
    assert (sent.instance_id, sent.topic_names, sent.owned, sent.assignor) == (None,) * 4


@pytest.mark.parametrize("version", versions(HEARTBEAT))
def test_the_answer_has_the_assignment_where_it_changed(broker: FakeEngine, version: int) -> None:
    broker.answers["consumer_heartbeat"] = HeartbeatResult("m", 4, 5000, {T: frozenset([2, 1])})
    answer = call(broker, HEARTBEAT, version, REQUEST)
    assert (answer["error_code"], answer["member_id"], answer["member_epoch"]) == (0, "m", 4)
    assert answer["assignment"] == {"topic_partitions": [{"topic_id": T, "partitions": [1, 2]}]}
    broker.answers["consumer_heartbeat"] = HeartbeatResult("m", 4, 5000, None)
    assert call(broker, HEARTBEAT, version, REQUEST)["assignment"] is None
    broker.answers["consumer_heartbeat"] = HeartbeatResult("m", 4, 5000, {})
    assert call(broker, HEARTBEAT, version, REQUEST)["assignment"] == {"topic_partitions": []}


ERRORS: list[tuple[TidemillError, int]] = [
    (BrokerStoppingError("x"), 15),
    (UnknownMemberIdError("x"), 25),
    (GroupAuthorizationError("x"), 30),
    (InvalidRequestError("x"), 42),
    (GroupMaxSizeReachedError("x"), 81),
    (FencedInstanceIdError("x"), 82),
    (FencedMemberEpochError("x"), 110),
    (UnreleasedInstanceIdError("x"), 111),
    (UnsupportedAssignorError("x"), 112),
    (InvalidRegularExpressionError("x"), 128),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_a_refused_heartbeat_has_a_code_and_a_message(
    broker: FakeEngine, error: TidemillError, code: int
) -> None:
    broker.answers["consumer_heartbeat"] = error
    answer = call(broker, HEARTBEAT, 1, REQUEST)
    assert answer["error_code"] == code
    assert answer["error_message"].startswith("x")
    assert answer["assignment"] is None


GROUP = ConsumerGroupInfo(
    "g",
    "Reconciling",
    5,
    4,
    "uniform",
    (
        ConsumerMemberInfo(
            "m",
            ConsumerMember("i", "r", "client", "host", ("t",), "t.*", 1000, "uniform"),
            4,
            ((T, "t", (0, 1)),),
            ((T, "t", (0,)),),
        ),
        ConsumerMemberInfo(
            "old", ConsumerMember(classic=ClassicProtocols(1000, (("range", b""),))), 5, (), ()
        ),
    ),
)


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_a_group_is_described_with_present_and_target_assignment(
    broker: FakeEngine, version: int
) -> None:
    broker.answers["describe_consumer_group"] = {"g": GROUP}
    request = {"group_ids": ["g", "x"], "include_authorized_operations": False}
    answer = call(broker, DESCRIBE, version, request)
    group, unknown = answer["groups"]
    assert (group["group_state"], group["group_epoch"]) == ("Reconciling", 5)
    assert (group["assignment_epoch"], group["assignor_name"]) == (4, "uniform")
    member, old = group["members"]
    named = {"topic_id": T, "topic_name": "t"}
    assert member["assignment"]["topic_partitions"] == [{**named, "partitions": [0, 1]}]
    assert member["target_assignment"]["topic_partitions"] == [{**named, "partitions": [0]}]
    assert (member["subscribed_topic_names"], member["subscribed_topic_regex"]) == (["t"], "t.*")
    assert (member["instance_id"], member["rack_id"], member["member_epoch"]) == ("i", "r", 4)
    if version >= 1:
        assert (member["member_type"], old["member_type"]) == (1, 0)
    assert (unknown["error_code"], unknown["group_id"]) == (69, "x")


def test_operations_are_shown_on_request(broker: FakeEngine) -> None:
    broker.answers["describe_consumer_group"] = {"g": GROUP}
    request = {"group_ids": ["g"], "include_authorized_operations": True}
    (group,) = call(broker, DESCRIBE, 1, request)["groups"]
    assert group["authorized_operations"] > 0
