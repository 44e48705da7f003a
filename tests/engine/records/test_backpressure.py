"""What the broker does when a group falls behind: hold producers back, drop, or warn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.engine.support import offset_at, running
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logged import logged
from tests.support.logs import append_records
from tidemill.clock import ManualClock
from tidemill.engine import housekeeping
from tidemill.engine.api import CommitRequest, NewRecord, NewTopic, OffsetToCommit, Position
from tidemill.engine.engine import Engine
from tidemill.errors import TidemillError

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def only_the_test_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "CHECK_INTERVAL_MS", 10**9)


@asynccontextmanager
async def policy(
    name: str, **configs: str
) -> AsyncIterator[tuple[Engine, ManualClock, list[dict[str, object]]]]:
    """Start a broker with topic ``t``, which has this policy for group ``g``.

    The list gets the log lines about it at the end.
    """
    clock, found = ManualClock(NOW_MS), list[dict[str, object]]()
    overrides = {key.replace("_", "."): value for key, value in configs.items()}
    overrides |= {"lag.policy": name, "lag.group": "g"}
    with logged() as lines:
        async with running(fs=FaultyFileSystem(), clock=clock) as engine:
            (created,) = await engine.topics.create([NewTopic("t", 2, configs=overrides)])
            assert not isinstance(created, TidemillError)
            yield engine, clock, found
    found += [dict(line) for line in lines if str(line["event"]).startswith("lag.")]


async def produce(engine: Engine, count: int, partition: int = 0) -> None:
    for _ in range(count):
        await append_records(engine, "t", partition, [NewRecord(b"k", bytes(100))])


async def commit(engine: Engine, offset: int, partition: int = 0) -> None:
    request = CommitRequest("g", -1, "", None, (OffsetToCommit("t", partition, offset),))
    assert await engine.groups.commit(request) == [None]


async def check(engine: Engine) -> None:
    await engine._backpressure.check()


async def produce_and_check(engine: Engine, count: int, partition: int = 0) -> None:
    await produce(engine, count, partition)
    await check(engine)


def hold_ms(engine: Engine) -> int:
    return engine.records.hold_ms([("t", 0), ("t", 1)])


async def test_producers_are_held_back_until_the_group_is_within_the_limit() -> None:
    async with policy("throttle", lag_max_records="10") as (engine, _, lines):
        await produce_and_check(engine, 10)
        assert hold_ms(engine) == 0
        await produce_and_check(engine, 1)
        assert hold_ms(engine) > 0
        assert engine.records.hold_ms([("other", 0)]) == 0
        await commit(engine, 1)
        await check(engine)
        assert hold_ms(engine) == 0
        assert await offset_at(engine, Position.EARLIEST) == 0
    assert [line["event"] for line in lines] == ["lag.producers_held_back", "lag.within_limit"]
    assert [lines[0][field] for field in ("records", "partition", "group")] == [11, "t-0", "g"]


async def test_what_was_written_since_the_last_measurement_counts() -> None:
    async with policy("throttle", lag_max_records="10") as (engine, _, lines):
        await check(engine)
        await produce(engine, 11)
        assert engine.records.hold_ms([("t", 0)]) > 0
        assert engine.records.hold_ms([("t", 1)]) == 0
    assert lines == []


async def test_each_partition_has_the_limit() -> None:
    async with policy("throttle", lag_max_records="10") as (engine, _, lines):
        await produce(engine, 8, 0)
        await produce_and_check(engine, 8, 1)
        assert hold_ms(engine) == 0
        await produce_and_check(engine, 8, 1)
        assert hold_ms(engine) > 0
    assert [line["partition"] for line in lines] == ["t-1"]


async def test_the_oldest_records_are_dropped() -> None:
    async with policy("drop", lag_max_records="10") as (engine, _, lines):
        await produce(engine, 50)
        await commit(engine, 20)
        await check(engine)
        assert await offset_at(engine, Position.EARLIEST) == 40
        await check(engine)
        assert await offset_at(engine, Position.EARLIEST) == 40
        assert hold_ms(engine) == 0
    (line,) = lines
    assert line["event"] == "lag.records_dropped"
    assert (line["records"], line["start_offset"]) == (20, 40)


async def test_bytes_and_age_limit_too() -> None:
    async with policy("drop", lag_max_bytes="900") as (engine, _, _):
        await produce_and_check(engine, 50)
        assert await offset_at(engine, Position.EARLIEST) == 45

    async with policy("drop", lag_max_ms="3000") as (engine, clock, _):
        for _ in range(10):
            await produce(engine, 1)
            clock.advance(1000)
        await check(engine)
        assert await offset_at(engine, Position.EARLIEST) == 7


async def test_an_alert_is_logged_once_a_minute_and_changes_nothing() -> None:
    async with policy("alert", lag_max_records="10") as (engine, clock, lines):
        await produce_and_check(engine, 30)
        await check(engine)
        assert hold_ms(engine) == 0
        assert await offset_at(engine, Position.EARLIEST) == 0
        clock.advance(60_000)
        await check(engine)
    assert [line["event"] for line in lines] == ["lag.over_limit"] * 2


async def test_the_policy_can_be_changed_and_removed() -> None:
    async with policy("throttle", lag_max_records="10") as (engine, _, _):
        await produce_and_check(engine, 30)
        assert hold_ms(engine) > 0
        change = {"lag.policy": "buffer"}
        await engine.configs.replace_topic("t", change)
        assert hold_ms(engine) == 0
        await engine.configs.replace_topic("t", {"lag.policy": "throttle", "lag.group": "g"})
        await engine.topics.delete(["t"])
        await check(engine)
        assert hold_ms(engine) == 0


async def test_without_a_policy_nothing_is_watched() -> None:
    async with policy("buffer", lag_max_records="10") as (engine, _, lines):
        await produce_and_check(engine, 30)
        assert hold_ms(engine) == 0
    assert lines == []
