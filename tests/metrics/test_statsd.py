"""Metrics as lines of StatsD."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.direct.statsd import Aggregator, Dialect, Options
from tidemill.metrics.definition import Metric
from tidemill.metrics.registry import Family, Registry
from tidemill.metrics.statsd import StatsdLines

BYTES = Metric("topic_bytes_total", "counter", "Bytes.", ("topic",))
DEPTH = Metric("depth", "gauge", "Depth.", ("queue", "kind"))
SECONDS = Metric("request_seconds", "histogram", "Seconds.", (), (0.1, 1.0))


def test_counters_are_what_was_added_and_gauges_what_is() -> None:
    registry = Registry()
    lines = StatsdLines(registry, "tm")
    count, depth = registry.counter(BYTES, "a"), registry.gauge(DEPTH, "q", "live")
    count.value, depth.value = 7, 2**40
    assert list(lines.lines()) == [
        "tm.topic_bytes_total.a:7|c",
        "tm.depth.q.live:1099511627776|g",
    ]
    count.value += 0.5
    assert next(lines.lines()) == "tm.topic_bytes_total.a:0.5|c"
    assert list(lines.lines()) == ["tm.depth.q.live:1099511627776|g"]
    registry.remove(BYTES, "a")
    registry.counter(BYTES, "a").value = 3  # it was created again
    assert next(lines.lines()) == "tm.topic_bytes_total.a:3|c"


def test_a_histogram_is_a_timer_with_the_mean_at_the_right_rate() -> None:
    registry = Registry()
    lines = StatsdLines(registry)
    seconds = registry.histogram(SECONDS)
    seconds.observe(0.25)
    assert list(lines.lines()) == ["request_seconds:250|ms"]
    seconds.observe(0.5, 3)
    seconds.observe(2.5)
    assert list(lines.lines()) == ["request_seconds:1000|ms|@0.25"]
    assert list(lines.lines()) == []


def test_labels_are_tags_or_parts_of_the_name_without_reserved_characters() -> None:
    registry = Registry()
    registry.gauge(DEPTH, "a.b:c|d,e#f\ng", "").value = -1
    assert list(StatsdLines(registry, tags=True).lines()) == [
        "depth:-1|g|#queue:a.b_c_d_e_f_g,kind:"
    ]
    assert list(StatsdLines(registry).lines()) == [
        "depth.a_b_c_d_e_f_g.none:0|g",
        "depth.a_b_c_d_e_f_g.none:-1|g",
    ]


@pytest.mark.parametrize("tags", [False, True])
def test_our_own_listener_understands_each_line_in_its_dialect(tags: bool) -> None:
    registry = Registry()

    def collect() -> Iterator[Family]:
        yield DEPTH, [((f"q {n}", "é"), value) for n, value in enumerate((-1, 0.1, 1e300, 5))]
        yield DEPTH, [(("nan", ""), float("nan")), (("inf", ""), float("inf"))]
        yield BYTES, [((f"t{n}",), 10**n) for n in range(18)]

    registry.collect(collect)
    registry.histogram(SECONDS).observe(0.001, 1_000_000)
    aggregator = Aggregator(Options(dialect=Dialect.dogstatsd if tags else Dialect.statsd))
    for line in StatsdLines(registry, "p", tags=tags).lines():
        aggregator.feed(line.encode())
    counts = aggregator.counts()
    assert (counts.lines, counts.malformed_lines) == (23 + (not tags), 0)
    timer = next(s for s in aggregator.flush(0, 1000).series if "request" in s.name)
    assert timer.weight == pytest.approx(1_000_000)
    assert timer.total == pytest.approx(1.0)
