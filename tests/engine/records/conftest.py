"""A partition for each test of records."""

from __future__ import annotations

import pytest

from tests.engine.records.support import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
