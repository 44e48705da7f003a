"""The values of metrics: counters that code adds to, and collectors that are asked at a scrape.

What is counted while work is done costs one addition: ``requests.value += 1``. What the process
knows anyway (sizes, lags, depths) is computed by a collector when a scrape asks for it. All calls
come from one thread, unless a method says otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from tidemill.metrics.definition import Kind, Metric

MOST_CHILDREN = 1000
"""Label values that a counted metric has at most. The rest is counted together."""
OTHER = "(other)"
"""The label value of what is counted together."""


class Counter:
    """A value that only grows. Add to ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Gauge:
    """A value that rises and falls. Set ``value``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """Counts of measured values, by ranges.

    Attributes:
        bounds: upper bounds of the ranges, ascending.
        counts: how many values are in each range; one more than there are bounds.
        sum: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, or several that are equal."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


Value: TypeAlias = float | Histogram
Row: TypeAlias = tuple[tuple[str, ...], Value]
"""The values of the labels, in the order of the declaration, and the value."""
Family: TypeAlias = tuple[Metric, Iterable[Row]]
Collector: TypeAlias = Callable[[], Iterable[Family]]
"""Yields families. Each metric comes once, from one collector. It can pause between two rows, so it
must not iterate over what changes meanwhile."""


class Sample(NamedTuple):
    """A value of a metric at one moment, as ``Registry.samples`` yields it.

    Attributes:
        name: of a histogram, the name with ``_bucket``, ``_sum`` or ``_count``.
        labels: pairs of name and value.
        kind: the type of the metric: ``counter``, ``gauge`` or ``histogram``.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    kind: Kind
    value: float


class Registry:
    """The metrics of one process, or of one broker in it."""

    def __init__(self) -> None:
        self._children: dict[Metric, dict[tuple[str, ...], Counter | Gauge | Histogram]] = {}
        self._collectors: list[Collector] = []
        self._detailed: list[Collector] = []

    # --- counting --------------------------------------------------------------------------------

    def counter(self, metric: Metric, *labels: str) -> Counter:
        """Return the counter of a metric for these label values; the same one at each call.

        Call this once and keep the result where work is frequent.
        """
        child = self._child(metric, labels)
        assert isinstance(child, Counter)
        return child

    def gauge(self, metric: Metric, *labels: str) -> Gauge:
        """Return the gauge of a metric for these label values; the same one at each call."""
        child = self._child(metric, labels)
        assert isinstance(child, Gauge)
        return child

    def histogram(self, metric: Metric, *labels: str) -> Histogram:
        """Return the histogram of a metric for these label values; the same one at each call."""
        child = self._child(metric, labels)
        assert isinstance(child, Histogram)
        return child

    def remove(self, metric: Metric, *labels: str) -> None:
        """Forget the value for these label values, for example of a client that is gone."""
        self._children.get(metric, {}).pop(labels, None)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
        children = self._children.setdefault(metric, {})
        child = children.get(labels)
        if child is None:
            if len(labels) != len(metric.labels):
                raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
            if len(children) >= MOST_CHILDREN and labels != (OTHER,) * len(labels):
                return self._child(metric, (OTHER,) * len(labels))
            child = children[labels] = _new(metric)
        return child

    # --- collecting ------------------------------------------------------------------------------

    def collect(self, collector: Collector, *, detailed: bool = False) -> None:
        """Ask a collector at each scrape.

        Args:
            detailed: whether it is asked for the page with series of single partitions only.
        """
        (self._detailed if detailed else self._collectors).append(collector)

    def families(self, *, detailed: bool = False) -> Iterator[Family]:
        """Yield each metric with its values.

        Args:
            detailed: yield the series of single partitions, and nothing else.
        """
        if not detailed:
            for metric in list(self._children):
                rows: list[Row] = [
                    (labels, child if isinstance(child, Histogram) else child.value)
                    for labels, child in list(self._children[metric].items())
                ]
                yield metric, rows
        for collector in list(self._detailed if detailed else self._collectors):
            yield from collector()

    def samples(self) -> Iterator[Sample]:
        """Yield each value with name, labels and type, for other ways out than a scrape.

        Of a histogram, that is the cumulative count of each range (``_bucket``, with the label
        ``le``), the sum and the count.
        """
        for metric, rows in self.families():
            for values, value in rows:
                labels = tuple(zip(metric.labels, values, strict=True))
                if isinstance(value, Histogram):
                    yield from _samples_of(metric, labels, value)
                else:
                    yield Sample(metric.name, labels, metric.kind, value)


def cumulative(value: Histogram) -> Iterator[tuple[str, int]]:
    """Yield the upper bound of each range as text, and how many values are not above it."""
    total = 0
    for bound, count in zip((*value.bounds, None), value.counts, strict=True):
        total += count
        yield "+Inf" if bound is None else bound_text(bound), total


def bound_text(bound: float) -> str:
    """Return an upper bound as the label ``le`` has it: as client libraries write it."""
    return f"{bound:g}" if bound >= 1e6 else repr(float(bound))


def _samples_of(
    metric: Metric, labels: tuple[tuple[str, str], ...], value: Histogram
) -> Iterator[Sample]:
    count = 0
    for bound, count in cumulative(value):
        yield Sample(f"{metric.name}_bucket", (*labels, ("le", bound)), metric.kind, count)
    yield Sample(f"{metric.name}_sum", labels, metric.kind, value.sum)
    yield Sample(f"{metric.name}_count", labels, metric.kind, count)


def _new(metric: Metric) -> Counter | Gauge | Histogram:
    if metric.kind == "histogram":
        return Histogram(metric.buckets)
    return Counter() if metric.kind == "counter" else Gauge()
