"""One PostgreSQL server for the tests of the source, and a database for each test."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading
from tests.support.postgres import LOGICAL, postgres
from tests.support.processes import skip_if_missing


@pytest.fixture(scope="session")
def logical_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dsn of a server with ``wal_level = logical``."""
    with skip_if_missing(), postgres(tmp_path_factory.mktemp("postgres") / "log", LOGICAL) as dsn:
        yield dsn


@pytest.fixture
def dsn(logical_server: str) -> Iterator[str]:
    """A database of its own; its slots are dropped at the end."""
    name = f"d{uuid.uuid4().hex[:8]}"
    with psycopg.connect(logical_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield logical_server.replace("dbname=postgres", f"dbname={name}")
        # A source that was given up in the middle of a statement may still be making its slot.
        for _ in range(1000):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
            left = connection.execute(
                "SELECT slot_name, active FROM pg_replication_slots WHERE database = %s", (name,)
            ).fetchall()
            for slot, active in left:
                if not active:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            if not left:
                with contextlib.suppress(psycopg.errors.ObjectInUse):
                    connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
                    break
        else:
            raise AssertionError(f"database {name} is still in use: {left}")


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit mode."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def reading(dsn: str) -> Iterator[Callable[..., Reading]]:
    """Make sources of the database; all are closed at the end."""
    made: list[Reading] = []

    def make(**options: Any) -> Reading:
        made.append(Reading(dsn, **options))
        return made[-1]

    yield make
    for each in made:
        each.source.close()


@pytest.fixture
def started(reading: Callable[..., Reading]) -> Callable[..., Reading]:
    """Make sources of the database that begin now."""

    def make(**options: Any) -> Reading:
        made = reading(**options)
        made.start()
        return made

    return make
