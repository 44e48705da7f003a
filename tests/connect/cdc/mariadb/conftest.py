"""One MariaDB server for all tests of this folder, and a database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.connect.cdc.binlog_servers import Execute, execute, poll_all, shop
from tests.support.mariadb import PASSWORD, USER, MariaDb, MariaDbNotFoundError, mariadb
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.mariadb import MariaDbSource

__all__ = ["Execute", "execute", "poll_all", "shop"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    try:
        with mariadb(tmp_path_factory.mktemp("mariadb") / "log") as found:
            yield found
    except MariaDbNotFoundError as error:
        pytest.skip(str(error))


def database_section(server: MariaDb, **more: Any) -> dict[str, Any]:
    """Return the section of a definition that reaches the server."""
    return {"unix_socket": server.socket, "user": USER, "password": PASSWORD, **more}


@pytest.fixture
def source(server: MariaDb, shop: str) -> Iterator[MariaDbSource]:
    """A source for all tables of the test's database."""
    capture = Capture("shop", (f"{shop}.*",), database=database_section(server))
    made = MariaDbSource(capture)
    yield made
    made.close()
