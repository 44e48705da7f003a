"""Which threads do the work: native ones, or Python's, as on other systems than Linux."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.other_system import leave_linux
from tidemill import system


@pytest.fixture
def linux() -> None:
    if not system.is_linux():
        pytest.skip("native threads report through an eventfd, which only Linux has")


@pytest.fixture(params=["native", "python"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        leave_linux(monkeypatch)
    else:
        request.getfixturevalue("linux")
    return str(request.param)


@pytest.fixture
def signal(linux: None) -> Iterator[int]:
    """A descriptor through which a native thread reports."""
    fd = os.eventfd(0)
    yield fd
    os.close(fd)
