"""Nexmark's events as JSON records."""

from __future__ import annotations

import json

import pytest
from bench.nexmark.load import auction_values, bid_values, person_values, time_text
from bench.nexmark.queries import SCHEMAS
from bench.nexmark.rows import microseconds

from tests.bench.nexmark.all_events import all_events


@pytest.mark.parametrize("name", ["person", "auction", "bid"])
def test_a_record_is_the_row_with_times_as_text(name: str) -> None:
    found = all_events(2000)
    make = {"person": person_values, "auction": auction_values, "bid": bid_values}[name]
    table = {"person": found.persons, "auction": found.auctions, "bid": found.bids}[name]

    records = [json.loads(value) for value in make(table)]

    for record in records:
        for column in {"dateTime", "expires"} & set(record):
            record[column] = microseconds(record[column]) // 1000
    assert records == table.to_pylist()
    assert [part.split()[0] for part in SCHEMAS[name].split(", ")] == table.column_names


def test_a_bid_has_about_240_bytes() -> None:
    values = list(bid_values(all_events(2000).bids))

    assert 220 < sum(map(len, values)) / len(values) < 260


def test_times_have_milliseconds() -> None:
    assert time_text(1_767_225_600_007) == "2026-01-01T00:00:00.007Z"
