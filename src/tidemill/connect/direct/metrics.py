"""Metrics of bridges. They come from the statuses that the worker publishes."""

from __future__ import annotations

from tidemill.connect.base.metrics import Statuses, add_statuses
from tidemill.metrics.definition import counter, gauge
from tidemill.metrics.registry import Registry

_SINCE = "since its last start."

PHASE = gauge("tidemill_bridge_phase", "1 for the present phase of a bridge.", "bridge", "phase")
RECEIVED = counter(
    "tidemill_bridge_received_total", f"Messages that a bridge has received {_SINCE}", "bridge"
)
DELIVERED = counter(
    "tidemill_bridge_delivered_total", f"Messages that a bridge has passed on {_SINCE}", "bridge"
)
LOST = counter("tidemill_bridge_lost_total", f"Messages that are gone, {_SINCE}", "bridge")
RECOVERED = counter(
    "tidemill_bridge_recovered_total", f"Lost messages that were sent again, {_SINCE}", "bridge"
)
REFUSED = counter(
    "tidemill_bridge_refused_total", f"Messages that a bridge has refused {_SINCE}", "bridge"
)
RETRIED = counter(
    "tidemill_bridge_retried_total", f"Attempts that a bridge has repeated {_SINCE}", "bridge"
)
FAILURES = gauge("tidemill_bridge_failures", "Failures of a bridge in a row.", "bridge")


def add_bridges(registry: Registry, statuses: Statuses) -> None:
    """Add the metrics of bridges."""
    fields = (
        ("received", RECEIVED, 1),
        ("delivered", DELIVERED, 1),
        ("lost", LOST, 1),
        ("recovered", RECOVERED, 1),
        ("refused", REFUSED, 1),
        ("retried", RETRIED, 1),
        ("failures", FAILURES, 1),
    )
    add_statuses(registry, statuses, PHASE, fields)
