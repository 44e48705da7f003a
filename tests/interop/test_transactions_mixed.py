"""One transactional id, used by clients of both protocols in turn (an upgrade, and back).

Spoken by hand: no client changes its protocol while it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.interop.conftest import MakeTopic
from tests.protocols.kafka.wire import Client
from tidemill.log.format import batch

PRODUCE, FETCH, INIT, ADD_PARTITIONS, END = 0, 1, 22, 24, 26
RECORD = bytes([16, 0, 0, 0, 1, 4]) + b"hi" + bytes([0])
Identity = tuple[int, int]
AGAIN = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower,
}


def _code(answer: Any) -> int:
    return int(answer["error_code"])


def _added(answer: Any) -> int:
    (topic,) = answer["results_by_topic_v3_and_below"]
    return int(topic["results_by_partition"][0]["partition_error_code"])


def _written(answer: Any) -> int:
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


class Raw:
    """A transactional producer of either protocol on one connection."""

    def __init__(self, client: Client, name: str, topic: str) -> None:
        self.client, self.name, self.topic = client, name, topic

    async def patiently(
        self, key: int, version: int, tree: dict[str, Any], code: Callable[[Any], int] = _code
    ) -> dict[str, Any]:
        """Ask again while the transaction before is being ended, as clients do."""
        async with asyncio.timeout(300):
            while code(answer := await self.client.call(key, version, tree)) in AGAIN:
                await asyncio.sleep(0.05)
        return answer

    async def init(self) -> Identity:
        asked = {"transactional_id": self.name, "transaction_timeout": 60_000}
        answer = await self.patiently(INIT, 4, asked)
        assert answer["error_code"] == 0
        return answer["producer_id"], answer["producer_epoch"]

    async def add(self, producer: Identity) -> int:
        answer = await self.patiently(
            ADD_PARTITIONS,
            3,
            {
                "v3_and_below_transactional_id": self.name,
                "v3_and_below_producer_id": producer[0],
                "v3_and_below_producer_epoch": producer[1],
                "v3_and_below_topics": [{"name": self.topic, "partitions": [0]}],
            },
            _added,
        )
        return _added(answer)

    async def write(self, producer: Identity, sequence: int, version: int) -> int:
        records = batch.build_batch(
            base_offset=0,
            body=RECORD,
            attributes=0x10,
            last_offset_delta=0,
            base_timestamp=1_700_000_000_000,
            max_timestamp=1_700_000_000_000,
            record_count=1,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
        partitions = [{"index": 0, "records": bytes(records)}]
        answer = await self.patiently(
            PRODUCE,
            version,
            {
                "transactional_id": self.name,
                "acks": -1,
                "timeout": 5_000,
                "topic_data": [{"name": self.topic, "partition_data": partitions}],
            },
            _written,
        )
        return _written(answer)

    async def end(self, producer: Identity, version: int, commit: bool = True) -> Identity:
        asked = {
            "transactional_id": self.name,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": commit,
        }
        answer = await self.patiently(END, version, asked)
        assert answer["error_code"] == 0
        return answer.get("producer_id", -1), answer.get("producer_epoch", -1)

    async def first(self, producer: Identity, sequence: int) -> None:
        """A transaction of a client that announces its partitions."""
        assert await self.add(producer) == 0
        assert await self.write(producer, sequence, 11) == 0
        await self.end(producer, 4)

    async def second(self, producer: Identity) -> Identity:
        """A transaction of a client that does not; returns the identity for its next one."""
        assert await self.write(producer, 0, 12) == 0
        return await self.end(producer, 5)


@pytest.fixture
def play(
    bootstrap: str, make_topic: MakeTopic, unique: Callable[[str], str]
) -> Callable[[Callable[[Raw], Any]], None]:
    """Runs a scenario with a producer of a fresh name."""
    host, _, port = bootstrap.rpartition(":")

    def run(scenario: Callable[[Raw], Any]) -> None:
        topic = make_topic()

        async def connected() -> None:
            client = await Client.connect((host, int(port)))
            await scenario(Raw(client, unique("txn"), topic))
            client.close()

        asyncio.run(connected())

    return run


Play = Callable[[Callable[[Raw], Any]], None]


def test_clients_of_both_protocols_take_turns(play: Play) -> None:
    async def scenario(raw: Raw) -> None:
        old = await raw.init()
        await raw.first(old, 0)
        await raw.first(old, 1)
        new = await raw.init()
        assert new == (old[0], old[1] + 1)
        following = await raw.second(new)
        assert following == (new[0], new[1] + 1)
        following = await raw.second(following)
        again = await raw.init()
        assert again == (following[0], following[1] + 1)
        await raw.first(again, 0)

    play(scenario)


def test_each_epoch_of_the_second_protocol_fences_the_one_before(play: Play) -> None:
    async def scenario(raw: Raw) -> None:
        producer = await raw.init()
        following = await raw.second(producer)
        late = await raw.write(producer, 1, 12)
        assert late == ErrorCode.invalid_producer_epoch
        assert await raw.write(following, 0, 12) == 0
        assert await raw.write(producer, 1, 12) == ErrorCode.invalid_producer_epoch
        await raw.end(following, 5, commit=False)

    play(scenario)


def test_end_that_is_asked_for_twice_is_answered_alike(play: Play) -> None:
    async def scenario(raw: Raw) -> None:
        producer = await raw.init()
        assert await raw.write(producer, 0, 12) == 0
        first = await raw.end(producer, 5)
        assert await raw.end(producer, 5) == first
        old = await raw.init()
        assert await raw.add(old) == 0
        assert await raw.end(old, 4) == await raw.end(old, 4)

    play(scenario)


def test_first_protocol_must_announce_its_partitions(play: Play) -> None:
    async def scenario(raw: Raw) -> None:
        producer = await raw.init()
        assert await raw.write(producer, 0, 10) == ErrorCode.invalid_txn_state
        assert await raw.write(producer, 0, 11) == ErrorCode.transaction_abortable
        await raw.first(producer, 0)

    play(scenario)
