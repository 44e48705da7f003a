"""PostgreSQL keeps the contract of a source."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.contracts.sources import SourceContract
from tidemill.connect.cdc.contract import Capture
from tidemill.connect.cdc.postgres import PostgresSource


class PostgresHarness:
    """A database of its own. Names of sources are made unique on the server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._mark = uuid.uuid4().hex[:8]
        self.made: list[PostgresSource] = []

    def source(self, name: str = "contract", **capture: Any) -> PostgresSource:
        more = {"dsn": self._dsn, **capture.pop("database", {})}
        self.made.append(PostgresSource(Capture(f"{name}{self._mark}", database=more, **capture)))
        return self.made[-1]

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self._dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def roll_back(self, *statements: str) -> None:
        with psycopg.connect(self._dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())
            connection.rollback()


class TestPostgres(SourceContract):
    @pytest.fixture
    def harness(self, dsn: str) -> Iterator[PostgresHarness]:
        made = PostgresHarness(dsn)
        yield made
        for each in made.made:
            each.close()
