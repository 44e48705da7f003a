"""Bounds the number of series: most label values, and one row for the rest.

Must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tidemill.metrics.registry import OTHER


def bounded(names: Iterable[str], most: int) -> Callable[[str], str]:
    """Return the label of each name: itself for the first ones in order, else ``(other)``.

    Names that begin with two underscores (the broker's own topics) come last.
    """
    ordered = sorted(names, key=lambda name: (name.startswith("__"), name))
    if len(ordered) <= most:
        return lambda name: name
    kept = frozenset(ordered[:most])
    return lambda name: name if name in kept else OTHER


class Sums:
    """Adds numbers by label, in the order in which the labels come.

    Args:
        fields: How many numbers there are for each.
        most: Labels with numbers of their own. Those of the rest are added together.
    """

    def __init__(self, fields: int, most: int | None = None) -> None:
        self._fields, self._most = fields, most
        self._sums: dict[tuple[str, ...], list[float]] = {}

    def at(self, *labels: str) -> list[float]:
        """Return the numbers of some labels, to be changed in place."""
        found = self._sums.get(labels)
        if found is None:
            if self._most is not None and len(self._sums) >= self._most:
                labels = (OTHER,) * len(labels)
            found = self._sums.setdefault(labels, [0] * self._fields)
        return found

    def rows(self, field: int) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the labels with one of their numbers."""
        for labels, numbers in self._sums.items():
            yield labels, numbers[field]
