"""Runs tickets, the syncs of partitions' own files, on a few threads.

On Linux, a ticket that has only one open file to sync goes to a native thread. A thread of Python
must take Python's lock before a sync and after it, and a busy event loop makes it wait for longer
than the sync takes. All other tickets, and all of other systems, are run on threads of Python,
with the same results.

Knows tickets and the event loop, and nothing of the requests that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tidemill import system
from tidemill.engine.threads.reports import Reports
from tidemill.engine.threads.worker import Finished
from tidemill.log.partition.sync import SyncTicket, run_tickets
from tidemill.native import extension

MOST_TOGETHER = 64
"""Tickets of a job for a native thread. All of their files stay open until it ends."""


class TicketRunner:
    """Runs tickets.

    Args:
        threads: how many jobs run at a time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sync")
        self._make = extension.SyncThread if system.is_linux() else None
        self._reports = Reports(loop, self._take_results)
        self._idle: list[extension.SyncThread] = []
        self._running: dict[extension.SyncThread, tuple[Sequence[SyncTicket], Finished]] = {}
        self._closed = False
        self._threads = threads
        self.free = threads
        """How many more jobs can be run now."""

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""
        return self.free < self._threads

    def run(self, tickets: Sequence[SyncTicket], finished: Finished) -> None:
        """Run tickets as one job, and then call ``finished`` on the loop unless it was closed.

        Args:
            finished: gets the error of a ticket that failed, or None if all are done.
        """
        self.free -= 1
        if not self._start(tickets, finished):
            self._run_in_python(tickets, finished)

    def close(self) -> None:
        """Wait for the jobs that have begun, and drop the rest."""
        self._closed = True
        self._make = None
        for thread in (*self._idle, *self._running):
            thread.close()
        for thread, (tickets, _) in self._running.items():
            _end(tickets, thread.result())  # the pool of files keeps the error of a failed sync
        self._idle.clear()
        self._running.clear()
        self._reports.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _finish(self, finished: Finished, error: BaseException | None) -> None:
        self.free += 1
        if not self._closed:
            finished(error)

    # --- native threads --------------------------------------------------------------------------

    def _start(self, tickets: Sequence[SyncTicket], finished: Finished) -> bool:
        """Start a job on a native thread; return whether that can be."""
        if self._make is None or len(tickets) > MOST_TOGETHER:
            return False
        begun: list[SyncTicket] = []
        files: list[tuple[int, int, int]] = []
        for ticket in tickets:
            file = ticket.begin()
            if file is None:
                _end(begun, None)
                return False
            begun.append(ticket)
            files.append((file, *ticket.allocated))
        try:
            thread = self._idle[-1] if self._idle else self._make(self._reports.descriptor())
            thread.start(files)
        except OSError:  # no descriptor or no thread is left
            _end(begun, None)
            return False
        if self._idle:
            self._idle.pop()
        self._running[thread] = tickets, finished
        return True

    def poll(self) -> None:
        """Finish the jobs that are done and that the event loop has not noticed yet.

        An error is left to the event loop.
        """
        for thread in [thread for thread in self._running if thread.has_synced()]:
            self._take_result(thread)

    def _take_results(self) -> None:
        for thread in list(self._running):
            self._take_result(thread)

    def _take_result(self, thread: extension.SyncThread) -> None:
        result = thread.result()
        if result is not None:
            tickets, finished = self._running.pop(thread)
            self._idle.append(thread)
            self._finish(finished, _end(tickets, result))

    # --- threads of Python -----------------------------------------------------------------------

    def _run_in_python(self, tickets: Sequence[SyncTicket], finished: Finished) -> None:
        def back(job: Future[None]) -> None:
            if job.cancelled():
                return
            try:
                self._loop.call_soon_threadsafe(self._finish, finished, job.exception())
            except RuntimeError:
                # The loop is closed: the process is ending and no request waits any more.
                return

        self._pool.submit(run_tickets, tickets).add_done_callback(back)


def _end(tickets: Sequence[SyncTicket], result: tuple[int, int] | None) -> BaseException | None:
    """Pass their results to tickets that were begun.

    Args:
        tickets: the tickets of a job, in order.
        result: how many of them were synced, and the number of the error of the next one. None:
            none was tried.

    Returns:
        The error of the one that failed.
    """
    synced, failed = result or (0, None)
    error: BaseException | None = None
    for place, ticket in enumerate(tickets):
        try:
            ticket.end(0 if place < synced else failed if place == synced else None)
        except Exception as caught:
            error = caught
    return error
