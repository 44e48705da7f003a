"""A simulated file system with a folder."""

from __future__ import annotations

import pytest

from tests.support.faultyfs import FaultyFileSystem


@pytest.fixture
def fs() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.makedirs("/d")
    return fs
