"""What differs between two plans: readable, short, and never two equal texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.spark.base.plan_difference import MAX_LENGTH, difference

STORED = json.loads((Path(__file__).parents[1] / "pipelines" / "fingerprints.json").read_text())
SLIDING = next(
    tuple(each["state"])
    for each in STORED.values()
    if any(line.strip().startswith("Expand") for line in each["state"])
)
"""A query with a window of an hour every 30 minutes, as Spark writes it."""


def replaced(plan: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    assert any(old in line for line in plan)
    return tuple(line.replace(old, new) for line in plan)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("1800000000", "900000000", "1 hour, one every 15 minutes"),
        ("3600000000", "7200000000", "2 hours, one every 30 minutes"),
        (
            "LongType) - 0)",
            "LongType) - 300000000)",
            "1 hour, one every 30 minutes, shifted by 5 minutes",
        ),
    ],
)
def test_a_sliding_window_is_shown_with_its_durations(old: str, new: str, shown: str) -> None:
    before, now = difference(SLIDING, replaced(SLIDING, old, new))
    assert before == "windows of at: 1 hour, one every 30 minutes"
    assert now == f"windows of at: {shown}"


def test_a_change_at_the_end_of_half_a_page_is_shown() -> None:
    shown = difference(SLIDING, replaced(SLIDING, "at, city]]", "at, town]]"))

    assert shown[0] != shown[1]
    assert "city" in shown[0]
    assert "town" in shown[1]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (["aggregate count(1)"], ["aggregate sum(n)"], ("aggregate count(1)", "aggregate sum(n)")),
        (["a", "b"], ["b"], ("a", "")),
        (["with window of at: 60000000 microseconds"], [], ("with window of at: 1 minute", "")),
        (
            [f"where {'x AND ' * 60}(n > 1) AND {'y AND ' * 60}z"],
            [f"where {'x AND ' * 60}(n > 2) AND {'y AND ' * 60}z"],
            (f"...AND {'x AND ' * 5}(n > 1...", f"...AND {'x AND ' * 5}(n > 2..."),
        ),
    ],
)
def test_only_what_differs_is_shown(
    before: list[str], now: list[str], expected: tuple[str, str]
) -> None:
    assert difference(before, now) == expected


LINES = st.lists(st.text("ab 1,()", max_size=400), max_size=3)
LONG = st.builds(
    lambda text, at: [text[:at] + "z" + text[at:]], st.just("a" * 400), st.integers(0, 400)
)


@settings(max_examples=examples(200), deadline=None)
@given(LINES | LONG, LINES | LONG)
def test_two_different_plans_never_have_equal_texts(before: list[str], now: list[str]) -> None:
    gone = [each.strip() for each in before if each not in now]
    new = [each.strip() for each in now if each not in before]
    shown = difference(before, now)

    assert max(map(len, shown)) <= MAX_LENGTH + 3
    if ", ".join(gone) != ", ".join(new):
        assert shown[0] != shown[1]
