"""One MariaDB server for all tests of this folder, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.cdc.binlog_servers import execute, make_source, shop, source
from tests.support.mariadb import MariaDb, mariadb
from tests.support.processes import skip_if_missing
from tidemill.connect.cdc.mariadb import MariaDbSource

__all__ = ["execute", "make_source", "shop", "source"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    with skip_if_missing(), mariadb(tmp_path_factory.mktemp("mariadb") / "log") as found:
        yield found


@pytest.fixture
def source_type() -> type[MariaDbSource]:
    return MariaDbSource
