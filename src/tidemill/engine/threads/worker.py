"""A thread for work that blocks. It reports to the event loop, and must not know the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

Work: TypeAlias = Callable[[], object]
Finished: TypeAlias = Callable[[BaseException | None], None]
"""Gets the error of the work, or None if it is done."""


class Worker:
    """A thread that runs work in order, and reports to the event loop.

    An executor would make a future with a lock for each round of the journal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Work, Finished] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._closed = False

    def run(self, work: Work, finished: Finished) -> None:
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
            failure: BaseException | None = None
            try:
                work()
            except BaseException as error:  # a bug is reported too
                failure = error
            try:
                self._loop.call_soon_threadsafe(finished, failure)
            except RuntimeError:
                # The loop is closed: the process is ending and no request waits any more.
                return
            del item, work, finished, failure  # not kept until the next round
