"""One MariaDB server for all tests of this folder, and a database for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.mariadb import PASSWORD, USER, MariaDb, MariaDbNotFoundError, mariadb
from tidemill.connect.cdc.contract import Batch, Capture
from tidemill.connect.cdc.mariadb import MariaDbSource

Execute = Callable[..., None]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    try:
        with mariadb(tmp_path_factory.mktemp("mariadb") / "log") as found:
            yield found
    except MariaDbNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def shop(server: MariaDb) -> Iterator[str]:
    """The name of an empty database."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        yield name
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture
def execute(server: MariaDb, shop: str) -> Iterator[Execute]:
    """Run statements in the test's database, each in a transaction of its own."""
    with server.connect(autocommit=True, database=shop) as connection:

        def run(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        yield run


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


def poll_all(source: MariaDbSource, until: int, *, batches: list[Batch] | None = None) -> list[Any]:
    """Poll until ``until`` changes were returned; return them."""
    changes: list[Any] = []
    while len(changes) < until:
        batch = source.poll(60)
        assert batch is not None, f"only {len(changes)} of {until} changes within 60 s: {changes}"
        changes += batch.changes
        if batches is not None:
            batches.append(batch)
    return changes
