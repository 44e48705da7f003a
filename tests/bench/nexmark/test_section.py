"""The table of Nexmark: ratios within rounds, the worst query as an aim, wrong results fail."""

from __future__ import annotations

import pytest
from bench.nexmark.rows import Digest
from bench.nexmark.section import COLUMNS, aims, check, row
from bench.nexmark.turns import FLINK, PLAIN, TIDEMILL, Turn
from bench.report import Table


def turn(contender: str, wall_s: float, cpu_s: float, query: str = "q7") -> Turn:
    return Turn(query, contender, wall_s, cpu_s, 0.5, rows=3, hash="ab")


def cells(turns: list[Turn]) -> dict[str, object]:
    return dict(zip(COLUMNS, row("q7", turns), strict=True))


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    walls = [(10.0, 5.0), (20.0, 12.0), (10.0, 9.0)]
    turns = [
        each
        for plain, ours in walls
        for each in (turn(PLAIN, plain, 2 * plain), turn(TIDEMILL, ours, 4 * ours))
    ]

    found = cells(turns)

    assert found["plain wall s"] == 10.0
    assert found["tidemill CPU s"] == 36.0
    assert found["wall ratio"] == pytest.approx(0.6)
    assert found["CPU ratio"] == pytest.approx(1.2)


def test_without_the_connector_only_tidemill_is_measured() -> None:
    found = cells([turn(TIDEMILL, 5.0, 8.0)])

    assert found["tidemill wall s"] == 5.0
    assert found["plain wall s"] is found["wall ratio"] is None
    assert aims(Table("Nexmark", COLUMNS, [list(found.values())])) == []  # type: ignore[arg-type]


def test_the_aims_are_the_worst_queries() -> None:
    table = Table("Nexmark", COLUMNS)
    for query, ours in (("q0", 4.0), ("q1", 9.0)):
        turns = [turn(PLAIN, 10.0, 10.0, query), turn(TIDEMILL, ours, ours, query)]
        table.rows.append(row(query, turns))

    wall, processor = aims(table)

    assert (wall.measured, processor.measured) == (0.9, 0.9)
    assert "q1" in wall.what
    assert not wall.met


def test_flink_is_another_aim_if_it_took_part() -> None:
    turns = [turn(TIDEMILL, 5.0, 8.0), turn(FLINK, 4.0, 6.0)]
    table = Table("Nexmark", COLUMNS, [row("q7", turns)])

    [aim] = aims(table)

    assert (aim.measured, aim.met) == (1.25, False)
    assert dict(zip(COLUMNS, table.rows[0], strict=True))["Flink CPU s"] == 6.0


@pytest.mark.parametrize("wanted", [Digest(4, "ab"), Digest(3, "cd")])
def test_a_wrong_result_fails_the_run(wanted: Digest) -> None:
    check(turn(PLAIN, 1.0, 1.0), Digest(3, "ab"))

    with pytest.raises(RuntimeError, match="wrong result for q7"):
        check(turn(PLAIN, 1.0, 1.0), wanted)
