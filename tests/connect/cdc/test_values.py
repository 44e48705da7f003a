"""The JSON value of each kind of value, and that nothing is lost."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.connect.cdc.values import bytes_of, interval_value, json_value

_PLUS_2 = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**53 + 1, 2**53 + 1),
        (-(2**63), -(2**63)),
        (2**63, "9223372036854775808"),
        (0.1, 0.1),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+3"), "1000"),
        (Decimal("1E-7"), "0.0000001"),
        (Decimal("NaN"), "NaN"),
        (Decimal("-Infinity"), "-Infinity"),
        ("ä\x00b", "ä\x00b"),
        (b"\x00\xff", "AP8="),
        (memoryview(b"a"), "YQ=="),
        (date(2026, 11, 22), "2026-11-22"),
        (time(10, 0, 0, 500_000), "10:00:00.500000"),
        (datetime(2026, 11, 22, 10), "2026-11-22T10:00:00"),
        (datetime(2026, 11, 22, 10, tzinfo=_PLUS_2), "2026-11-22T08:00:00Z"),
        (datetime(2026, 11, 22, 10, 0, 0, 1, tzinfo=UTC), "2026-11-22T10:00:00.000001Z"),
        (timedelta(days=1, seconds=3661, microseconds=500_000), "P1DT1H1M1.5S"),
        (UUID("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ([[1, None], [Decimal("2.0"), b"x"]], [[1, None], ["2.0", "eA=="]]),
    ],
)
def test_each_value_has_its_json_value(value: Any, expected: Any) -> None:
    found = json_value(value)
    assert found == expected
    assert type(found) is type(expected)
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def test_a_type_without_a_rule_is_an_error() -> None:
    with pytest.raises(TypeError, match="no rule for values of type object"):
        json_value(object())


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, "PT0S"),
        ({"months": 14, "days": 3}, "P1Y2M3D"),
        ({"months": -14}, "P-1Y-2M"),
        ({"microseconds": -1}, "PT-0.000001S"),
        ({"microseconds": -3_661_000_000, "days": 1}, "P1DT-1H-1M-1S"),
    ],
)
def test_intervals_keep_months_days_and_time_apart(parts: dict[str, int], expected: str) -> None:
    assert interval_value(**parts) == expected


@given(st.binary(max_size=200))
def test_bytes_come_back(value: bytes) -> None:
    assert bytes_of(json_value(value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_come_back(value: Decimal) -> None:
    assert Decimal(json_value(value)) == value
