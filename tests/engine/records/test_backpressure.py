"""What the broker does when a group falls behind: hold producers back, drop, or warn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest
import structlog

from tests.engine.transactions.support import run, running
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import append_records
from tidemill import telemetry
from tidemill.clock import ManualClock
from tidemill.engine import housekeeping
from tidemill.engine.api import CommitRequest, NewRecord, NewTopic, OffsetToCommit, Position
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def only_the_test_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "CHECK_INTERVAL_MS", 10**9)


@pytest.fixture(autouse=True)
def logged_as_in_a_broker() -> Iterator[None]:
    """Log information, too. In tests only warnings are logged."""
    telemetry.configure("info")
    yield
    telemetry.configure("warning")


Test = Callable[[Engine, ManualClock], Awaitable[None]]


def with_policy(policy: str, test: Test, **configs: str) -> list[dict[str, object]]:
    """Run a test on topic ``t`` with this policy for group ``g``; return the log lines."""
    clock = ManualClock(NOW_MS)

    async def body() -> None:
        async with running(FaultyFileSystem(), clock) as engine:
            overrides = {name.replace("_", "."): value for name, value in configs.items()}
            overrides |= {"lag.policy": policy, "lag.group": "g"}
            (created,) = await engine.topics.create([NewTopic("t", 2, configs=overrides)])
            assert not isinstance(created, TidemillError)
            await test(engine, clock)

    with structlog.testing.capture_logs() as lines:
        run(body())
    return [dict(line) for line in lines if str(line["event"]).startswith("lag.")]


async def produce(engine: Engine, count: int, partition: int = 0) -> None:
    for _ in range(count):
        await append_records(engine, "t", partition, [NewRecord(b"k", bytes(100))])


async def commit(engine: Engine, offset: int, partition: int = 0) -> None:
    request = CommitRequest("g", -1, "", None, (OffsetToCommit("t", partition, offset),))
    assert await engine.groups.commit(request) == [None]


async def check(engine: Engine) -> None:
    await engine._backpressure.check()


async def start_of(engine: Engine, partition: int = 0) -> int:
    found = await engine.records.find_offset("t", partition, Position.EARLIEST)
    assert found is not None
    return found.offset


def test_producers_are_held_back_until_the_group_is_within_the_limit() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 10)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0
        await produce(engine, 1)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) > 0
        assert engine.records.hold_ms([("other", 0)]) == 0
        await commit(engine, 1)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0
        assert await start_of(engine) == 0

    lines = with_policy("throttle", test, lag_max_records="10")
    assert [line["event"] for line in lines] == ["lag.producers_held_back", "lag.within_limit"]
    assert lines[0]["records"] == 11
    assert lines[0]["partition"] == "t-0"
    assert lines[0]["group"] == "g"


def test_what_was_written_since_the_last_measurement_counts() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await check(engine)
        await produce(engine, 11)
        assert engine.records.hold_ms([("t", 0)]) > 0
        assert engine.records.hold_ms([("t", 1)]) == 0

    assert with_policy("throttle", test, lag_max_records="10") == []


def test_each_partition_has_the_limit() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 8, 0)
        await produce(engine, 8, 1)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0
        await produce(engine, 8, 1)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) > 0

    assert [line["partition"] for line in with_policy("throttle", test, lag_max_records="10")] == [
        "t-1"
    ]


def test_the_oldest_records_are_dropped() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 50)
        await commit(engine, 20)
        await check(engine)
        assert await start_of(engine) == 40
        await check(engine)
        assert await start_of(engine) == 40
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0

    (line,) = with_policy("drop", test, lag_max_records="10")
    assert line["event"] == "lag.records_dropped"
    assert (line["records"], line["start_offset"]) == (20, 40)


def test_bytes_and_age_limit_too() -> None:
    async def by_bytes(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 50)
        await check(engine)
        assert await start_of(engine) == 45

    with_policy("drop", by_bytes, lag_max_bytes="900")  # five batches of 172 bytes

    async def by_age(engine: Engine, clock: ManualClock) -> None:
        for _ in range(10):
            await produce(engine, 1)
            clock.advance(1000)
        await check(engine)
        assert await start_of(engine) == 7

    with_policy("drop", by_age, lag_max_ms="3000")


def test_an_alert_is_logged_once_a_minute_and_changes_nothing() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 30)
        await check(engine)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0
        assert await start_of(engine) == 0
        clock.advance(60_000)
        await check(engine)

    lines = with_policy("alert", test, lag_max_records="10")
    assert [line["event"] for line in lines] == ["lag.over_limit"] * 2


def test_the_policy_can_be_changed_and_removed() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 30)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) > 0
        change = {"lag.policy": "buffer"}
        await engine.configs.replace_topic("t", change)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0
        await engine.configs.replace_topic("t", {"lag.policy": "throttle", "lag.group": "g"})
        await engine.topics.delete(["t"])
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0

    with_policy("throttle", test, lag_max_records="10")


def test_without_a_policy_nothing_is_watched() -> None:
    async def test(engine: Engine, clock: ManualClock) -> None:
        await produce(engine, 30)
        await check(engine)
        assert engine.records.hold_ms([("t", 0), ("t", 1)]) == 0

    assert with_policy("buffer", test, lag_max_records="10") == []
