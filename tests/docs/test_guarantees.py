"""Each promise of ``docs/guarantees.md`` names tests that exist, and what it does not cover."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| Promise")
]
NAMED = sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE.read_text())))


def test_the_page_has_promises() -> None:
    assert len(ROWS) > 15
    assert len(NAMED) > 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_promise_has_a_test_and_says_what_it_does_not_cover(row: list[str]) -> None:
    promise, tests, uncovered = row
    assert promise.endswith(".")
    assert tests.startswith("`tests/")
    assert uncovered


@pytest.mark.parametrize("named", NAMED)
def test_the_test_exists(named: str) -> None:
    path, separator, name = named.partition("::")
    assert separator, named
    assert (ROOT / path).is_file(), named
    text = (ROOT / path).read_text()
    assert re.search(rf"^(def {name}\(|(async def|class) {name}\b|{name} = )", text, re.M), named
