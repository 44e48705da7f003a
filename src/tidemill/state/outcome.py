"""The result of a state machine's command: records to write, and replies to send after that.

This module must not know any machine, topic or protocol.

The engine handles an outcome in this order (state machine replication with one replica):

1. It appends ``records`` to the machine's internal topic, in the order in which the commands
   returned them.
2. If that succeeds, it passes each record to the machine's ``replay``. Recovery uses the same
   method, and nothing else changes what survives a restart. When the records are durable, the
   engine sends ``replies`` and uses ``result``.
3. If that fails, it calls the machine's ``write_failed(outcome, ...)`` and sends the replies that
   this returns. ``result`` must not be used.

An outcome without records is complete immediately.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record for an internal topic. ``value`` None is a tombstone."""

    key: bytes
    value: bytes | None


Reply = tuple[int, object]
"""(ticket, result or TidemillError): the answer to a parked request."""


@dataclass(slots=True)
class Outcome(Generic[R]):
    """The result of a command.

    Attributes:
        result: the answer to the command; None if it has no answer or answers through a ticket.
        records: the records to write, in this order, before anything is answered.
        replies: answers to parked requests, possibly to this command itself.
        events: what happened, for the log. The engine logs them when the command has returned.
    """

    result: R
    records: list[StateRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    events: list[object] = field(default_factory=list)

    def absorb(self, other: Outcome[None]) -> None:
        """Append the records, replies and events of a command that ran after this one."""
        self.records += other.records
        self.replies += other.replies
        self.events += other.events


def nothing() -> Outcome[None]:
    """Return an outcome without a result, records or replies. The caller may add to it."""
    return Outcome(None)
