"""MySQL: keys have one text in snapshot and stream."""

from __future__ import annotations

import pytest

from tests.contracts.binlog_keys import KeysContract


class TestKeys(KeysContract):
    pytestmark = pytest.mark.nightly  # MariaDB's run uses the same code
    KEYS = {
        "VARCHAR(10) COLLATE utf8mb4_0900_ai_ci": ["'a'", "'a '", "'b'"],
        "CHAR(10) COLLATE utf8mb4_0900_as_cs": ["'a '", "'A'"],
    }
