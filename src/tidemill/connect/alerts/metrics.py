"""Metrics of the worker of alerts."""

from __future__ import annotations

from tidemill.metrics.definition import counter, gauge, histogram

ALERTS = gauge("tidemill_alerts", "Alerts of a rule, by state.", "alert", "state")
PROBLEMS = gauge(
    "tidemill_alert_problem", "1 if a rule could not be evaluated at the last time.", "alert"
)
NOTICES = counter(
    "tidemill_alert_notices_total",
    "Attempts to send a notice to a receiver, by outcome: delivered or failed.",
    "receiver",
    "outcome",
)
REPLACED = counter(
    "tidemill_alert_notices_replaced_total",
    "Notices that no attempt could deliver in an hour, so that another replaced them.",
)
WAITING = gauge("tidemill_alert_notices_waiting", "Notices that are not delivered yet.")
SILENCES = gauge("tidemill_alert_silences", "Silences that are in force.")
EVALUATION_SECONDS = histogram(
    "tidemill_alert_evaluation_seconds",
    "Time to read metrics and to evaluate all rules.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
