"""A store in memory, for tests of applications: the same fold over a list of records.

What it accepts and refuses is what a store in a log accepts and refuses. Must not know: clients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.eventstore import wire
from tidemill.eventstore.errors import CommitTooLargeError, InvalidCommitError
from tidemill.eventstore.events import Condition, StreamAppend
from tidemill.eventstore.folded import FoldedStore
from tidemill.eventstore.proposals import Answer
from tidemill.eventstore.state import State

MAX_BYTES = 1_048_576
"""The default of ``max.message.bytes``."""


class MemoryStore(FoldedStore):
    """A store of events in the memory of this process. Threads can share it.

    Args:
        clock: returns milliseconds since 1970, for the time of events.
        max_bytes: the most bytes of a commit.
    """

    def __init__(
        self,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__(State(), 0.0)
        self._clock = clock
        self._max_bytes = max_bytes
        self.log: list[bytes] = []
        """The records, as they would be in a topic. For tests."""

    def _propose(
        self,
        appends: Sequence[StreamAppend],
        conditions: Sequence[Condition],
        answer: Answer,
        **more: Any,
    ) -> bytes:
        with self._changed:
            seen = (self._state.position, self._state.hash)
            value = wire.encode(wire.propose(os.urandom(16), appends, conditions, seen, **more))
            if len(value) > self._max_bytes:
                raise CommitTooLargeError(f"a commit of {len(value)} bytes")
            outcome = self._state.step(len(self.log), value, wire.decode(value), self._clock())
            self.log.append(value)
            self.notify()
        answer(outcome or InvalidCommitError("the commit can't be decoded"))
        return b""

    def abandon(self, commit_id: bytes) -> None:
        """Do nothing: a commit has its outcome immediately."""

    def close(self) -> None:
        """End what follows the store."""
        with self._changed:
            self.is_closed = True
            self.notify()
