"""Declares metrics: name, type, help and labels, each once, as a constant of a module.

Names follow Prometheus's rules: base units (seconds, bytes), and ``_total`` for counters. Source:
https://prometheus.io/docs/practices/naming/. Must not know a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_RESERVED = frozenset({"le", "quantile", "job", "instance"})
"""Labels that Prometheus gives itself, so that a metric must not have them."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric. Compared by identity: there is one object for each name.

    Attributes:
        name: the name of its samples. A counter's ends with ``_total``.
        help: one sentence about the meaning.
        labels: the names of its labels.
        buckets: upper bounds of a histogram, ascending, without infinity.
        is_foreign: whether another project has chosen the name, which does not follow the rules.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    is_foreign: bool = False

    @property
    def family(self) -> str:
        """The name in OpenMetrics, where a counter's family lacks the suffix ``_total``."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name


_defined: dict[str, Metric] = {}


def defined() -> Iterator[Metric]:
    """Yield the metrics of all modules that were imported, by name."""
    return iter(sorted(_defined.values(), key=lambda each: each.name))


def find(name: str) -> Metric | None:
    """Return the metric with a name, if a module that was imported declares it."""
    return _defined.get(name)


def counter(name: str, text: str, *labels: str, foreign: bool = False) -> Metric:
    """Declare a counter: it only grows, until the process starts again.

    Raises:
        ValueError: the name or a label is not allowed, or the name is taken.
    """
    if not foreign and not name.endswith("_total"):
        raise ValueError(f"invalid counter name {name!r}: it must end with _total")
    return _define(Metric(name, "counter", text, labels, is_foreign=foreign))


def gauge(name: str, text: str, *labels: str, foreign: bool = False) -> Metric:
    """Declare a gauge: a value that rises and falls.

    Raises:
        ValueError: the name or a label is not allowed, or the name is taken.
    """
    return _define(Metric(name, "gauge", text, labels, is_foreign=foreign))


def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    """Declare a histogram.

    Args:
        buckets: upper bounds, ascending, without infinity.

    Raises:
        ValueError: the name or a label is not allowed, or the name is taken.
    """
    if not buckets or list(buckets) != sorted(set(buckets)):
        raise ValueError(f"invalid buckets of {name!r}: use numbers that ascend")
    return _define(Metric(name, "histogram", text, labels, buckets))


def _define(metric: Metric) -> Metric:
    name = metric.name
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"invalid metric name {name!r}: use lower case, digits and '_'")
    if not metric.is_foreign and metric.kind != "counter" and name.endswith("_total"):
        raise ValueError(f"invalid metric name {name!r}: only a counter ends with _total")
    for label in metric.labels:
        if _NAME.fullmatch(label) is None or label in _RESERVED:
            raise ValueError(f"invalid label {label!r} of {name!r}")
    if name in _defined:
        raise ValueError(f"the metric {name!r} is declared twice")
    _defined[name] = metric
    return metric
