"""Absurd requests of share consumers against an engine with a group that holds records."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from uuid import UUID

from kio.schema.errors import ErrorCode

from tests.protocols.kafka.share_group import NONE, Group
from tests.protocols.kafka.trees import Tree, picked
from tests.protocols.kafka.wire import talking
from tests.support.logs import append_records
from tidemill.log.format.records import NewRecord
from tidemill.settings import Groups

OFFSETS, ALTER, DELETE = 90, 91, 92
COUNT = 10
MEMBER, OTHER = "member", "other"
LARGEST = 2**63 - 1
ACCEPT, RENEW = 1, 4
INVALID, NOT_HELD = 42, 121
UNKNOWN_PARTITION, UNKNOWN_ID = 3, 100
NO_SESSION, WRONG_EPOCH, TOO_MANY = 122, 123, 133


def one_batch(first: int, last: int, *types: int) -> list[tuple[int, int, list[int]]]:
    return [(first, last, list(types))]


async def check_held(group: Group) -> None:
    """Check that the member still holds all records, and nobody else gets them."""
    for member in (MEMBER, OTHER):
        assert (await group.fetch(member))["responses"] == []
    tree = {"groups": [{"group_id": "g", "topics": None}]}
    (found,) = (await group.client.call(OFFSETS, 1, tree))["groups"]
    ((partition,),) = (topic["partitions"] for topic in found["topics"])
    assert (partition["start_offset"], partition["lag"]) == (0, COUNT)
    assert await group.acknowledge(MEMBER, one_batch(0, COUNT - 1, ACCEPT)) == NONE


@contextlib.asynccontextmanager
async def holding() -> AsyncIterator[Group]:
    """Serve a group that holds records for as long as a test can take."""
    groups = Groups(share_record_lock_ms=3_600_000, share_session_timeout_ms=3_600_000)
    async with talking(groups=groups) as (s, client):
        group = Group(client, s.topic_id("t"))
        for member in (MEMBER, OTHER):
            await group.join(member)
            await group.fetch(member)  # the group begins at the end
        records = [NewRecord(b"k", b"%d" % number) for number in range(COUNT)]
        await append_records(s.engine, "t", 0, records)
        assert await group.acquired(MEMBER) == [(0, COUNT - 1)]
        yield group
        await check_held(group)
        assert not s.engine.failed.done()


ACKNOWLEDGEMENTS = {
    "before the first offset": (one_batch(-1, 5, ACCEPT), INVALID),
    "backwards": (one_batch(5, 4, ACCEPT), INVALID),
    "to the largest number": (one_batch(0, LARGEST, ACCEPT), INVALID),
    "to almost the largest number": (one_batch(0, LARGEST - 1, ACCEPT), NOT_HELD),
    "at almost the largest number": (one_batch(LARGEST - 1, LARGEST - 1, ACCEPT), NOT_HELD),
    "no type": (one_batch(0, 9), INVALID),
    "too few types": (one_batch(0, 9, *[ACCEPT] * 9), INVALID),
    "too many types": (one_batch(0, 9, *[ACCEPT] * 11), INVALID),
    "very many types": (one_batch(0, 9, *[ACCEPT] * 50_000), INVALID),
    "an unknown type": (one_batch(0, 9, 5), INVALID),
    "a negative type": (one_batch(0, 9, -1), INVALID),
    "a renewal that is not announced": (one_batch(0, 9, RENEW), INVALID),
    "twice the same": (one_batch(0, 9, ACCEPT) * 2, INVALID),
    "overlapping": ([*one_batch(0, 5, ACCEPT), *one_batch(5, 9, ACCEPT)], INVALID),
    "not in order": ([*one_batch(5, 9, ACCEPT), *one_batch(0, 4, ACCEPT)], INVALID),
    "one too many": (one_batch(0, COUNT, ACCEPT), NOT_HELD),
    "behind the end": (one_batch(COUNT, 2 * COUNT, ACCEPT), NOT_HELD),
    "one good and one bad": ([*one_batch(0, 4, ACCEPT), *one_batch(50, 60, ACCEPT)], NOT_HELD),
    "very many": ([(2 * n, 2 * n, [ACCEPT]) for n in range(20_000)], NOT_HELD),
}


async def test_wrong_acknowledgements_settle_nothing() -> None:
    async with holding() as group:
        for name, (batches, expected) in ACKNOWLEDGEMENTS.items():
            assert await group.acknowledge(MEMBER, batches) == expected, name
        batch = one_batch(0, 9, ACCEPT)
        assert await group.acknowledge(OTHER, batch) == NOT_HELD
        assert await group.acknowledge(MEMBER, batch, partition=999) == UNKNOWN_PARTITION
        assert await group.acknowledge(MEMBER, batch, partition=-1) == UNKNOWN_PARTITION
        assert await group.acknowledge(MEMBER, batch, topic_id=UUID(int=1)) == UNKNOWN_ID


async def test_wrong_epochs_and_members_are_named() -> None:
    async with holding() as group:
        batch = one_batch(0, 9, ACCEPT)
        now = group.epochs[MEMBER]
        for epoch in (0, now - 1, now + 1, -2, -(2**31), 2**31 - 1):
            answer = await group.acknowledge(MEMBER, batch, share_session_epoch=epoch)
            assert answer == WRONG_EPOCH, epoch
        for epoch in (now + 1, -2, -(2**31), 2**31 - 1):
            fetched = await group.fetch(MEMBER, share_session_epoch=epoch)
            assert fetched["error_code"] == WRONG_EPOCH, epoch
        for epoch in (1, 5, -1):
            nobody: Tree = {"member_id": "nobody", "share_session_epoch": epoch}
            assert await group.acknowledge(MEMBER, batch, **nobody) == NO_SESSION
        assert await group.acknowledge(MEMBER, batch, member_id="") == INVALID
        assert await group.acknowledge(MEMBER, batch, group_id="h") == NO_SESSION


async def test_absurd_fetches_give_nothing() -> None:
    async with holding() as group:
        for name in ("max_wait", "min_bytes", "max_bytes", "max_records", "batch_size"):
            for value in (-1, -(2**31), 0) if name == "max_wait" else (-1, -(2**31), 2**31 - 1):
                fetched = await group.fetch(OTHER, **{name: value})
                assert (fetched["error_code"], fetched["responses"]) == (NONE, []), name
        part: Tree = {"acknowledgement_batches": []}
        many = [part | {"partition_index": number} for number in range(20_000)]
        topics = [{"topic_id": UUID(int=5), "partitions": many}]
        epoch = group.epochs[OTHER]
        fetched = await group.fetch(OTHER, topics=topics)
        assert fetched["error_code"] == TOO_MANY
        # The epoch was used, and the session has no partitions any more.
        group.epochs[OTHER] = epoch + 1


async def test_offsets_of_a_group_with_members_stay() -> None:
    async with holding() as group:
        not_empty = ErrorCode.non_empty_group.value
        for start in (-(2**63), -1, 0, 5, LARGEST):
            partitions = [{"partition_index": 0, "start_offset": start}]
            topics = [{"topic_name": "t", "partitions": partitions}]
            answer = await group.client.call(ALTER, 0, {"group_id": "g", "topics": topics})
            assert answer["error_code"] == not_empty
        names = [{"topic_name": name} for name in ("t", "t", "", "x" * 30_000)]
        answer = await group.client.call(DELETE, 0, {"group_id": "g", "topics": names})
        assert answer["error_code"] == not_empty
        numbers = [-1, 2, 2**31 - 1, -(2**31)]
        asked = [{"topic_name": "t", "partitions": numbers}]
        tree = {"groups": [{"group_id": "g", "topics": asked}]}
        (found,) = (await group.client.call(OFFSETS, 1, tree))["groups"]
        (topic,) = found["topics"]
        assert picked(topic["partitions"], "error_code") == [(UNKNOWN_PARTITION,)] * 4
