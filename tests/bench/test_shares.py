"""What the program of the share bench prints."""

from __future__ import annotations

import pytest
from bench.shares.section import read_outcome


def test_the_last_line_has_the_figures() -> None:
    printed = 'a warning\n{"rate": 12500.5, "least": 30, "most": 60}\n'
    found = read_outcome(printed, 0.5, 1_000_000)
    assert found == {"records/s": 12500.5, "CPU µs/record": 0.5, "client share": 0.5}


def test_members_without_records_have_no_share() -> None:
    assert read_outcome('{"rate": 1.0, "least": 0, "most": 0}', 1.0, 1)["client share"] == 0.0


def test_a_program_that_prints_nothing_is_an_error() -> None:
    with pytest.raises(IndexError):
        read_outcome("", 1.0, 1)
