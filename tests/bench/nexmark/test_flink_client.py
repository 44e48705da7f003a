"""Flink's SQL has each query; its reserved words are quoted."""

from __future__ import annotations

from bench.nexmark.flink_client import _SQL, quoted
from bench.nexmark.queries import QUERIES


def test_each_query_is_there() -> None:
    assert _SQL.keys() == QUERIES.keys()


def test_a_column_with_a_reserved_name_is_quoted() -> None:
    assert quoted("a.dateTime, dateTimes") == "a.`dateTime`, dateTimes"
