"""Fixtures for tests of a partition."""

from __future__ import annotations

import pytest

from tests.log.partition.one_partition import OnePartition


@pytest.fixture
def partition() -> OnePartition:
    """A new partition on a file system that fails on demand."""
    return OnePartition()
