"""The audit log: which accesses were denied, and at level debug which were allowed.

It is bounded: each principal has so many lines in a second, and the rest are counted. Names come
from clients, so they are shortened, and what can't be printed is escaped.
"""

from __future__ import annotations

import structlog

from tidemill.clock import Clock
from tidemill.engine.authorize import Operation, Principal, Resource

LINES_PER_SECOND = 10
"""Lines of one principal in a second."""
MOST_PRINCIPALS = 1000
"""Principals whose lines are counted. Above it, all counts begin again."""
LONGEST_NAME = 200

log = structlog.get_logger("tidemill.audit")


class AuditLog:
    """Writes the audit log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[Principal, tuple[int, int]] = {}
        """Principal -> a second, and how many accesses it had in it."""

    def report(
        self,
        principal: Principal,
        operation: Operation,
        resource: Resource,
        host: str,
        *,
        allowed: bool,
    ) -> None:
        """Write a line about an access, if the principal has not had too many."""
        second = self._clock.now_ms() // 1000
        began, count = self._counts.get(principal, (second, 0))
        left_out = 0
        if began != second:
            left_out = max(count - LINES_PER_SECOND, 0)
            count = 0
        if len(self._counts) >= MOST_PRINCIPALS and principal not in self._counts:
            self._counts.clear()
        self._counts[principal] = second, count + 1
        if count >= LINES_PER_SECOND:
            return
        fields = {
            "principal": printable(str(principal)),
            "operation": operation.name.lower(),
            "kind": resource.kind.name.lower(),
            "name": printable(resource.name),
            "host": printable(host),
        }
        if left_out:
            fields["left_out"] = str(left_out)
        if allowed:
            log.debug("access.allowed", **fields)
        else:
            log.info("access.denied", **fields)


def printable(text: str) -> str:
    """Return a text of a client for a log line: shortened, with escapes for control characters."""
    shown = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
    return shown if shown.isprintable() else ascii(shown)[1:-1]
