"""Counts the errors that clients get, by protocol and type.

The tables of error codes call this. They are functions without state, so the counts are those of
the process. The types of our errors are few, so there is no limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.metrics.definition import counter
from tidemill.metrics.registry import Family, Registry

ERRORS = counter(
    "tidemill_errors_total",
    "Errors that clients got, by the type of the error, one for each place in an answer.",
    "protocol",
    "error",
)
_counts: dict[tuple[str, str], int] = {}


def count_error(protocol: str, kind: type[BaseException]) -> None:
    """Count an error that a client gets."""
    key = protocol, kind.__name__.removesuffix("Error")
    _counts[key] = _counts.get(key, 0) + 1


def add_errors(registry: Registry) -> None:
    """Add the errors of this process to a registry."""

    def collect() -> Iterator[Family]:
        yield ERRORS, list(_counts.items())

    registry.collect(collect)
