"""Checks, before a command does anything, that the packages which it needs are installed."""

from __future__ import annotations

from tidemill import extras
from tidemill.errors import TidemillError


def require_extra(extra: str) -> None:
    """Check that all packages of an extra are installed.

    Raises:
        TidemillError: one is missing. The hint has the command that installs it.
    """
    if extras.missing(extra) and (problem := extras.problem_of(extra)) is not None:
        raise TidemillError(problem[0], hint=problem[1])
