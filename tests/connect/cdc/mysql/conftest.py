"""One MySQL server for all tests of this folder, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.connect.cdc.binlog_servers import Execute, execute, poll_all, shop
from tests.support.mysql import PASSWORD, USER, MySql, MySqlNotFoundError, mysql
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.mysql import MySqlSource

__all__ = ["Execute", "execute", "poll_all", "shop"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MySql]:
    try:
        with mysql(tmp_path_factory.mktemp("mysql") / "log") as found:
            yield found
    except MySqlNotFoundError as error:
        pytest.skip(str(error))


def database_section(server: MySql, **more: Any) -> dict[str, Any]:
    """Return the section of a definition that reaches the server."""
    return {"unix_socket": server.socket, "user": USER, "password": PASSWORD, **more}


@pytest.fixture
def source(server: MySql, shop: str) -> Iterator[MySqlSource]:
    """A source for all tables of the test's database."""
    capture = Capture("shop", (f"{shop}.*",), database=database_section(server))
    made = MySqlSource(capture)
    yield made
    made.close()
