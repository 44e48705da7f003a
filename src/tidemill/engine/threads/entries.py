"""Writes the journal's entries on a thread, and reports each to the event loop.

On Linux, the thread is a native one. It needs Python's lock for nothing, so a busy event loop does
not delay it, and it does not delay the loop. Its reports come through a descriptor (eventfd) that
the loop watches. Anything else is written on a thread of Python, with the same results: another
system, a file of a test, a machine that gives no thread, a broker after a failed sync.

Knows writes and the event loop, and not what is in an entry.
"""

from __future__ import annotations

import asyncio

from tidemill import system
from tidemill.engine.threads.reports import Reports
from tidemill.engine.threads.worker import Finished, Worker
from tidemill.log.journal.journal import JournalWrite
from tidemill.native import extension


class EntryWriter:
    """Writes one entry at a time.

    Args:
        worker: writes what the native thread does not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
        self._loop = loop
        self._worker = worker
        self._make = extension.EntryThread if system.is_linux() else None
        self._thread: extension.EntryThread | None = None
        self._reports = Reports(loop, self._take_result)
        self._running: tuple[JournalWrite, Finished] | None = None

    def run(self, write: JournalWrite, finished: Finished) -> None:
        """Write and sync an entry, and then call ``finished`` on the loop."""
        if not self._start(write):
            self._worker.run(write.run, finished)
        else:
            self._running = write, finished

    def _start(self, write: JournalWrite) -> bool:
        """Start an entry on the native thread; return whether that can be."""
        file = write.descriptor
        if file is None or self._make is None:
            return False
        try:
            if self._thread is None:
                self._thread = self._make(self._reports.descriptor())
            self._thread.start(file, write.header, write.buffers, write.position)
        except OSError:  # no descriptor or no thread is left
            return False
        return True

    def poll(self) -> None:
        """Call ``finished`` if the entry is on disk and the event loop has not noticed it yet.

        An error is left to the event loop.
        """
        if self._running is not None and self._thread is not None and self._thread.has_written():
            self._take_result()

    def _take_result(self) -> None:
        result = None if self._thread is None else self._thread.result()
        if result is None or self._running is None:
            return
        (write, finished), self._running = self._running, None
        failure: Exception | None = None
        try:
            write.ran(*result)
        except Exception as error:
            failure = error
        finished(failure)

    def close(self) -> None:
        """Wait for the entry that has begun, without a report of it; end the native thread."""
        self._make = None
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        self._reports.close()
