"""MySQL keeps the contract of a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.connect.cdc.mysql.conftest import database_section
from tests.contracts.sources import SourceContract, SourceHarness, brief, changes_until
from tests.support.mysql import MySql
from tidemill.connect.cdc.contract import Capture, Source
from tidemill.connect.cdc.mysql import MySqlSource


class MySqlHarness:
    """A database of its own."""

    def __init__(self, server: MySql, shop: str) -> None:
        self._server = server
        self._shop = shop
        self.made: list[MySqlSource] = []

    def source(self, name: str = "contract", **capture: Any) -> MySqlSource:
        section = database_section(self._server, **capture.pop("database", {}))
        self.made.append(MySqlSource(Capture(name, (f"{self._shop}.*",), database=section)))
        return self.made[-1]

    def execute(self, *statements: str) -> None:
        with self._server.connect(database=self._shop) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.commit()

    def roll_back(self, *statements: str) -> None:
        with self._server.connect(database=self._shop) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.rollback()


class TestMySql(SourceContract):
    @pytest.fixture
    def harness(self, server: MySql, shop: str) -> Iterator[MySqlHarness]:
        made = MySqlHarness(server, shop)
        yield made
        for each in made.made:
            each.close()

    def test_drop_removes_everything_and_a_position_is_lost(
        self, harness: SourceHarness, source: Source
    ) -> None:
        """``start`` creates nothing on the server, so there is nothing to remove."""
        harness.execute("INSERT INTO t VALUES (4, 'd')")
        _, position = changes_until(source, 1)
        source.drop()
        source.close()
        harness.execute("INSERT INTO t VALUES (5, 'e')")
        again = harness.source()
        again.start(position)
        found, _ = changes_until(again, 1)
        assert brief(found) == [("c", {"id": 5, "note": "e"})]
