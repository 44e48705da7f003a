"""DeleteRecords of a Kafka client on the topic of a queue."""

from __future__ import annotations

from pathlib import Path

from tests.engine.queues.harness import connected, turns, until


async def test_deleted_records_leave_the_queue_at_once(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.declare("jobs", {"x-message-ttl": 3_600_000})
        await client.publish("jobs", b"0", b"1", b"2", b"3")
        lane = client.engine._queues.registry.get("jobs").lanes[0]
        await client.engine.records.delete_before("jobs", 0, 3)
        assert (lane.window.start, lane.window.next) == (3, 3)  # nobody has looked
        await until(lambda: lane.stored_start == 3)
        assert await client.drain("jobs") == [b"3"]


async def test_the_next_message_comes_to_a_consumer_that_waits_for_the_queue_to_be_in_its_length(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as client:
        await client.declare("jobs", {"x-max-length": 2, "x-overflow": "throttle"})
        await client.publish("jobs", b"0", b"1", b"2")
        assert client.publisher.hold_ms() > 0
        await client.engine.records.delete_before("jobs", 0, None)
        assert client.publisher.hold_ms() == 0
        reader = await client.consume("jobs")
        await turns()
        assert reader.got == []
        await client.publish("jobs", b"3")
        (got,) = await reader.wait(1)
        assert got.value == b"3"
