"""Errors of alerts. The worker tries again after each that is not permanent."""

from __future__ import annotations

from tidemill.errors import TidemillError


class AlertError(TidemillError):
    """The worker of alerts failed. It starts again from the stored state after a pause."""


class PermanentAlertError(AlertError):
    """The worker failed, and would fail in the same way without a change by the user."""


class MatcherError(TidemillError):
    """A matcher of a silence is invalid."""


class NoAlertError(TidemillError):
    """There is no such alert or silence, or it has ended."""
