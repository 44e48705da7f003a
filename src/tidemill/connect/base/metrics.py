"""Metrics of what a board defines, from the statuses that workers publish anyway.

Must not know: a kind of definition. A table says which value of a status is which metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidemill.metrics.definition import Metric
from tidemill.metrics.registry import Family, Registry, Row

Statuses = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Returns the present statuses by name. Any thread can call it."""
Fields = tuple[tuple[str, Metric, float], ...]
"""The name of a value in the status, its metric, and the factor to its unit."""


def add_statuses(registry: Registry, statuses: Statuses, phases: Metric, fields: Fields) -> None:
    """Add the metrics of some definitions, each with its name as the first label.

    Args:
        phases: gets 1 for the present phase of each definition, with name and phase as labels.
    """

    def collect() -> Iterator[Family]:
        found = list(statuses().items())
        yield phases, [((name, str(status.get("phase", ""))), 1) for name, status in found]
        for key, metric, factor in fields:
            rows: list[Row] = [
                ((name,), value * factor)
                for name, status in found
                if isinstance(value := status.get(key), (int, float))
            ]
            if rows:
                yield metric, rows

    registry.collect(collect)
