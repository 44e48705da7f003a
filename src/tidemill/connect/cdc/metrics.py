"""Metrics of sources. They come from the statuses that the worker publishes."""

from __future__ import annotations

from tidemill.connect.base.metrics import Statuses, add_statuses
from tidemill.metrics.definition import counter, gauge
from tidemill.metrics.registry import Registry

PHASE = gauge("tidemill_source_phase", "1 for the present phase of a source.", "source", "phase")
WRITTEN = counter(
    "tidemill_source_records_total", "Records that a source has written to topics.", "source"
)
LAG_SECONDS = gauge(
    "tidemill_source_lag_seconds", "Age of the oldest change that is not in a topic.", "source"
)
LAG_CHANGES = gauge("tidemill_source_lag_changes", "Changes that are not in a topic.", "source")
LAG_BYTES = gauge(
    "tidemill_source_lag_bytes", "Bytes of the database's log that a source holds back.", "source"
)
LETTERS = counter(
    "tidemill_source_dead_letters_total", "Rows that were written as dead letters.", "source"
)
FAILURES = gauge("tidemill_source_failures", "Failures of a source in a row.", "source")


def add_sources(registry: Registry, statuses: Statuses) -> None:
    """Add the metrics of sources."""
    fields = (
        ("written", WRITTEN, 1),
        ("lag_ms", LAG_SECONDS, 0.001),
        ("lag_changes", LAG_CHANGES, 1),
        ("lag_bytes", LAG_BYTES, 1),
        ("dead_letters", LETTERS, 1),
        ("attempts", FAILURES, 1),
    )
    add_statuses(registry, statuses, PHASE, fields)
