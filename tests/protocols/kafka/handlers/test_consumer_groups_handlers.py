"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: every version there and back."""

from __future__ import annotations

import pytest

from tests.protocols.kafka.broker import Broker, each_version
from tests.protocols.kafka.trees import picked
from tidemill.engine.api import ConsumerMemberInfo
from tidemill.engine.errors import BrokerStoppingError, GroupAuthorizationError
from tidemill.errors import TidemillError
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

JOIN, HEARTBEAT, DESCRIBE = 11, 68, 69

REQUEST = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": "i",
    "rack_id": "r",
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ["orders", "missing"],
    "subscribed_topic_regex": "user.*",
    "server_assignor": "range",
    "topic_partitions": [],
}
UNCHANGED = {
    "group_id": "g",
    "instance_id": "i",
    "subscribed_topic_names": None,
    "topic_partitions": None,
}
"""A heartbeat with nothing new."""


def member_of(broker: Broker) -> ConsumerMemberInfo:
    (found,) = broker.engine.groups.describe_consumer_group("g").members
    return found


@each_version(HEARTBEAT)
def test_a_heartbeat_passes_on_the_fields_of_its_version(broker: Broker, version: int) -> None:
    broker.call(HEARTBEAT, version, REQUEST)
    assert broker.engine.groups.describe_consumer_group("g").assignor == "range"
    found = member_of(broker)
    member = found.member
    assert (found.member_id, found.epoch) == ("m", 1)
    assert (member.instance_id, member.rack_id) == ("i", "r")
    assert (member.rebalance_timeout_ms, member.assignor) == (60_000, "range")
    assert member.topic_names == ("missing", "orders")
    assert (member.topic_pattern or None) == ("user.*" if version >= 1 else None)
    assert (member.client_id, member.client_host) == ("client", "10.0.0.7")


@each_version(HEARTBEAT)
def test_clients_choose_their_member_id_since_v1(broker: Broker, version: int) -> None:
    answer = broker.call(HEARTBEAT, version, REQUEST | {"member_id": ""})
    assert answer["error_code"] == (0 if version < 1 else 42)
    assert bool(answer["member_id"]) is (version < 1)


@each_version(HEARTBEAT)
def test_what_a_heartbeat_leaves_out_is_unchanged(broker: Broker, version: int) -> None:
    joined = broker.call(HEARTBEAT, version, REQUEST)
    member = {key: joined[key] for key in ("member_id", "member_epoch")}
    before = member_of(broker).member
    answer = broker.call(HEARTBEAT, version, UNCHANGED | member)
    assert (answer["error_code"], answer["assignment"]) == (0, None)
    assert member_of(broker).member == before


@each_version(HEARTBEAT)
def test_the_answer_has_the_assignment_where_it_changed(broker: Broker, version: int) -> None:
    answer = broker.call(HEARTBEAT, version, REQUEST)
    assert (answer["error_code"], answer["member_epoch"]) == (0, 1)
    owned = answer["assignment"]["topic_partitions"]
    wanted = {broker.topic_id("orders"): [0, 1, 2]}
    if version >= 1:  # the pattern
        wanted[broker.topic_id("users")] = [0]
    assert dict(picked(owned, "topic_id", "partitions")) == wanted
    member = {key: answer[key] for key in ("member_id", "member_epoch")}
    answer = broker.call(HEARTBEAT, version, UNCHANGED | member | {"topic_partitions": owned})
    assert (answer["error_code"], answer["assignment"]) == (0, None)
    second = REQUEST | {"member_id": "", "instance_id": None, "subscribed_topic_names": ["no"]}
    answer = broker.call(HEARTBEAT, 0, second)
    assert answer["assignment"] == {"topic_partitions": []}


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
    broker: Broker, error: TidemillError, code: int
) -> None:
    broker.fail("groups", "consumer_heartbeat", error)
    answer = broker.call(HEARTBEAT, 1, REQUEST)
    assert answer["error_code"] == code
    assert answer["error_message"].startswith("x")
    assert answer["assignment"] is None


@each_version(DESCRIBE)
def test_a_group_is_described_with_present_and_target_assignment(
    broker: Broker, version: int
) -> None:
    first = broker.call(HEARTBEAT, 1, REQUEST | {"server_assignor": "uniform"})
    # A consumer with the classic protocol joins, so the first member has to give partitions up.
    subscription = b"\0\0" + b"\0\0\0\1" + b"\0\6orders" + b"\xff\xff\xff\xff"
    protocols = [{"name": "range", "metadata": subscription}]
    timeouts = {"session_timeout": 10_000, "rebalance_timeout": 60_000}
    classic = {"protocol_type": "consumer", "protocols": protocols, **timeouts}
    joined = broker.call(JOIN, 3, classic | {"group_id": "g", "member_id": ""})
    assert joined["error_code"] == 0
    request = {"group_ids": ["g", "x"], "include_authorized_operations": False}
    group, unknown = broker.call(DESCRIBE, version, request)["groups"]
    assert (group["group_state"], group["assignor_name"]) == ("Reconciling", "uniform")
    assert group["group_epoch"] == group["assignment_epoch"] == first["member_epoch"] + 1
    assert (unknown["error_code"], unknown["group_id"]) == (69, "x")
    member, old = sorted(group["members"], key=lambda each: each["member_id"] != "m")

    def partitions(kind: str) -> dict[str, list[int]]:
        found = member[kind]["topic_partitions"]
        for each in found:
            assert each["topic_id"] == broker.topic_id(each["topic_name"])
        return {each["topic_name"]: each["partitions"] for each in found}

    assert partitions("assignment") == {"orders": [0, 1, 2], "users": [0]}
    assert set(partitions("target_assignment")["orders"]) < {0, 1, 2}
    assert (member["instance_id"], member["rack_id"], member["member_epoch"]) == ("i", "r", 1)
    assert member["subscribed_topic_names"] == ["missing", "orders"]
    assert member["subscribed_topic_regex"] == "user.*"
    if version >= 1:
        assert (member["member_type"], old["member_type"]) == (1, 0)


def test_operations_are_shown_on_request(broker: Broker) -> None:
    broker.call(HEARTBEAT, 1, REQUEST)
    request = {"group_ids": ["g"], "include_authorized_operations": True}
    (group,) = broker.call(DESCRIBE, 1, request)["groups"]
    assert group["authorized_operations"] > 0
