"""What tests of MariaDB and of MySQL share: a database for each test, and reading from a source.

The folder of each server has the fixture ``server``. Must not know: which server it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Batch

Execute = Callable[..., None]


class Server(Protocol):
    """A server that a test has started."""

    def connect(self, **options: Any) -> Any:
        """Return a connection of PyMySQL."""


@pytest.fixture
def shop(server: Server) -> Iterator[str]:
    """The name of an empty database."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        yield name
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture
def execute(server: Server, shop: str) -> Iterator[Execute]:
    """Run statements in the test's database, each in a transaction of its own."""
    with server.connect(autocommit=True, database=shop) as connection:

        def run(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        yield run


def poll_all(source: BinlogSource, until: int, *, batches: list[Batch] | None = None) -> list[Any]:
    """Poll until ``until`` changes were returned; return them."""
    changes: list[Any] = []
    while len(changes) < until:
        batch = source.poll(60)
        assert batch is not None, f"only {len(changes)} of {until} changes within 60 s: {changes}"
        changes += batch.changes
        if batches is not None:
            batches.append(batch)
    return changes
