"""The machines of groups and offsets as most of their tests need them."""

from __future__ import annotations

import pytest

from tests.state.driver import GroupsDriver


@pytest.fixture
def driver() -> GroupsDriver:
    return GroupsDriver()
