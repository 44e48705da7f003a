"""What a state machine's command gives back: records to write, replies to release afterwards.

Knows no machine, no topic, no protocol.

The order in which the broker uses an outcome (state machine replication with one replica):

1. append ``records`` to the machine's internal topic, in the order in which commands gave them;
2. on success hand each record to the machine's ``replay`` (the same that recovery uses: nothing
   else changes what survives a restart), then, once the records are durable, release ``replies``
   and use ``result``;
3. on failure call the machine's ``write_failed(outcome, ...)`` and release what it returns
   instead; ``result`` must not be used.

An outcome without records is complete as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One record for an internal topic; ``value`` None is a tombstone."""

    key: bytes
    value: bytes | None


Reply = tuple[int, object]
"""(ticket, result or TidemillError) that answers a parked request."""


@dataclass(slots=True)
class Outcome(Generic[R]):
    """What a command did.

    Attributes:
        result: the command's own answer (None where it has none or answers through a ticket).
        records: to be written, in this order, before anything is answered.
        replies: answers of parked requests, this command's own among them.
    """

    result: R
    records: list[StateRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    def absorb(self, other: Outcome[None]) -> None:
        """Append the records and replies of another command that ran after this one."""
        self.records += other.records
        self.replies += other.replies


def nothing() -> Outcome[None]:
    """An outcome to fill: no result, no records, no replies yet."""
    return Outcome(None)
