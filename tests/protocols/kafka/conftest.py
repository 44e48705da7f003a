"""Fixtures: the kinds of event loops that a server runs on, and the runs that it appends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tidemill.engine.records.records import Records


@pytest.fixture(params=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many batches of each run were appended."""
    counts: list[int] = []
    append_run = Records.append_run

    def noting(self: Records, *args: object, **options: object) -> object:
        found = append_run(self, *args, **options)  # type: ignore[arg-type]
        counts.append(len(found[0]))
        return found

    monkeypatch.setattr(Records, "append_run", noting)
    return counts
