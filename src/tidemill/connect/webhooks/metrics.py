"""Metrics of webhooks that go out. They come from the statuses that the worker publishes."""

from __future__ import annotations

from tidemill.connect.base.metrics import Statuses, add_statuses
from tidemill.metrics.definition import counter, gauge
from tidemill.metrics.registry import Registry

_SINCE = "since its last start."

PHASE = gauge("tidemill_webhook_phase", "1 for the present phase of a webhook.", "webhook", "phase")
DELIVERED = counter(
    "tidemill_webhook_delivered_total", f"Records that the endpoint has {_SINCE}", "webhook"
)
FAILED = counter("tidemill_webhook_failed_total", f"Attempts that have failed {_SINCE}", "webhook")
DEAD = counter(
    "tidemill_webhook_dead_total", f"Records that became dead letters {_SINCE}", "webhook"
)
FILTERED = counter(
    "tidemill_webhook_filtered_total", f"Records that the filter left out {_SINCE}", "webhook"
)
LAG = gauge("tidemill_webhook_lag_records", "Records that a webhook has not finished.", "webhook")
WAITING = gauge("tidemill_webhook_waiting", "Records in memory that wait.", "webhook")
IN_FLIGHT = gauge("tidemill_webhook_in_flight", "Requests that are under way.", "webhook")
RETRYING = gauge("tidemill_webhook_retrying", "Records that wait for a retry.", "webhook")
FAILURES = gauge("tidemill_webhook_failures", "Failures of its worker in a row.", "webhook")


def add_webhooks(registry: Registry, statuses: Statuses) -> None:
    """Add the metrics of webhooks."""
    fields = (
        ("delivered", DELIVERED, 1),
        ("failed", FAILED, 1),
        ("dead", DEAD, 1),
        ("filtered", FILTERED, 1),
        ("lag", LAG, 1),
        ("waiting", WAITING, 1),
        ("in_flight", IN_FLIGHT, 1),
        ("retrying", RETRYING, 1),
        ("failures", FAILURES, 1),
    )
    add_statuses(registry, statuses, PHASE, fields)
