"""MySQL: keys have one text in snapshot and stream."""

from __future__ import annotations

from tests.contracts.binlog_keys import KeysContract


class TestKeys(KeysContract):
    KEYS = {
        "VARCHAR(10) COLLATE utf8mb4_0900_ai_ci": ["'a'", "'a '", "'b'"],
        "CHAR(10) COLLATE utf8mb4_0900_as_cs": ["'a '", "'A'"],
    }
