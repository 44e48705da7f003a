"""Errors of commands to the supervisor."""

from __future__ import annotations

from tidemill.errors import TidemillError


class UnknownWorkerError(TidemillError):
    """There is no worker with this name."""


class WorkerNotNeededError(TidemillError):
    """The worker has nothing to do yet, or the broker is stopping, so it can't be started."""
