"""Log storage errors, each at most once a minute, and the repairs of files.

A client that meets a damaged partition asks again many times a second. The operator needs one line
that names the place. Knows errors and reports only, and no partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tidemill.clock import Clock
from tidemill.log.disk.environment import Report
from tidemill.log.errors import CorruptLogError, StorageError

REPEAT_AFTER_MS = 60_000
MAX_REMEMBERED = 1000

logger = structlog.get_logger("tidemill.storage")


class RepairLog:
    """Logs each repair once. Some indexes are repaired when they are used, long after the start."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._reports = reports
        self._logged = 0

    def report(self) -> None:
        """Log the repairs since the last call."""
        for report in self._reports[self._logged :]:
            logger.warning("log.repaired", report=str(report))
        self._logged = len(self._reports)


class Repetitions:
    """Finds texts that were logged within ``REPEAT_AFTER_MS``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: dict[str, int] = {}

    def is_new(self, text: str) -> bool:
        """Return whether a text is to be logged; note that it was."""
        now_ms = self._clock.monotonic_ms()
        logged_at = self._logged_at.get(text)
        if logged_at is not None and now_ms - logged_at < REPEAT_AFTER_MS:
            return False
        if len(self._logged_at) >= MAX_REMEMBERED:
            self._logged_at.clear()
        self._logged_at[text] = now_ms
        return True


class StorageErrorLog:
    """Logs storage errors and drops repetitions within ``REPEAT_AFTER_MS``."""

    def __init__(self, clock: Clock) -> None:
        self._logged = Repetitions(clock)

    def report(self, error: Exception | None, partition: object) -> None:
        """Log ``error`` if it is a storage error that was not logged within the last minute."""
        if not isinstance(error, StorageError):
            return
        if not self._logged.is_new(f"{partition}: {error}"):
            return
        place = {}
        if isinstance(error, CorruptLogError):
            place = {"file": error.path, "position": error.position, "offset": error.offset}
        logger.error(
            "partition.failed", partition=str(partition), error=str(error), hint=error.hint, **place
        )
