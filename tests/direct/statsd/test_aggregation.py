"""What an interval has of its series, within which bounds."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.direct.statsd import Aggregator, Dialect, Options, StatsdError
from tidemill.direct.statsd.options import Expiry

INTERVAL_MS = 10_000


def flushed(aggregator: Aggregator, **options: Any) -> dict[str, dict[str, Any]]:
    """End an interval; return its documents by the key of the series."""
    flush = aggregator.flush(0, INTERVAL_MS, **options)
    return {series.key: document for series, document in flush.documents()}


def etsy_timer(values: list[float], percentile: float) -> dict[str, float]:
    """Return what process_metrics.js computes, written down from its definitions."""
    values = sorted(values)
    count = len(values)
    lowest = values[: math.floor(percentile / 100 * count + 0.5)]
    mean = sum(values) / count
    found = {
        "min": values[0],
        "max": values[-1],
        "sum": sum(values),
        "sum_squares": sum(value * value for value in values),
        "mean": mean,
        "median": statistics.median(values),
        "std": math.sqrt(sum((value - mean) ** 2 for value in values) / count),
    }
    if lowest:
        text = f"{percentile:g}".replace(".", "_")
        found |= {
            f"count_{text}": len(lowest),
            f"upper_{text}": lowest[-1],
            f"sum_{text}": sum(lowest),
            f"mean_{text}": sum(lowest) / len(lowest),
        }
    return found


_TIMES = st.integers(0, 10**6).map(lambda thousandth: thousandth / 1000)


@given(st.lists(_TIMES, min_size=1, max_size=60), st.sampled_from([1.0, 50.0, 90.0, 99.9, 100.0]))
def test_the_figures_of_a_timer_are_those_of_etsy_s_statsd(
    values: list[float], percentile: float
) -> None:
    aggregator = Aggregator(Options(percentiles=(percentile,)))
    for value in values:
        aggregator.feed(b"t:%r|ms" % value)
    document = flushed(aggregator)["t"]
    expected = etsy_timer(values, percentile)
    assert {name: document[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert not any(name.startswith("upper") for name in document if name not in expected)
    assert document["count"] == len(values)
    assert document["rate"] == len(values) / 10


def test_a_rate_counts_a_timer_s_value_more_often_and_keeps_it_once() -> None:
    aggregator = Aggregator(Options())
    aggregator.feed(b"t:10|ms|@0.1\nt:20|ms")
    document = flushed(aggregator)["t"]
    assert (document["count"], document["mean"], document["sum"]) == (11, 15, 30)


def test_series_without_samples_are_reported_until_they_expire() -> None:
    aggregator = Aggregator(Options(expiry=Expiry(counter=1, gauge=2, timer=1)))
    aggregator.feed(b"c:5|c\ng:7|g\nt:1|ms\ns:a|s")
    assert set(flushed(aggregator)) == {"c", "g", "t", "s"}
    second = flushed(aggregator)
    assert {name: each.get("value", each.get("count")) for name, each in second.items()} == {
        "c": 0,
        "g": 7,
        "t": 0,
    }
    assert {name: each["value"] for name, each in flushed(aggregator).items()} == {"g": 7}
    assert flushed(aggregator) == {}
    aggregator.feed(b"g:+1|g")
    assert flushed(aggregator)["g"]["value"] == 1  # it has begun again


def test_a_gauge_s_change_is_on_top_of_the_interval_before() -> None:
    aggregator = Aggregator(Options())
    aggregator.feed(b"g:7|g")
    flushed(aggregator)
    aggregator.feed(b"g:-2|g")
    assert flushed(aggregator)["g"]["value"] == 5


def test_series_above_the_limit_are_counted_and_the_others_go_on() -> None:
    aggregator = Aggregator(Options(max_series=10))
    for number in range(1000):
        aggregator.feed(b"c%d:1|c" % number)
    aggregator.feed(b"c3:1|c")
    found = flushed(aggregator)
    assert len(found) == 10
    assert found["c3"]["value"] == 2
    assert aggregator.counts().excess == 990
    aggregator.feed(b"c999:1|c")  # the next interval has room again
    assert set(flushed(aggregator)) == {"c999"}


def test_a_timer_with_too_many_values_keeps_exact_sums_and_a_fair_sample() -> None:
    aggregator = Aggregator(Options(max_values=1000))
    count = 20_000
    for start in range(0, count, 100):
        aggregator.feed(b"\n".join(b"t:%d|ms" % value for value in range(start, start + 100)))
    document = flushed(aggregator)["t"]
    assert document["sampled"] is True
    assert (document["count"], document["min"], document["max"]) == (count, 0, count - 1)
    assert document["sum"] == sum(range(count))
    assert document["std"] == pytest.approx(statistics.pstdev(range(count)))
    # 512 of 20,000 values: the error of the median's rank is 2.2 %, and this is ten times as much.
    assert document["median"] == pytest.approx(count / 2, abs=0.22 * count)


def test_a_set_counts_each_member_once_and_says_when_it_could_not() -> None:
    aggregator = Aggregator(Options(max_values=4096))
    for number in range(3000):
        aggregator.feed(b"s:%d|s" % (number % 1000))
    assert flushed(aggregator)["s"] | {"timestamp": 0} == {
        "name": "s", "type": "set", "tags": (), "timestamp": 0, "interval_s": 10.0, "value": 1000.0,
    }  # fmt: skip
    for number in range(10_000):
        aggregator.feed(b"s:%d|s" % number)
    full = flushed(aggregator)["s"]
    assert full["sampled"] is True
    assert 1000 < full["value"] < 4096


def test_a_sum_that_overflows_is_null_and_not_infinite() -> None:
    aggregator = Aggregator(Options())
    aggregator.feed(b"c:1e308|c\nc:1e308|c\nt:1e308|ms\nt:1e308|ms")
    found = flushed(aggregator)
    assert found["c"]["value"] is None
    assert found["t"]["sum"] is None
    assert found["t"]["max"] == 1e308


def test_the_first_interval_says_that_it_is_partial() -> None:
    aggregator = Aggregator(Options())
    aggregator.feed(b"c:1|c")
    assert flushed(aggregator, is_partial=True)["c"]["partial"] is True


def test_raw_lines_and_notices_are_kept_within_bounds_until_they_are_taken() -> None:
    aggregator = Aggregator(Options(dialect=Dialect.dogstatsd, raw_bytes=100))
    aggregator.feed(b"a:1|c\r\n_e{1,1}:a|b\nbad")
    assert aggregator.take_lines() == (
        [b"a:1|c", b"_e{1,1}:a|b", b"bad"],
        [b"_e{1,1}:a|b"],
    )
    assert aggregator.take_lines() == ([], [])
    for _ in range(50):
        aggregator.feed(b"a:1|c")
    raw, _ = aggregator.take_lines()
    assert len(raw) == 16
    assert aggregator.counts().lost_raw == 34
    for _ in range(100_000):
        aggregator.feed(b"_sc|name|0|m:something")
    _, notices = aggregator.take_lines()
    assert len(notices) + aggregator.counts().lost_notices == 100_000
    assert sum(len(each) + 1 for each in notices) <= 1 << 20


def test_malformed_lines_are_counted_with_a_sample_of_each_kind() -> None:
    aggregator = Aggregator(Options())
    aggregator.feed(b"a:x|c\na:y|c\nb:1|c|@2\n" + b"z" * 1000)
    counts = aggregator.counts()
    assert (counts.lines, counts.malformed_lines) == (4, 4)
    assert counts.malformed["not a finite number"].count == 2
    assert counts.malformed["not a finite number"].sample == b"a:y|c"
    assert counts.malformed["no value"].sample == b"z" * 256


@pytest.mark.parametrize(
    "options",
    [
        {"percentiles": (0.0,)},
        {"percentiles": (101.0,)},
        {"max_series": 0},
        {"max_values": 0},
        {"raw_bytes": -1},
        {"expiry": Expiry(gauge=-1)},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StatsdError):
        Options(**options)
