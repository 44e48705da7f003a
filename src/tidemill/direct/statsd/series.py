"""The series of an interval, and the record of each.

Etsy's definitions hold for all kinds of timers: a percentile ``p`` is over the ``round(p/100 * n)``
smallest of ``n`` values, ``count`` is the sum of 1/rate, and all else is of the values as received.
Source: lib/process_metrics.js of statsd/statsd. Must not know: sockets, the C code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("counter", "gauge", "timer", "histogram", "distribution", "set")
"""The kinds of series, in the order of the C code (``tm_kind``)."""

REASONS = (
    "no name",
    "no value",
    "not a finite number",
    "negative time",
    "no type",
    "unknown type",
    "rate not in (0, 1]",
    "bad tags",
    "bad timestamp",
    "name and tags too long",
    "packet too long",
)
"""Why lines are malformed, in the order of the C code (``tm_line_reason``)."""

_COLUMNS = (
    *("name", "type", "tags", "timestamp", "interval_s", "value", "rate", "count", "min", "max"),
    *("sum", "sum_squares", "mean", "std", "median", "partial", "sampled"),
    *("container", "external_data", "cardinality"),
)
Native = tuple[int, bytes, int, int, int, float, float, float, float, float, int, bytes]
"""A series as ``StatsdTable.take`` returns it."""


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one series in an interval.

    Attributes:
        kind: One of ``KINDS``.
        tags: Sorted, without doubles: ``name:value`` or ``name``.
        origin: Datadog's fields ``container``, ``external_data`` and ``cardinality``, where given.
        timestamp_s: The time of the sample in seconds since the epoch, if its line has one. It is
            then not part of the interval.
        is_fresh: Whether the interval has a sample of it.
        is_sampled: Whether there were more values, or members, than could be kept.
        seen: Values of the interval.
        total: A counter's sum, a gauge's value, or the sum of a timer's values.
        weight: The sum of 1/rate of a timer's values.
        squares: The sum of their squares.
        kept: Members of a set.
        values: The values of a timer, sorted.
    """

    kind: str
    name: str
    tags: tuple[str, ...]
    origin: Mapping[str, str]
    timestamp_s: int | None
    is_fresh: bool
    is_sampled: bool
    seen: int
    total: float
    weight: float
    low: float
    high: float
    squares: float
    kept: int
    values: Sequence[float]

    @property
    def key(self) -> str:
        """Name and tags, as the key of the series' records."""
        return f"{self.name}|#{','.join(self.tags)}" if self.tags else self.name


def series_of(native: Native) -> Series:
    """Return a series of the C code. Bytes that are not UTF-8 become escapes such as ``\\xff``."""
    kind, key, fresh, sampled, seen, total, weight, low, high, squares, kept, values = native
    name, tags, *fields = key.decode(errors="backslashreplace").split("\n")
    container, external, cardinality, time = fields or ("", "", "", "")
    origin = {"container": container, "external_data": external, "cardinality": cardinality}
    return Series(
        KINDS[kind],
        name,
        tuple(tags.split(",")) if tags else (),
        {name: value for name, value in origin.items() if value},
        int(time) if time else None,
        bool(fresh),
        bool(sampled),
        seen,
        total,
        weight,
        low,
        high,
        squares,
        kept,
        memoryview(values).cast("d"),
    )


def figures(series: Series, interval_s: float, percentiles: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a series. One that is not finite is None."""
    if series.kind == "counter":
        found = {"value": series.total, "rate": series.total / interval_s}
    elif series.kind == "gauge":
        found = {"value": series.total}
    elif series.kind == "set":
        found = {"value": float(series.kept)}
    else:
        found = _timer(series, interval_s, percentiles)
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def wide_columns(percentiles: Sequence[float]) -> tuple[str, ...]:
    """Return the columns of a record that has all of them, whatever its type is."""
    figures = ("count", "upper", "sum", "mean")
    return _COLUMNS + tuple(
        f"{figure}_{_percentile(each)}" for each in percentiles for figure in figures
    )


def _percentile(percentile: float) -> str:
    """Return a percentage as a part of a field's name, as etsy's StatsD has it."""
    return f"{percentile:g}".replace(".", "_")


def _timer(series: Series, interval_s: float, percentiles: Sequence[float]) -> dict[str, float]:
    """Return the figures of a timer's values."""
    found = {"count": series.weight, "rate": series.weight / interval_s}
    values, seen = series.values, series.seen
    if not seen:
        return found
    mean, count = series.total / seen, len(values)
    found |= {
        "min": series.low,
        "max": series.high,
        "sum": series.total,
        "sum_squares": series.squares,
        "mean": mean,
        "std": _deviation(series, mean),
    }
    if not count:  # no memory for a single value
        return found
    middle = count // 2
    found["median"] = values[middle] if count % 2 else (values[middle - 1] + values[middle]) / 2
    for percentile in percentiles:
        lowest = math.floor(percentile / 100 * count + 0.5)
        if lowest == 0:
            continue
        text = _percentile(percentile)
        total = _sum(values[:lowest])
        found |= {
            f"count_{text}": float(lowest),
            f"upper_{text}": values[lowest - 1],
            f"sum_{text}": total,
            f"mean_{text}": total / lowest,
        }
    return found


def _deviation(series: Series, mean: float) -> float:
    """Return the standard deviation of the population."""
    if series.is_sampled:  # not all values are here; the sums are of all
        return math.sqrt(max(series.squares / series.seen - mean * mean, 0.0))
    # The difference of two large sums would lose the digits of a small deviation.
    return math.sqrt(
        _sum([(value - mean) * (value - mean) for value in series.values]) / series.seen
    )


def _sum(values: Sequence[float]) -> float:
    """Return the sum, which is infinite if it is too large for a number."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf
