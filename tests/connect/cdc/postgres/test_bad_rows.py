"""Rows that can't be captured, with PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from tests.connect.cdc.bad_rows import check_large_rows
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.definition import parse


def test_large_rows_become_dead_letters(dsn: str, kafka: Kafka, name: str) -> None:
    definition = parse(
        {
            "name": name,
            "kind": "postgres",
            "on_bad_row": "dead-letter",
            "database": {"dsn": dsn},
        }
    )

    def transact(statements: Sequence[str]) -> None:
        with psycopg.connect(dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    check_large_rows(kafka, definition, "public", transact, "text")
