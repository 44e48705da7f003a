"""The base of stores that decide by the fold: how a commit is proposed, and what its writer gets.

``Store`` proposes to a topic, ``MemoryStore`` to a list. Must not know: where the log is, files.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tidemill.eventstore.errors import OutcomeUnknownError, VersionConflictError
from tidemill.eventstore.events import Appended, Condition, Events, StreamAppend
from tidemill.eventstore.fold import Outcome, Void
from tidemill.eventstore.proposals import Answer
from tidemill.eventstore.reading import Reader
from tidemill.eventstore.state import State


class FoldedStore(Reader, Events):
    """A store over a state that folds commits.

    Args:
        state: the state.
        timeout_s: how long a writer waits for its outcome.
    """

    def __init__(self, state: State, timeout_s: float) -> None:
        super().__init__(state, threading.Condition())
        self.timeout_s = timeout_s

    @abstractmethod
    def _propose(
        self,
        appends: Sequence[StreamAppend],
        conditions: Sequence[Condition],
        answer: Answer,
        **more: Any,
    ) -> bytes:
        """Propose a commit with further attributes; see ``propose``."""

    @abstractmethod
    def abandon(self, commit_id: bytes) -> None:
        """Don't wait for the outcome of a commit any more. It may be stored nevertheless."""

    @abstractmethod
    def close(self) -> None:
        """End all that follows the store."""

    def propose(
        self, appends: Sequence[StreamAppend], conditions: Sequence[Condition], answer: Answer
    ) -> bytes:
        """Check a commit against what is folded, and propose it. Don't wait for the outcome.

        Args:
            answer: gets the outcome, or the error, perhaps in another thread. It must not block.

        Returns:
            The id of the commit.

        Raises:
            ConflictError: what is folded already excludes it. Nothing was sent.
        """
        return self._propose(appends, conditions, answer)

    def commit(
        self,
        appends: Sequence[StreamAppend],
        *,
        conditions: Sequence[Condition] = (),
        keys: Sequence[str] = (),
    ) -> Appended:
        """Store events of several streams, all or none; see ``Events.commit``.

        Args:
            keys: ids of the keys with which content is sealed. If one is forgotten, the commit is
                void.
        """
        return self._commit(appends, conditions, keys=tuple(keys))

    def forget(self, keys: Sequence[str]) -> None:
        """Declare that keys are deleted: later commits that are sealed with them are void.

        Raises:
            OutcomeUnknownError: the outcome is not known in time. It can be repeated.
        """
        self._commit((), (), forget=tuple(keys))

    def truncate(self, below: Mapping[str, int]) -> None:
        """Make the first events of streams unreadable, for all processes: retention.

        Versions and positions stay as they are, ids stay known, and append conditions still see
        the events. The index loses their data; the log keeps them until it is archived.

        Args:
            below: by stream, the version below which its events are not read any more.

        Raises:
            VersionConflictError: a stream does not have so many events.
        """
        self._commit((), (), truncate=tuple(below.items()))

    def _commit(
        self, appends: Sequence[StreamAppend], conditions: Sequence[Condition], **more: Any
    ) -> Appended:
        waiter = _Waiter()
        try:
            commit_id = self._propose(appends, conditions, waiter, **more)
        except VersionConflictError as error:
            if not may_be_behind(appends, error):
                raise
            self.catch_up()
            commit_id = self._propose(appends, conditions, waiter, **more)
        try:
            outcome = waiter.wait(self.timeout_s)
        finally:
            self.abandon(commit_id)
        return answered(outcome, self.timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def may_be_behind(appends: Sequence[StreamAppend], error: VersionConflictError) -> bool:
    """Return whether a conflict may vanish when the log is read to its end.

    A caller that expects more events than are folded may know of them from another process.
    """
    expected = {each.stream: each.expected for each in appends}.get(error.stream)
    return not isinstance(expected, int) or expected > error.actual


def answered(outcome: Outcome | BaseException | None, timeout_s: float) -> Appended:
    """Return what a writer gets, or raise it."""
    if outcome is None:
        raise OutcomeUnknownError(
            f"the commit did not come back within {timeout_s:g} s",
            hint="Append the same events, with the same ids, again: they are stored once.",
        )
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(outcome, Void):
        raise outcome.error
    return outcome.appended


class _Waiter:
    """Waits for an outcome in one thread."""

    __slots__ = ("_gate", "_outcome")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._outcome: Outcome | BaseException | None = None

    def __call__(self, outcome: Outcome | BaseException) -> None:
        self._outcome = outcome
        with contextlib.suppress(RuntimeError):  # it has an outcome already
            self._gate.release()

    def wait(self, timeout_s: float) -> Outcome | BaseException | None:
        """Return the outcome; None if there is none in time."""
        self._gate.acquire(timeout=timeout_s)
        return self._outcome
