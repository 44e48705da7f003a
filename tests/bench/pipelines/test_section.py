"""Figures and aims of pipelines, from the client's results."""

from __future__ import annotations

import pytest
from bench.compare import Figures
from bench.pipelines.results import PLAIN, QUERIES, TIDEMILL, TRIGGERS, Rate
from bench.pipelines.section import latency_aims, rate_aims, rate_figures

Found = dict[str, dict[str, list[Figures]]]


def latencies(**contenders: tuple[float, float]) -> Found:
    """Return the latencies of contenders in all cases, given those of both queries."""
    names = {"ours": TIDEMILL, "plain": PLAIN}
    return {
        f"{query}, {trigger}": {
            names[who]: [{"p50 ms": ms[number], "p99 ms": ms[number]}]
            for who, ms in contenders.items()
        }
        for number, query in enumerate(QUERIES)
        for trigger in TRIGGERS
    }


def rates(*seconds: tuple[float, float]) -> list[Figures]:
    return [
        rate_figures(
            Rate("source, streaming", TIDEMILL, 1_000_000, wall_s, cpu_s), is_first=not number
        )
        for number, (wall_s, cpu_s) in enumerate(seconds)
    ]


def test_p99_is_compared_with_plain_spark_in_the_same_case() -> None:
    aims = latency_aims(latencies(ours=(140, 260), plain=(130, 300)))

    assert [aim.met for aim in aims] == [True, False, False, False, True, True]
    assert [aim.limit for aim in aims] == pytest.approx([150, 250, 130, 130, 300, 300])


def test_without_plain_spark_there_are_only_the_absolute_aims() -> None:
    assert len(latency_aims(latencies(ours=(140, 260)))) == 2
    assert len(rate_aims({"source, streaming": {TIDEMILL: rates((1.0, 2.0), (1.0, 2.0))}})) == 1


def test_the_first_turn_of_a_rate_is_apart() -> None:
    found = rates((4.0, 4.0), (0.5, 0.5))

    assert found[0] == {"first rows/s": 250_000}
    assert found[1] == {"warm rows/s": 2_000_000, "warm CPU s per 10^6 rows": 0.5}


def test_the_processor_time_of_the_source_is_compared_with_the_connector() -> None:
    found = {TIDEMILL: rates((1.0, 1.0), (0.25, 1.0)), PLAIN: rates((1.0, 9.0), (1.0, 4.0))}

    rows_per_second, processor = rate_aims({"source, streaming": found})

    assert (rows_per_second.measured, rows_per_second.met) == (4_000_000, True)
    assert (processor.measured, processor.met) == (0.25, True)
