"""The start offsets of share groups: groups that do not exist yet, and what is refused.

The answers are those of Apache Kafka 4.3, unless a test says something else.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.kafka.share_group import NONE, Group
from tests.protocols.kafka.trees import Tree, picked
from tests.protocols.kafka.wire import Client, talking
from tests.support.logs import append_records
from tidemill.log.format.records import NewRecord
from tidemill.settings import Groups

OFFSET_COMMIT, LIST, DESCRIBE, OFFSETS, ALTER, DELETE = 8, 16, 77, 90, 91, 92
UNKNOWN, INVALID_GROUP, NOT_FOUND, NOT_EMPTY = 3, 24, 69, 68


async def alter(client: Client, group: str, *starts: tuple[str, int, int]) -> tuple[int, list[int]]:
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": index, "start_offset": offset}]}
        for name, index, offset in starts
    ]
    answer = await client.call(ALTER, 0, {"group_id": group, "topics": topics})
    parts = [each["error_code"] for topic in answer["responses"] for each in topic["partitions"]]
    return answer["error_code"], parts


async def groups(client: Client) -> set[tuple[Any, ...]]:
    found = (await client.call(LIST, 5, {}))["groups"]
    return set(picked(found, "group_id", "group_state", "group_type"))


async def starts_of(client: Client, group: str, topics: list[Tree] | None = None) -> list[int]:
    asked = {"groups": [{"group_id": group, "topics": topics}]}
    (found,) = (await client.call(OFFSETS, 1, asked))["groups"]
    assert found["error_code"] == NONE
    return [each["start_offset"] for topic in found["topics"] for each in topic["partitions"]]


@pytest.mark.parametrize("max_bytes", [1 << 20, 1, 0, -1])
async def test_altering_the_offsets_of_a_group_creates_it_and_its_first_member_starts_there(
    max_bytes: int,
) -> None:
    """Whatever fetch.max.bytes is, a member gets a first batch whole. Apache Kafka gives it nothing
    with 0, for ever and without a wait."""
    async with talking() as (s, client):
        for n in range(5):
            await append_records(s.engine, "t", 0, [NewRecord(None, b"%d" % n)])
        assert await alter(client, "new", ("t", 0, 3)) == (NONE, [NONE])
        assert await groups(client) == {("new", "Empty", "share")}
        (found,) = (await client.call(DESCRIBE, 1, {"group_ids": ["new"]}))["groups"]
        assert (found["group_state"], found["group_epoch"]) == ("Empty", 1)
        assert await starts_of(client, "new") == [3]
        group = Group(client, s.topic_id("t"), "new")
        await group.join("member")
        acquired = await group.acquired("member", max_bytes=max_bytes)
        assert (acquired[0][0], acquired[-1][1]) == (3, 4 if max_bytes > 1 else 3)
        assert await alter(client, "new", ("t", 0, 0)) == (NOT_EMPTY, [])


@pytest.mark.parametrize(
    ("group", "starts", "answer"),
    [
        ("new", [("absent", 0, 0)], (NONE, [UNKNOWN])),
        ("new", [("t", 7, 0)], (NONE, [UNKNOWN])),  # Apache Kafka creates an empty group
        ("new", [], (NONE, [])),
        ("", [("t", 0, 0)], (INVALID_GROUP, [])),
    ],
)
async def test_offsets_that_can_not_be_set_create_no_group(
    group: str, starts: list[tuple[str, int, int]], answer: tuple[int, list[int]]
) -> None:
    async with talking() as (_, client):
        assert await alter(client, group, *starts) == answer
        assert await groups(client) == set()


async def test_a_group_of_another_kind_keeps_its_name() -> None:
    async with talking() as (_, client):
        commit = {"partition_index": 0, "committed_offset": 0, "committed_metadata": None}
        member = {"generation_id_or_member_epoch": -1, "member_id": ""}
        topics = [{"name": "t", "partitions": [commit]}]
        await client.call(OFFSET_COMMIT, 8, member | {"group_id": "taken", "topics": topics})
        assert await alter(client, "taken", ("t", 0, 0)) == (NOT_FOUND, [])
        assert {each[0] for each in await groups(client)} == {"taken"}


async def test_a_group_that_does_not_exist_has_no_offsets() -> None:
    async with talking() as (_, client):
        assert await starts_of(client, "absent") == []
        asked = [{"topic_name": "t", "partitions": [0]}]
        assert await starts_of(client, "absent", asked) == [-1]
        tree = {"group_id": "absent", "topics": [{"topic_name": "t"}]}
        assert (await client.call(DELETE, 0, tree))["error_code"] == NOT_FOUND


async def test_groups_without_members_are_limited() -> None:
    limits = Groups(max_total_bytes=20_000, max_member_bytes=1024, max_group_bytes=4096)
    async with talking(groups=limits) as (_, client):
        answers = [(await alter(client, f"g{n}", ("t", 0, 0)))[0] for n in range(20)]
        assert answers[0] == NONE
        assert answers[-1] == 81  # GROUP_MAX_SIZE_REACHED
        assert len(await groups(client)) == answers.count(NONE)
