"""MySQL: topics equal tables after statements that change rows without events."""

from __future__ import annotations

import pytest

from tests.contracts.binlog_shapes import ShapesContract


class TestShapes(ShapesContract):
    KIND = "mysql"
    pytestmark = pytest.mark.nightly  # MariaDB's run uses the same code
    HALF = 1
