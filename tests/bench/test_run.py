"""Turns of contenders, and the tables of their figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from bench.compare import Comparison, Figures, ratio_of
from bench.run import Options, Run, in_turn


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Options(tmp_path, True, 2, 1, 0.0, 1, kafka=False))


def of(*values: float) -> list[Figures]:
    return [{"MB/s": each} for each in values]


def test_each_round_starts_with_another_contender() -> None:
    assert list(in_turn(["a", "b"], 3)) == ["a", "b", "b", "a", "a", "b"]


def test_one_contender_takes_all_turns() -> None:
    assert list(in_turn(["a"], 2)) == ["a", "a"]


def test_ratios_are_of_the_same_rounds() -> None:
    assert ratio_of(of(2.0, 9.0, 4.0), of(1.0, 3.0, 4.0), "MB/s") == 2.0
    assert ratio_of(of(2.0), [], "MB/s") is None
    assert ratio_of(of(2.0), of(1.0), "p50 ms") is None


def test_a_row_has_medians_and_ratios_and_no_columns_without_figures(run: Run) -> None:
    found = Comparison(run, "t", ["MB/s", "p50 ms"], base="raw", by=["MB/s"], to_first="MB/s")
    for load, factor in (("small", 1.0), ("large", 3.0)):
        raw, ours = of(2 * factor, factor)
        found.measure([load], {"raw": partial(dict, raw), "tidemill": partial(dict, ours)})
    table = found.table()
    assert table.columns == ["load", "who", "MB/s", "MB/s to raw", "MB/s to the first case"]
    assert table.rows[1] == ["small", "tidemill", 1.0, 0.5, 1.0]
    assert table.rows[3] == ["large", "tidemill", 3.0, 0.5, 3.0]


def test_a_failure_of_another_server_is_reported_and_one_of_ours_ends_the_run(run: Run) -> None:
    def fail() -> Figures:
        raise RuntimeError("no answer")

    found = Comparison(run, "t", ["MB/s"], base="kafka", by=["MB/s"])
    results = found.measure(["x"], {"kafka": fail, "tidemill": lambda: of(1.0)[0]})
    assert (results["kafka"], len(results["tidemill"])) == ([], 2)
    assert found.table().rows == [["x", "kafka", None], ["x", "tidemill", 1.0]]
    with pytest.raises(RuntimeError, match="no answer"):
        found.measure(["x"], {"tidemill": fail})
