"""Positions as people write them."""

from __future__ import annotations

import pytest

from tidemill.cli.client import PartitionOffsets
from tidemill.cli.output import UsageError
from tidemill.cli.positions import parse, within
from tidemill.positions import Kind, Position
from tidemill.record_json import time_ms


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
def test_each_form_is_one_position(text: str, position: Position) -> None:
    assert parse(text, "--from") == position


@pytest.mark.parametrize(
    "text", ["", "start", "--1", "1.5", "@now", "2023-13-01", "12-", "@", "@-1", "9" * 19]
)
def test_anything_else_is_refused_and_the_flag_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"^--to {text}: invalid position") as refused:
        parse(text, "--to")
    assert "beginning, end" in refused.value.hint


def test_a_time_keeps_its_milliseconds_exactly() -> None:
    assert time_ms("2262-04-11T23:47:16.854Z") == 9_223_372_036_854


def test_offsets_outside_of_their_partitions_are_moved_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = {("t", n): PartitionOffsets(3, 5) for n in range(6)}
    wanted = {("t", n): n + 1 for n in range(6)}
    assert within(wanted, held) == {
        ("t", 0): 3,
        ("t", 1): 3,
        ("t", 2): 3,
        ("t", 3): 4,
        ("t", 4): 5,
        ("t", 5): 5,
    }
    assert capsys.readouterr().err.splitlines() == [
        "warning: offset 1 is before the start of t partition 0: 3 is used",
        "warning: offset 2 is before the start of t partition 1: 3 is used",
        "warning: offset 6 is after the end of t partition 5: 5 is used",
    ]


def test_many_partitions_get_few_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    held = {("t", n): PartitionOffsets(0, 5) for n in range(1000)}
    within(dict.fromkeys(held, 9), held)
    assert capsys.readouterr().err.splitlines()[3:] == ["warning: the same for 997 more partitions"]
