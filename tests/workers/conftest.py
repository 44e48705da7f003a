"""The event loop of the tests of workers: one like the broker's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidemill.system import new_event_loop


@pytest.fixture(autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    return new_event_loop
