"""DescribeAcls, CreateAcls and DeleteAcls, and what rules let clients do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.protocols.kafka.broker import Broker, each_version
from tests.protocols.kafka.trees import Tree, picked
from tidemill.engine.authorize import Principal
from tidemill.state.security.types import Operation, ResourceKind

DESCRIBE, CREATE, DELETE = 29, 30, 31
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, CLUSTER = 2, 4
ALL, READ, WRITE, DESCRIBE_OP = 2, 3, 4, 8
DENY, ALLOW = 2, 3

ROOT, ALICE = Principal("root"), Principal("alice")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with rules. Its client is a super user."""
    with closing(Broker(security={"super_users": "User:root"})) as broker:
        broker.door = broker.engine.door(ROOT)
        yield broker


def rule(name: str = "t", **fields: Any) -> Tree:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **fields,
    }


def selection(name: str | None = None, **fields: Any) -> Tree:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **fields,
    }


def create(broker: Broker, *rules: Tree, version: int = 3) -> list[int]:
    results = broker.call(CREATE, version, {"creations": list(rules)})["results"]
    return [each["error_code"] for each in results]


def described(broker: Broker, version: int = 3, **fields: Any) -> list[tuple[Any, ...]]:
    answer = broker.call(DESCRIBE, version, selection(**fields))
    assert answer["error_code"] == 0, answer
    return [
        (each["resource_name"], each["pattern_type"], acl["operation"], acl["permission_type"])
        for each in answer["resources"]
        for acl in each["acls"]
    ]


@each_version(DESCRIBE)
def test_rules_are_created_described_and_deleted(broker: Broker, version: int) -> None:
    prefixed = rule("t", resource_pattern_type=PREFIXED, permission_type=DENY)
    rules = rule(), rule(), rule("u", operation=ALL), prefixed
    assert create(broker, *rules, version=version) == [0, 0, 0, 0]
    everything = [
        ("t", LITERAL, READ, ALLOW),
        ("u", LITERAL, ALL, ALLOW),
        ("t", PREFIXED, READ, DENY),
    ]
    assert described(broker, version) == everything
    assert described(broker, version, name="t", pattern_type_filter=LITERAL) == everything[:1]
    assert described(broker, version, name="tx", pattern_type_filter=MATCH) == everything[2:]
    assert described(broker, version, principal_filter="User:bob") == []
    filters = [selection("t", pattern_type_filter=MATCH), selection("none")]
    answer = broker.call(DELETE, version, {"filters": filters})
    counts = [len(each["matching_acls"]) for each in answer["filter_results"]]
    assert counts == [2, 0]
    assert described(broker, version) == everything[1:2]


@pytest.mark.parametrize(
    "fields",
    [
        {"resource_type": 0},
        {"resource_type": ANY},
        {"resource_type": 99},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"operation": 16},
        {"permission_type": ANY},
        {"permission_type": -1},
        {"principal": "alice"},
        {"resource_name": ""},
        {"resource_name": "x" * 2000},
        {"resource_type": CLUSTER, "resource_name": "t"},
    ],
)
def test_an_invalid_rule_has_its_own_error(broker: Broker, fields: Tree) -> None:
    assert create(broker, rule(**fields), rule("u")) == [42, 0]
    assert described(broker) == [("u", LITERAL, READ, ALLOW)]


def test_an_invalid_filter_is_refused(broker: Broker) -> None:
    answer = broker.call(DESCRIBE, 3, selection(operation=99))
    assert (answer["error_code"], answer["resources"]) == (42, [])
    filters = [selection(operation=0), selection()]
    results = broker.call(DELETE, 3, {"filters": filters})["filter_results"]
    assert [each["error_code"] for each in results] == [42, 0]
    results = broker.call(DELETE, 3, {"filters": [selection()] * 1001})["filter_results"]
    assert {each["error_code"] for each in results} == {42}


@each_version(DESCRIBE)
def test_without_a_super_user_there_is_no_authorizer(version: int) -> None:
    with closing(Broker()) as broker:
        answer = broker.call(DESCRIBE, version, selection())
        assert (answer["error_code"], answer["resources"]) == (54, [])
        assert create(broker, rule(), rule(), version=version) == [54, 54]
        results = broker.call(DELETE, version, {"filters": [selection()]})["filter_results"]
        assert picked(results, "error_code") == [(54,)]


def test_a_rule_counts_on_open_connections_immediately(broker: Broker) -> None:
    broker.create("t")
    alice = broker.engine.door(ALICE, "10.0.0.7")
    asked = Operation.READ, ResourceKind.TOPIC, "t"
    assert not alice.access.allows(*asked)
    create(broker, rule())
    assert alice.access.allows(*asked)
    create(broker, rule(permission_type=DENY, host="10.0.0.7"))
    assert not alice.access.allows(*asked)
    assert broker.engine.door(ALICE, "10.0.0.8").access.allows(*asked)


def test_a_user_sees_what_it_may_describe(broker: Broker) -> None:
    broker.create("t")
    broker.create("hidden")
    create(broker, rule(operation=WRITE))
    root, broker.door = broker.door, broker.engine.door(ALICE)
    named = {"topics": [{"name": name} for name in ("t", "hidden", "missing")]}
    topics = broker.call(3, 8, {**named, "include_topic_authorized_operations": True})["topics"]
    codes = picked(topics, "name", "error_code")
    assert codes == [("t", 0), ("hidden", 29), ("missing", 29)]
    assert topics[0]["topic_authorized_operations"] == 1 << WRITE | 1 << DESCRIBE_OP
    everything = broker.call(3, 8, {"topics": None})["topics"]
    assert [each["name"] for each in everything] == ["t"]
    hidden = {"topic_id": root.topics.get("hidden").topic_id, "name": None}
    (found,) = broker.call(3, 12, {"topics": [hidden]})["topics"]
    assert (found["error_code"], found["name"]) == (100, None)


def test_a_thousand_rules_of_one_request_are_all_stored(broker: Broker) -> None:
    assert set(create(broker, *(rule(f"t{number}") for number in range(1000)))) == {0}
    assert len(described(broker)) == 1000
