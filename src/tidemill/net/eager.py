"""Run a coroutine up to its first wait without a task, and the rest of it as a task.

Most requests never wait. A task for each would double what a short one costs, and its work would
not count for the turn of the connection that asked (``turns``). Python 3.12 has eager tasks; this
is for older versions too. This module must not know what the coroutine does.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Waiting(Coroutine[Any, Any, R]):
    """The rest of a coroutine that has run up to its first wait. A task can run it."""

    __slots__ = ("_coroutine", "_first", "_is_first")

    def __init__(self, coroutine: Coroutine[Any, Any, R], first: Any) -> None:
        self._coroutine = coroutine
        self._first = first
        self._is_first = True

    def send(self, value: Any) -> Any:
        """Return what the coroutine waits for; after the first time, continue it."""
        if self._is_first:
            self._is_first = False
            first, self._first = self._first, None
            return first
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the coroutine waits."""
        self._is_first = False
        try:
            return self._coroutine.throw(*error)
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        """End the coroutine where it waits."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self


class Done(Generic[R]):
    """The result of a coroutine that has run to its end."""

    __slots__ = ("result",)

    def __init__(self, result: R) -> None:
        self.result = result


def start(coroutine: Coroutine[Any, Any, R]) -> Done[R] | Waiting[R]:
    """Run a coroutine until it waits. Errors that it raises before that are raised here."""
    try:
        first = coroutine.send(None)
    except StopIteration as end:
        return Done(end.value)
    return Waiting(coroutine, first)
