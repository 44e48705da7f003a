"""Tables and aims of pipelines, from the client's results."""

from __future__ import annotations

import pytest
from bench.pipelines.results import PLAIN, TIDEMILL, Latency, Rate
from bench.pipelines.section import (
    latency_aims,
    latency_table,
    milliseconds,
    rate_aims,
    rate_table,
)


def latency(query: str, trigger: str, contender: str, *ms: float) -> Latency:
    return Latency(query, trigger, contender, [each / 1e3 for each in ms])


def both_queries(contender: str, stateless: float, windowed: float) -> list[Latency]:
    return [
        latency(query, trigger, contender, ms)
        for query, ms in (("stateless", stateless), ("windowed", windowed))
        for trigger in ("0 seconds", "200 milliseconds")
    ]


def rate(contender: str, wall_s: float, cpu_s: float) -> Rate:
    return Rate("source, streaming", contender, 1_000_000, wall_s, cpu_s)


def test_the_rounds_of_a_case_are_one_row() -> None:
    found = [
        latency("stateless", "0 seconds", TIDEMILL, 100, 200),
        latency("stateless", "0 seconds", PLAIN, 1000),
        latency("stateless", "0 seconds", TIDEMILL, 300),
    ]

    rows = latency_table(found).rows

    assert rows[0][:4] == ["stateless", "0 seconds", TIDEMILL, 3]
    assert rows[0][4:] == pytest.approx([200, 300])
    assert rows[1][2] == PLAIN
    assert len(rows) == 2


def test_p99_is_compared_with_plain_spark_in_the_same_case() -> None:
    found = both_queries(TIDEMILL, 140, 260) + both_queries(PLAIN, 130, 300)

    aims = latency_aims(found)

    assert [aim.met for aim in aims] == [True, False, False, False, True, True]
    assert [aim.limit for aim in aims] == pytest.approx([150, 250, 130, 130, 300, 300])


def test_without_plain_spark_there_are_only_the_absolute_aims() -> None:
    assert len(latency_aims(both_queries(TIDEMILL, 140, 260))) == 2
    assert len(rate_aims([rate(TIDEMILL, 1.0, 2.0)])) == 1
    assert milliseconds([], "stateless", "0 seconds", PLAIN) == []


def test_the_first_turn_of_a_rate_is_apart() -> None:
    found = [rate(TIDEMILL, wall, wall) for wall in (4.0, 0.5, 0.25, 0.5)]

    [row] = rate_table(found).rows

    assert row[2:] == [1_000_000, 250_000, 2_000_000, 0.5]


def test_the_processor_time_of_the_source_is_compared_with_the_connector() -> None:
    found = [rate(TIDEMILL, 1.0, 1.0), rate(TIDEMILL, 0.25, 1.0)]
    found += [rate(PLAIN, 1.0, 9.0), rate(PLAIN, 1.0, 4.0)]

    rows_per_second, processor = rate_aims(found)

    assert (rows_per_second.measured, rows_per_second.met) == (4_000_000, True)
    assert (processor.measured, processor.met) == (0.25, True)
