"""MySQL: topics equal tables after statements that change rows without events."""

from __future__ import annotations

from tests.contracts.binlog_shapes import ShapesContract


class TestShapes(ShapesContract):
    KIND = "mysql"
    HALF = 1
