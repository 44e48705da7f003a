"""Rows that can't be captured, with a server that has a binary log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from tests.connect.cdc.bad_rows import check_large_rows
from tests.connect.cdc.binlog_servers import Server, database_section
from tests.support.mariadb import PASSWORD
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import parse


class BadRowsContract:
    """Rows that are too large for the producer, and for the server's ``max_allowed_packet``."""

    KIND: ClassVar[str]

    def test_large_rows_become_dead_letters(
        self, server: Server, shop: str, kafka: Kafka, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
        definition = parse(
            {
                "name": name,
                "kind": self.KIND,
                "tables": [f"{shop}.*"],
                "on_bad_row": "dead-letter",
                "database": database_section(server, password="${env:SHOP_PASSWORD}"),
            }
        )

        def transact(statements: Sequence[str]) -> None:
            with server.connect(database=shop) as connection:
                for statement in statements:
                    connection.cursor().execute(statement)
                connection.commit()

        try:
            check_large_rows(kafka, definition, shop, transact, "longtext")
        finally:
            # MariaDB finds no ids in a file with an event above max_allowed_packet.
            with server.connect() as connection:
                connection.cursor().execute("FLUSH BINARY LOGS")
