"""What tests of MariaDB and of MySQL share: a database for each test, and reading from a source.

The folder of each server has the fixtures ``server`` and ``source_type``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from tests.support.mariadb import PASSWORD, USER, Server
from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Batch, Capture, Keyless

__all__ = ["Server"]

Execute = Callable[..., None]


class MakeSource(Protocol):
    """Returns a source that is not started; it is closed at the end of the test.

    Args:
        include: patterns of tables; none is all tables of the test's database.
        keyless: as in ``Capture``.
        database: keys of the definition's section that differ from what reaches the server.
    """

    def __call__(
        self, *include: str, name: str = ..., keyless: Keyless = ..., **database: Any
    ) -> Any: ...


def database_section(server: Server, **more: Any) -> dict[str, Any]:
    """Return the section of a definition that reaches the server."""
    return {"unix_socket": server.socket, "user": USER, "password": PASSWORD, **more}


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


@pytest.fixture
def make_source(
    server: Server, shop: str, source_type: Callable[[Capture], BinlogSource]
) -> Iterator[MakeSource]:
    """Makes sources of tables in the test's database."""
    made: list[BinlogSource] = []

    def make(
        *include: str, name: str = "shop", keyless: Keyless = "refuse", **database: Any
    ) -> BinlogSource:
        section = database_section(server, **database)
        capture = Capture(name, include or (f"{shop}.*",), (), keyless, section)
        made.append(source_type(capture))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def source(make_source: MakeSource) -> Any:
    """A source for all tables of the test's database."""
    return make_source()


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


def resumed(source: BinlogSource, position: Any, count: int) -> tuple[list[Any], Any]:
    """Return the rows of ``count`` changes after a position, with a new start behind each batch.

    Returns:
        The rows after the changes, and the position behind them.
    """
    rows: list[Any] = []
    while len(rows) < count:
        source.start(position)
        batch = source.poll(60)
        assert batch is not None
        rows += [each.after for each in batch.changes]
        position = batch.position
    return rows, position
