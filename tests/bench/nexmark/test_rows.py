"""Digests of results: independent of the order of rows, and of the spelling of times."""

from __future__ import annotations

import pytest
from bench.nexmark.queries import Kind
from bench.nexmark.rows import Digest, canonical, digest, microseconds

COLUMNS: dict[str, Kind] = {"at": "time", "n": "integer", "x": "number"}


def test_the_order_of_rows_does_not_matter() -> None:
    assert digest([(1, "a"), (2, "b")]) == digest([(2, "b"), (1, "a")])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([(1, "a")], id="a row is missing"),
        pytest.param([(1, "a"), (2, "b"), (2, "b")], id="a row is there twice"),
        pytest.param([(1, "b"), (2, "a")], id="values are swapped"),
        pytest.param([(1.0, "a"), (2, "b")], id="another type"),
    ],
)
def test_other_rows_have_another_digest(other: list[tuple[object, ...]]) -> None:
    assert digest([(1, "a"), (2, "b")]) != digest(other)


def test_no_rows_have_a_digest() -> None:
    assert digest([]) == Digest(0, "0" * 32)


def test_records_become_rows_in_the_order_of_the_columns() -> None:
    values = [b'{"x":2,"n":1,"at":"1970-01-01T00:00:01.5Z"}']

    assert list(canonical(values, COLUMNS)) == [[1_500_000, 1, 2.0]]


@pytest.mark.parametrize(
    "value", [b'{"n":1,"at":"1970-01-01T00:00:01Z"}', b'{"n":1,"at":"1970-01-01","x":1,"y":1}']
)
def test_a_record_with_other_columns_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        list(canonical([value], COLUMNS))


def test_milliseconds_and_microseconds_of_one_time_are_equal() -> None:
    assert microseconds("2026-01-01T00:00:00.120Z") == microseconds("2026-01-01T00:00:00.120000Z")
    assert microseconds("2026-01-01T00:00:00.120Z") == microseconds("2026-01-01T01:00:00.12+01:00")
