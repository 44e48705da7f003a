"""Writes metrics as lines of StatsD, etsy's or Datadog's.

A counter becomes what was added since the last call. Of a histogram there is one timer in each
interval: the mean, in milliseconds, at the rate 1/count, so that a server's count and sum are
right. Its percentiles would not be: scrape ``/metrics`` for these. Must not know a socket.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tidemill.metrics.definition import Metric
from tidemill.metrics.registry import Histogram, Registry

_RESERVED = re.compile(r"[:|@#,\s]")

_Key = tuple[str, tuple[str, ...]]


class StatsdLines:
    """The lines of one registry.

    Args:
        registry: the metrics.
        prefix: the first part of each name, before a dot; none if it is empty.
        tags: whether labels are tags of DogStatsD; otherwise their values are parts of the name.
    """

    def __init__(self, registry: Registry, prefix: str = "", *, tags: bool = False) -> None:
        self._registry = registry
        self._prefix = f"{prefix}." if prefix else ""
        self._tags = tags
        self._last: dict[_Key, tuple[float, float]] = {}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the interval since the last call. A caller can pause between two.

        What has not changed is left out, except for gauges.
        """
        last, self._last = self._last, {}
        for metric, rows in self._registry.families():
            for labels, value in rows:
                key = metric.name, labels
                now = _totals(value)
                before = last.get(key, (0.0, 0.0))
                if now[0] < before[0]:  # it was removed, and begins again
                    before = 0.0, 0.0
                if metric.kind != "gauge":
                    self._last[key] = now
                yield from self._lines(metric, labels, now[0] - before[0], now[1] - before[1], now)

    def _lines(
        self,
        metric: Metric,
        labels: tuple[str, ...],
        more: float,
        more_sum: float,
        now: tuple[float, float],
    ) -> Iterator[str]:
        name, end = self._name(metric, labels)
        if metric.kind == "gauge":
            if not math.isfinite(now[0]):
                return
            if now[0] < 0 and not self._tags:
                yield f"{name}:0|g"  # in etsy's StatsD, a sign makes it a change
            yield f"{name}:{now[0]:.15g}|g{end}"
        elif metric.kind == "counter":
            if more:
                yield f"{name}:{more:.15g}|c{end}"
        elif more:
            rate = f"|@{1 / more:.9g}" if more > 1 else ""
            yield f"{name}:{1000 * more_sum / more:.9g}|ms{rate}{end}"

    def _name(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, str]:
        name = self._prefix + metric.name
        values = [_RESERVED.sub("_", each) for each in labels]
        if self._tags:
            pairs = zip(metric.labels, values, strict=True)
            tags = ",".join(f"{label}:{value}" for label, value in pairs)
            return name, f"|#{tags}" if tags else ""
        return ".".join((name, *(each.replace(".", "_") or "none" for each in values))), ""


def _totals(value: float | Histogram) -> tuple[float, float]:
    if isinstance(value, Histogram):
        return sum(value.counts), value.sum
    return value, 0.0
