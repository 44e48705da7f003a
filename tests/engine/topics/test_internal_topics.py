"""The broker's own topics are listed from their first use, and found by name before it."""

from __future__ import annotations

from pathlib import Path

from tidemill.engine.api import CommitRequest, InitProducer, OffsetToCommit
from tidemill.engine.engine import Engine
from tidemill.settings import Settings

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def listed(engine: Engine) -> list[str]:
    return [topic.name for topic in engine.topics.all()]


async def test_internal_topics_are_listed_from_their_first_use_also_after_a_restart(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path)
    engine = Engine(settings)
    await engine.start()
    assert listed(engine) == []
    for name in (OFFSETS, TRANSACTIONS):
        assert engine.topics.get(name).internal
        assert engine.configs.of_topic(name)
    await engine.topics.ensure("t")
    assert listed(engine) == ["t"]
    offset = OffsetToCommit("t", 0, 0)
    assert await engine.groups.commit(CommitRequest("g", -1, "", None, (offset,))) == [None]
    assert listed(engine) == [OFFSETS, "t"]
    await engine.transactions.init(InitProducer("id", 60_000))
    assert listed(engine) == [OFFSETS, TRANSACTIONS, "t"]
    await engine.stop()
    engine = Engine(settings)
    await engine.start()
    assert listed(engine) == [OFFSETS, TRANSACTIONS, "t"]
    await engine.stop()
