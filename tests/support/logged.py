"""Captures what is logged, from a level on. In tests, only warnings are logged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any, Literal

from structlog.testing import capture_logs

from tidemill import telemetry


@contextlib.contextmanager
def logged(level: Literal["debug", "info"] = "info") -> Iterator[list[MutableMapping[str, Any]]]:
    """Return the list to which each event is added."""
    telemetry.configure(level)
    try:
        with capture_logs() as events:
            yield events
    finally:
        telemetry.configure("warning")
