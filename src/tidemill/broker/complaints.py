"""Storage errors in the log of the broker, each at most once a while.

A client that meets a damaged partition asks again many times a second; the operator needs one line
that names the place. Knows no partitions, only errors.
"""

from __future__ import annotations

import structlog

from tidemill.clock import Clock
from tidemill.errors import CorruptLogError, StorageError

QUIET_MS = 60_000
MOST = 1000

log_line = structlog.get_logger("tidemill.storage")


class Complaints:
    """Logs storage errors and swallows their repetition within ``QUIET_MS``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_at: dict[str, int] = {}

    def hear(self, error: Exception | None, partition: object) -> None:
        """Log the error if it is the storage's and was not logged lately."""
        if not isinstance(error, StorageError):
            return
        now_ms = self._clock.monotonic_ms()
        text = f"{partition}: {error}"
        said_at = self._said_at.get(text)
        if said_at is not None and now_ms - said_at < QUIET_MS:
            return
        if len(self._said_at) >= MOST:
            self._said_at.clear()
        self._said_at[text] = now_ms
        place = {}
        if isinstance(error, CorruptLogError):
            place = {"file": error.path, "position": error.position, "offset": error.offset}
        log_line.error(
            "storage.error", partition=str(partition), error=str(error), hint=error.hint, **place
        )
