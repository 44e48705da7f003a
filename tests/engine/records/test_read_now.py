"""Reads that don't wait: equal to those that can, or left to them."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from tests.engine.records.support import FakeBudget
from tests.engine.support import produce, query, write
from tidemill import system
from tidemill.engine.api import Isolation, NewTopic, PartitionRead, ReadQuery, ReadResult
from tidemill.engine.engine import Engine
from tidemill.log.disk.slice import Slice
from tidemill.log.names import TopicPartition

pytestmark = [
    pytest.mark.disk,
    pytest.mark.skipif(
        not hasattr(os, "RWF_NOWAIT"), reason="only Linux reads what is in the page cache alone"
    ),
]

PARTITIONS = 5


@pytest.fixture
def engine(real_engine: Engine) -> Engine:
    return real_engine


async def fill(engine: Engine) -> None:
    await engine.topics.create([NewTopic("t", PARTITIONS)])
    value = os.urandom(900)
    for number in range(40):
        await produce(engine, write("t", *[value] * (number % 4 + 1), partition=number % 4))
        if number % 3 == 0:
            await produce(engine, *[write("t", *[value] * 60)])


def seen(result: ReadResult) -> tuple[object, ...]:
    """Return everything that a client is sent."""
    lent = result.lent
    records = result.records if lent is None else os.pread(lent.fd, len(lent), lent.position)
    return (
        bytes(records),
        lent is None,
        result.high_watermark,
        result.last_stable_offset,
        result.log_start_offset,
        result.aborted,
        type(result.error),
    )


async def test_both_give_the_same(engine: Engine) -> None:
    await fill(engine)
    random_ = random.Random(3)
    for _ in range(300):
        reads = [
            PartitionRead(
                random_.choice(["t"] * 9 + ["missing"]),
                random_.randrange(PARTITIONS + 1),
                random_.choice((-1, 0, 5, 19, 20, 200, 100_000)),
                random_.choice((0, 1, 500, 3000, 100_000, 1 << 20)),
                random_.choice((None, None, 0, 99)),
            )
            for _ in range(random_.randrange(1, 8))
        ]
        asked = ReadQuery(
            reads,
            max_wait_ms=0,
            min_bytes=random_.choice((0, 1, 10_000)),
            max_bytes=random_.choice((0, 100, 5000, 1 << 22)),
            isolation=random_.choice(list(Isolation)),
            lends=random_.random() < 0.5,
        )
        now = engine.records.read_now(asked)
        assert now is not None
        later = await engine.records.read(asked)
        assert [seen(each) for each in now] == [seen(each) for each in later]


async def test_what_must_wait_is_left_to_the_other_read(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    await fill(engine)
    log = engine._store.partitions[TopicPartition("t", 0)]
    end = log.high_watermark
    at_end = replace(query(("t", 0, end)), max_wait_ms=1000, min_bytes=1)
    assert engine.records.read_now(at_end) is None
    at_end.max_wait_ms = 0
    assert engine.records.read_now(at_end) is not None
    many = replace(query(*[("t", 0, 0)] * 40), max_wait_ms=0)
    assert engine.records.read_now(many) is None
    asked = query(("t", 0, 0))
    for share in (lambda size: size - 1, lambda _: None):
        budget = FakeBudget(share)
        assert engine.records.read_now(replace(asked, budget=budget)) is None
        assert budget.held == 0
    assert engine.records.read_now(replace(asked, budget=FakeBudget(lambda size: size))) is not None
    monkeypatch.setattr(Slice, "load_nowait", lambda _: None)
    assert engine.records.read_now(asked) is None


@pytest.mark.skipif(not system.can_send_files(), reason="sendfile or cachestat is missing")
async def test_a_range_that_is_not_cached_is_left_to_a_thread(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    await fill(engine)
    asked = replace(query(("t", 0, 0)), lends=True)
    lent = engine.records.read_now(asked)
    assert lent is not None
    assert lent[0].lent is not None
    monkeypatch.setattr(system, "is_cached", lambda *_: False)
    assert engine.records.read_now(asked) is None
