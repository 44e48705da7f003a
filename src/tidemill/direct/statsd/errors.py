"""Errors of the StatsD listener. Must not know: sockets."""

from __future__ import annotations

from tidemill.errors import TidemillError


class StatsdError(TidemillError):
    """An option of a StatsD listener can't be used, or an event or service check is malformed."""
