"""The commits of this process that have no outcome yet.

Of several commits of one process that expect a version of the same stream, at most one is under
way. The others wait for it, and are decided again: most are in conflict then, and would have been
void in the log. So void commits exist only after races of processes. Must not know: clients, logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.eventstore import wire
from tidemill.eventstore.events import Expected
from tidemill.eventstore.fold import Outcome, Void
from tidemill.eventstore.wire import Commit

Answer = Callable[[Outcome | BaseException], None]
"""Gets the outcome of a commit, in the thread that folds. It must not block."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    commit: Commit
    value: bytes
    answer: Answer

    def streams(self) -> list[str]:
        """Return the streams of which it expects a version."""
        return [name for name, expected in self.commit.streams if expected is not Expected.ANY]


class Proposals:
    """Proposes commits, and hands over their outcomes. Threads share it.

    Args:
        decide: returns the outcome that a commit would have now.
        send: sends the record of a commit. Gets its id, and the value of the record.
    """

    def __init__(
        self, decide: Callable[[Commit], Outcome], send: Callable[[bytes, bytes], None]
    ) -> None:
        self._decide = decide
        self._send = send
        self._lock = threading.Lock()
        self._pending: dict[bytes, _Proposal] = {}
        self._under_way: dict[str, bytes] = {}
        self._waiting: dict[bytes, list[_Proposal]] = {}

    def submit(self, commit: Commit, answer: Answer) -> None:
        """Propose a commit.

        Raises:
            ConflictError: it would be void. It was not sent.
            EventStoreError: it can't be sent.
        """
        proposal = _Proposal(commit, wire.encode(commit), answer)
        self._pending[commit.id] = proposal
        try:
            self._start(proposal)
        except BaseException:
            self.abandon(commit.id)
            raise

    def _start(self, proposal: _Proposal) -> None:
        """Send a proposal, or let it wait for one that is under way."""
        commit, streams = proposal.commit, proposal.streams()
        with self._lock:
            if commit.id not in self._pending:
                return
            for stream in streams:
                other = self._under_way.get(stream)
                if other is not None:
                    self._waiting.setdefault(other, []).append(proposal)
                    return
            for stream in streams:
                self._under_way[stream] = commit.id
        outcome = self._decide(commit)
        if isinstance(outcome, Void):
            raise outcome.error
        self._send(commit.id, proposal.value)

    def settle(self, commit_id: bytes, outcome: Outcome | BaseException) -> None:
        """Hand over the outcome of a commit, if it is one of this process."""
        proposal = self._pending.get(commit_id)
        if proposal is not None:
            self.abandon(commit_id)
            proposal.answer(outcome)

    def abandon(self, commit_id: bytes) -> None:
        """Forget a commit, and start those that wait for it."""
        with self._lock:
            proposal = self._pending.pop(commit_id, None)
            if proposal is None:
                return
            for stream in proposal.streams():
                if self._under_way.get(stream) == commit_id:
                    del self._under_way[stream]
            waiting = self._waiting.pop(commit_id, ())
        for each in waiting:
            try:
                self._start(each)
            except Exception as error:
                self.settle(each.commit.id, error)

    def fail(self, error: BaseException) -> None:
        """Hand over an error to all."""
        for commit_id in list(self._pending):
            self.settle(commit_id, error)
