"""Positions as people write them."""

from __future__ import annotations

import pytest

from tidemill.cli.output import UsageError
from tidemill.cli.positions import Kind, Position, clamp, parse, time_ms


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(Kind.BEGINNING)),
        ("Earliest", Position(Kind.BEGINNING)),
        ("end", Position(Kind.END)),
        ("latest", Position(Kind.END)),
        ("0", Position(Kind.OFFSET, 0)),
        ("9223372036854775807", Position(Kind.OFFSET, 2**63 - 1)),
        ("-10", Position(Kind.LAST, 10)),
        ("@1700000000000", Position(Kind.TIME, 1_700_000_000_000)),
        ("2023-11-14T22:13:20Z", Position(Kind.TIME, 1_700_000_000_000)),
        ("2023-11-14T23:13:20+01:00", Position(Kind.TIME, 1_700_000_000_000)),
        ("2023-11-14 22:13:20.001", Position(Kind.TIME, 1_700_000_000_001)),
        ("1969-12-31", Position(Kind.TIME, -86_400_000)),
    ],
)
def test_each_form_means_one_place(text: str, position: Position) -> None:
    assert parse(text, "--from") == position


@pytest.mark.parametrize("text", ["", "start", "--1", "1.5", "@now", "2023-13-01", "12-", "@"])
def test_anything_else_is_refused_and_the_flag_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"^--to {text}: not a position") as refused:
        parse(text, "--to")
    assert "beginning, end" in refused.value.hint


def test_a_time_keeps_its_milliseconds_exactly() -> None:
    assert time_ms("2262-04-11T23:47:16.854Z") == 9_223_372_036_854


def test_clamp_stays_within_the_bounds() -> None:
    assert [clamp(n, 3, 5) for n in (2, 3, 4, 5, 6)] == [3, 3, 4, 5, 5]
