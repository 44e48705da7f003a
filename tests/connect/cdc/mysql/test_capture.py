"""MySQL is captured exactly once while the worker and the broker get SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.cdc.killing import assert_topics_follow
from tests.connect.cdc.mysql.conftest import Execute, database_section
from tests.support.mysql import PASSWORD, MySql


@pytest.mark.crash
def test_topics_equal_the_tables_after_kills_of_worker_and_broker(
    server: MySql,
    shop: str,
    execute: Execute,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    section = database_section(server, password="${env:SHOP_PASSWORD}")
    # One of the connections writes compressed transactions.
    first = ("SET SESSION binlog_transaction_compression = ON",)
    assert_topics_follow("mysql", server, shop, execute, section, tmp_path, first=first)
