"""Fixtures: the event loops and collections of a server, and the runs that it appends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tidemill.engine.records.records import Records
from tidemill.net import garbage


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


@pytest.fixture
def tuned_collections() -> Iterator[None]:
    """The garbage collector as in ``tidemill serve``."""
    before = gc.get_threshold()
    garbage.tune()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
