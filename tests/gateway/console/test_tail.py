"""Following a topic in a page: what a viewer gets of records that come and go between two looks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.console.views import view_of
from tidemill.gateway import following
from tidemill.gateway.console.contract import View
from tidemill.gateway.console.messages import pages
from tidemill.gateway.console.messages import tail as tail_module
from tidemill.gateway.following import Recent, Tail
from tidemill.gateway.topics import Topic
from tidemill.record_json import to_line

TOPIC = Topic("t", "", 1)


def recent(offset: int) -> Recent:
    about: dict[str, Any] = {"topic": "t", "partition": 0, "offset": offset, "timestamp_ms": 1}
    return Recent("t", 0, offset, to_line(**about, key=None, value=b"x" * 100, headers=[]))


def following_view(tail: Tail) -> View:
    """A view of a topic that is followed already, and renders the places of rows."""

    @asynccontextmanager
    async def follow(topic: Topic) -> AsyncIterator[tuple[Tail, None]]:
        yield tail, None

    async def topic(name: str) -> Topic:
        return TOPIC

    view = view_of(
        pages.LIST,
        "topic=t",
        hub=SimpleNamespace(following=follow, is_stopping=False),
        catalog=SimpleNamespace(topic=topic),
    )
    view.render = lambda _, found: " ".join(str(each.offset) for each in found["rows"])
    return view


async def test_records_that_came_and_went_between_two_looks_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail_module, "EVERY_S", 0)
    monkeypatch.setattr(following, "RECENT_BYTES", 3 * len(recent(10).line))
    tail = Tail(TOPIC, [0], [0])
    answer: Any = await tail_module.tail(following_view(tail))
    stream = answer.body_iterator
    assert [await anext(stream) for _ in range(2)][1].startswith(b"event: progress")
    for offset in range(10, 18):
        tail.add(recent(offset))
    rows, progress = [(await anext(stream)).decode() for _ in range(2)]
    assert "17 16 15" in rows
    assert json.loads(progress.partition("data: ")[2]) == {"scanned": 8, "left_out": 5}
    await stream.aclose()
