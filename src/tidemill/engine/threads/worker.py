"""A thread for work that blocks. It reports to the event loop, and must not know the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """The result of work on another thread, or its error."""

    __slots__ = ("_error", "_results")

    def __init__(self, results: tuple[T, ...], error: BaseException | None) -> None:
        self._results = results
        self._error = error

    def exception(self) -> BaseException | None:
        """Return the error, or None."""
        return self._error

    def result(self) -> T:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._results[0]


class Worker:
    """A thread that runs work in order, and reports to the event loop.

    An executor would make a future with a lock for each round of the journal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None]
        self._queue = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False

    def run(self, work: Callable[[], T], finished: Callable[[Outcome[T]], None]) -> None:
        """Run ``work``, and then ``finished`` on the event loop."""
        if self._thread.ident is None:
            self._thread.start()
        self._queue.put((work, finished))

    def close(self) -> None:
        """Wait for the work that has begun, and drop the rest."""
        self._closed = True
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            item = self._queue.get()
            if item is None or self._closed:
                return
            work, finished = item
            outcome: Outcome[Any]
            try:
                outcome = Outcome((work(),), None)
            except BaseException as error:  # a bug is reported too
                outcome = Outcome((), error)
            try:
                self._loop.call_soon_threadsafe(finished, outcome)
            except RuntimeError:
                # The loop is closed: the process is ending and no request waits any more.
                return
            del item, work, finished, outcome  # not kept until the next round
