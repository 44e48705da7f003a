"""A denied request gets the protocol's error codes, and its connection stays open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.engine.transactions.support import Producer, committed
from tests.protocols.kafka.broker import versions
from tests.protocols.kafka.keys import METADATA, PRODUCE
from tests.protocols.kafka.messages import full_tree, one_batch
from tests.protocols.kafka.trees import Tree
from tests.protocols.kafka.wire import serving
from tidemill.engine.api import TopicInfo
from tidemill.engine.authorize import Authorizer, Operation, Principal, Resource
from tidemill.kafka_codec.schema import request_type
from tidemill.protocols.kafka.apis import VERSIONS

OFFSET_COMMIT, DELETE_TOPICS, QUORUM = 8, 20, 55
CODES = {"TOPIC": 29, "GROUP": 30, "CLUSTER": 31, "TRANSACTIONAL_ID": 53}
"""What a refusal for a kind of resource is called."""

CLUSTER = "CLUSTER kafka-cluster"
NEEDED = {
    **dict.fromkeys((17, 18, 36, 46, 60, 74), ""),
    **dict.fromkeys((2, 3, 23, 75), "DESCRIBE TOPIC t"),
    **dict.fromkeys((1, 61), "READ TOPIC t"),
    **dict.fromkeys((20, 21), "DELETE TOPIC t"),
    **dict.fromkeys((33, 44), "ALTER_CONFIGS TOPIC t"),
    **dict.fromkeys((10, 15, 16, 69, 77), "DESCRIBE GROUP g"),
    **dict.fromkeys((11, 12, 13, 14, 78, 79), "READ GROUP g"),
    **dict.fromkeys((42, 92), "DELETE GROUP g"),
    **dict.fromkeys((9, 90), "DESCRIBE GROUP g, DESCRIBE TOPIC t"),
    **dict.fromkeys((68, 76), "READ GROUP g, DESCRIBE TOPIC t"),
    **dict.fromkeys((8, 91), "READ GROUP g, READ TOPIC t"),
    **dict.fromkeys((22, 26), "WRITE TRANSACTIONAL_ID x"),
    **dict.fromkeys((65, 66), "DESCRIBE TRANSACTIONAL_ID x"),
    **dict.fromkeys((29, 35, 50, 55), f"DESCRIBE {CLUSTER}"),
    **dict.fromkeys((30, 31, 34, 43, 45, 51, 57), f"ALTER {CLUSTER}"),
    **dict.fromkeys((0, 24), "WRITE TRANSACTIONAL_ID x, WRITE TOPIC t"),
    19: "CREATE TOPIC t",
    25: "WRITE TRANSACTIONAL_ID x, READ GROUP g",
    27: f"CLUSTER_ACTION {CLUSTER}",
    28: "WRITE TRANSACTIONAL_ID x, READ GROUP g, READ TOPIC t",
    32: "DESCRIBE_CONFIGS TOPIC t",
    37: "ALTER TOPIC t",
    47: "DELETE GROUP g, READ TOPIC t",
    48: f"DESCRIBE_CONFIGS {CLUSTER}",
    49: f"ALTER_CONFIGS {CLUSTER}",
}
"""API key -> the rules that a request needs in the newest version, in the order of the checks.
Requests of share groups, of which there is none here, are refused for their topics later: see the
tests of the door."""

FILTERED = {16: "groups", 66: "transaction_states"}
"""API key -> the list in its answer, which leaves out what the principal can't describe."""
PROTECTED = [key for key, rules in NEEDED.items() if rules and key not in FILTERED]
OPEN = [key for key, rules in NEEDED.items() if not rules]
"""Logins, versions, the cluster, and what does not exist here: nothing to protect."""


class DenyAll(Authorizer):
    """Denies everything, except what the setup needs."""

    def __init__(self) -> None:
        self.is_open = True

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        return self.is_open


KNOWN: Tree = {
    **dict.fromkeys(("group_id", "key"), "g"),
    **dict.fromkeys(("topic", "topic_name", "name", "resource_name"), "t"),
    **dict.fromkeys(("transactional_id", "v3_and_below_transactional_id"), "x"),
    **dict.fromkeys(("groups", "partitions", "cursor"), None),
    **dict.fromkeys(("timestamp", "session_epoch", "current_leader_epoch"), -1),
    **dict.fromkeys(("key_type", "session_id", "config_operation", "partition_index"), 0),
    **dict.fromkeys(("index", "producer_epoch", "isolation_level"), 0),
    "groups_names": ["g"],
    "coordinator_keys": ["g"],
    "transactional_ids": ["x"],
    "topic_names": ["t"],
    "acks": 1,
    "timeout_ms": 1000,
    "max_wait": 10,
    "resource_type": 2,
    "partition_indexes": [0],
    "records": one_batch(),
    "producer_id": 5,
    "transaction_timeout": 60_000,
    "validate_only": False,
}
"""Field -> a value that names what exists, and is valid in all APIs."""


def _valid(tree: Any, topic_id: UUID) -> Any:
    """Replace sample values by names and numbers of existing things."""
    known: Tree = KNOWN | {"topic_id": topic_id}
    if isinstance(tree, list):
        return [_valid(each, topic_id) for each in tree]
    if not isinstance(tree, dict):
        return tree
    valid = {}
    for name, value in tree.items():
        nested = isinstance(value, list) and value and isinstance(value[0], dict)
        if nested or isinstance(value, dict):
            valid[name] = None if name == "cursor" else _valid(value, topic_id)
        elif name in ("partitions", "groups") and isinstance(value, list):
            valid[name] = [0] if name == "partitions" else ["g"]
        else:
            valid[name] = known.get(name, value)
    return valid


def request(key: int, version: int, topic: TopicInfo) -> Tree:
    tree: Tree = _valid(full_tree(request_type(key, version), size=1), topic.topic_id)
    if key in (METADATA, DELETE_TOPICS) and "topics" in tree:
        tree["topics"][0]["topic_id"] = None
    if key == QUORUM:
        tree["topics"][0]["topic_name"] = "__cluster_metadata"
    return tree


def codes(tree: Any) -> Iterator[int]:
    """Yield all error codes in an answer."""
    if isinstance(tree, list):
        for each in tree:
            yield from codes(each)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from codes(value)


async def answers(key: int, since: int = 0) -> list[Tree]:
    """Send a request in each version to an engine that denies everything; return the answers."""
    gate = DenyAll()
    async with serving(authorizer=gate) as s:
        topic = await s.make_topic("t")
        producer = await Producer(s.engine).init()
        await producer.send("t", b"first")
        await producer.commit()
        gate.is_open = False
        client = await s.client()
        found = [
            await client.call(key, version, request(key, version, topic))
            for version in versions(key, since)
        ]
        gate.is_open = True
        assert await committed(s.engine, "t") == [b"first"]
    return found


def test_the_rights_of_each_api_are_known() -> None:
    assert set(NEEDED) == set(VERSIONS)


@pytest.mark.parametrize("key", PROTECTED, ids=lambda key: VERSIONS[key][0])
async def test_a_denied_request_gets_the_code_of_its_resource(key: int) -> None:
    for answer in await answers(key, since=3 if key == PRODUCE else 0):
        found = {code for code in codes(answer) if code}
        # Topics that are named by id are looked up before the group is checked.
        by_id = key == OFFSET_COMMIT and "topic_id" in answer["topics"][0]
        kind = "TOPIC" if by_id else NEEDED[key].split()[1]
        assert found == {CODES[kind]}


@pytest.mark.parametrize("key", sorted(FILTERED), ids=lambda key: VERSIONS[key][0])
async def test_lists_leave_out_what_is_denied(key: int) -> None:
    for answer in await answers(key):
        assert answer[FILTERED[key]] == []


@pytest.mark.parametrize("key", sorted(OPEN), ids=lambda key: VERSIONS[key][0])
async def test_other_apis_are_answered(key: int) -> None:
    for answer in await answers(key):
        assert not set(CODES.values()) & set(codes(answer))
