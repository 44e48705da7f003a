"""Note how the runs of one definition end: its phase, the last error, and when it is tried again.

Keepers use it, of webhooks, of bridges and of views. Must not know: what runs.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Literal

from tidemill.connect.base.secrets import redact
from tidemill.errors import SettingsError, TidemillError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
STEADY_S = 60.0
"""After a run of so long, a failure counts as the first one."""

Phase = Literal["starting", "running", "paused", "disabled", "waiting", "failed", "stopped"]
"""``waiting`` continues by itself after a failure, ``failed`` waits for the user."""


class Runs:
    """The runs of one definition, one after the other.

    Args:
        permanent: errors after which another run would fail in the same way.
        unexpected: makes the error for an exception of another type.

    Attributes:
        failures: how many runs have failed in a row.
    """

    def __init__(
        self,
        permanent: type[TidemillError] | tuple[type[TidemillError], ...],
        unexpected: type[TidemillError] = TidemillError,
    ) -> None:
        self._permanent = permanent
        self._unexpected = unexpected
        self._began = 0.0
        self._error: TidemillError | None = None
        self.phase: Phase = "starting"
        self.failures = 0

    def begin(self) -> None:
        """Note that a run begins."""
        self.phase, self._began = "starting", time.monotonic()

    def work(self) -> None:
        """Note that the run works."""
        self.phase, self._error = "running", None

    def rest(self, phase: Phase) -> None:
        """Note that nothing is to run."""
        self.phase, self._error, self.failures = phase, None, 0

    def fail(self, error: BaseException) -> float | None:
        """Note that the run has failed.

        Returns:
            The pause until the next one, in seconds; None: it waits for the user.
        """
        if time.monotonic() - self._began > STEADY_S:
            self.failures = 0
        self.failures += 1
        if not isinstance(error, TidemillError):
            error = self._unexpected(f"unexpected {type(error).__name__}: {error}")
        self._error = error
        if isinstance(error, (self._permanent, SettingsError)):
            self.phase = "failed"
            return None
        self.phase = "waiting"
        return min(FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 10), LONGEST_PAUSE_S)

    def said(self) -> dict[str, Any]:
        """Return the last error, its hint and the number of failures, without secrets."""
        error = self._error
        return {
            "error": redact(" ".join(str(error).split())) if error else "",
            "hint": redact(error.hint) if error else "",
            "failures": self.failures,
        }

    def status(self) -> dict[str, Any]:
        """Return what all statuses have, as JSON values."""
        return {
            "phase": self.phase,
            "updated_ms": time.time_ns() // 1_000_000,
            "worker": f"{socket.gethostname()}:{os.getpid()}",
            **self.said(),
        }
