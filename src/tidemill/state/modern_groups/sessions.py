"""The time limits of members of modern groups.

This module must not know what happens when a limit is over.
"""

from __future__ import annotations

import enum

from tidemill.state.timers import Timers


class Limit(enum.Enum):
    """A kind of time limit."""

    SESSION = "session"
    """Until the next heartbeat."""
    REVOKE = "revoke"
    """Until the member has given its partitions back."""
    JOIN = "join"
    """Until a classic member has joined again."""
    SYNC = "sync"
    """Until a classic member has asked for its assignment."""


REASONS = {
    Limit.SESSION: "no heartbeat within the session timeout",
    Limit.REVOKE: "it did not give its partitions back within the rebalance timeout",
    Limit.JOIN: "it did not join again within the rebalance timeout",
    Limit.SYNC: "it did not ask for its assignment within the rebalance timeout",
}

TimerKey = tuple[Limit, str, str]
"""(kind, group, member)."""


class Sessions:
    """The time limits of all members."""

    def __init__(self) -> None:
        self.timers: Timers[TimerKey] = Timers()

    def start(self, kind: Limit, group_id: str, member_id: str, limit_ms: int, now_ms: int) -> None:
        """Start a time limit, from the beginning if it runs already."""
        self.timers.set((kind, group_id, member_id), now_ms + max(limit_ms, 1))

    def start_once(
        self, kind: Limit, group_id: str, member_id: str, limit_ms: int, now_ms: int
    ) -> None:
        """Start a time limit if it does not run already."""
        if self.timers.get((kind, group_id, member_id)) is None:
            self.start(kind, group_id, member_id, limit_ms, now_ms)

    def end(self, kind: Limit, group_id: str, member_id: str) -> None:
        """End a time limit, if it runs."""
        self.timers.cancel((kind, group_id, member_id))

    def forget(self, group_id: str, member_id: str) -> None:
        """End all time limits of a member that is gone."""
        for kind in Limit:
            self.end(kind, group_id, member_id)
