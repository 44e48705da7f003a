"""One MySQL server for all tests of this folder, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.cdc.binlog_servers import execute, make_source, shop, source
from tests.support.mysql import MySql, mysql
from tests.support.processes import skip_if_missing
from tidemill.connect.cdc.mysql import MySqlSource

__all__ = ["execute", "make_source", "shop", "source"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    with skip_if_missing(), mysql(tmp_path_factory.mktemp("mysql") / "log") as found:
        yield found


@pytest.fixture
def source_type() -> type[MySqlSource]:
    return MySqlSource
