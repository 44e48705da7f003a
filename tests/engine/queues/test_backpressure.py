"""Publishers that outrun consumers: the overflow ``throttle``, and the lag policy of a topic."""

from __future__ import annotations

from pathlib import Path

from tests.engine.queues.harness import Client, connected, running, until
from tidemill.engine.api import AlterOp, CommitRequest, ConfigChange, OffsetToCommit


async def test_a_full_queue_holds_its_publishers_back_and_takes_everything(tmp_path: Path) -> None:
    async with running(tmp_path) as engine:
        client, other = Client(engine), Client(engine)
        await client.declare("jobs", {"x-max-length": 2, "x-overflow": "throttle"})
        await client.declare("free")
        assert await client.publish("jobs", b"1") == [True]
        assert client.publisher.hold_ms() == 0
        assert await client.publish("jobs", b"2", b"3") == [True, True]
        assert await other.publish("free", b"x") == [True]
        assert client.publisher.hold_ms() > 0
        assert other.publisher.hold_ms() == 0
        await client.get("jobs", no_ack=True)
        assert client.publisher.hold_ms() > 0
        assert await client.drain("jobs") == [b"2", b"3"]
        assert client.publisher.hold_ms() == 0


async def test_the_lag_policy_of_a_queues_topic_holds_publishers_back(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.declare("jobs")
        await client.publish("jobs", b"0")
        changes = {"lag.policy": "throttle", "lag.group": "g", "lag.max.records": "2"}
        await client.engine.configs.alter_topic(
            "jobs", [ConfigChange(name, AlterOp.SET, value) for name, value in changes.items()]
        )
        await client.publish("jobs", b"1", b"2", b"3")
        assert client.publisher.hold_ms() > 0
        request = CommitRequest("g", -1, "", None, (OffsetToCommit("jobs", 0, 4),))
        assert await client.engine.groups.commit(request) == [None]
        await until(lambda: client.publisher.hold_ms() == 0)
