"""Nexmark: ratios within rounds, the worst query as an aim, wrong results fail."""

from __future__ import annotations

import pytest
from bench.compare import Figures
from bench.nexmark.rows import Digest
from bench.nexmark.section import aims, check, figures
from bench.nexmark.turns import FLINK, PLAIN, TIDEMILL, Turn


def turn(contender: str, wall_s: float, cpu_s: float, query: str = "q7") -> Turn:
    return Turn(query, contender, wall_s, cpu_s, 0.5, rows=3, hash="ab")


def found(**queries: list[Turn]) -> dict[str, dict[str, list[Figures]]]:
    return {query: figures(turns, query) for query, turns in queries.items()}


def test_the_figures_of_a_query_are_those_of_its_turns_by_contender() -> None:
    turns = [turn(PLAIN, 10.0, 20.0), turn(TIDEMILL, 5.0, 8.0), turn(TIDEMILL, 1.0, 1.0, "q1")]
    of = figures(turns, "q7")
    assert {who: [each["wall s"] for each in each_turn] for who, each_turn in of.items()} == {
        PLAIN: [10.0],
        TIDEMILL: [5.0],
    }
    assert of[TIDEMILL][0]["Python"] == 8.0


def test_the_aims_are_the_worst_queries() -> None:
    queries = {
        query: [turn(PLAIN, 10.0, 10.0, query), turn(TIDEMILL, ours, ours, query)]
        for query, ours in (("q0", 4.0), ("q1", 9.0))
    }
    wall, processor = aims(found(**queries))
    assert (wall.measured, processor.measured) == (0.9, 0.9)
    assert "q1" in wall.what
    assert not wall.met


def test_an_aim_is_the_median_of_the_rounds() -> None:
    walls = [(10.0, 5.0), (20.0, 12.0), (10.0, 9.0)]
    turns = [
        each
        for plain, ours in walls
        for each in (turn(PLAIN, plain, 2 * plain), turn(TIDEMILL, ours, 4 * ours))
    ]
    wall, processor = aims(found(q7=turns))
    assert (wall.measured, processor.measured) == pytest.approx((0.6, 1.2))


def test_flink_is_another_aim_and_nothing_is_compared_without_contenders() -> None:
    ours = turn(TIDEMILL, 5.0, 8.0)
    assert aims(found(q7=[ours])) == []
    [aim] = aims(found(q7=[ours, turn(FLINK, 4.0, 6.0)]))
    assert (aim.measured, aim.met) == (1.25, False)


@pytest.mark.parametrize("wanted", [Digest(4, "ab"), Digest(3, "cd")])
def test_a_wrong_result_fails_the_run(wanted: Digest) -> None:
    check(turn(PLAIN, 1.0, 1.0), Digest(3, "ab"))

    with pytest.raises(RuntimeError, match="wrong result for q7"):
        check(turn(PLAIN, 1.0, 1.0), wanted)
