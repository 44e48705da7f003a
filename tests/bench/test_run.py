"""Turns of contenders: each is first in one of the rounds."""

from __future__ import annotations

from bench.run import in_turn


def test_each_round_starts_with_another_contender() -> None:
    assert list(in_turn(["a", "b"], 3)) == ["a", "b", "b", "a", "a", "b"]


def test_one_contender_takes_all_turns() -> None:
    assert list(in_turn(["a"], 2)) == ["a", "a"]
