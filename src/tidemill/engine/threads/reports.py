"""A descriptor through which native threads report to the event loop that a job is done.

Knows the event loop, and nothing of the jobs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from tidemill import system


class Reports:
    """Reports of native threads.

    Args:
        reported: called after a report, or after several that came together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, reported: Callable[[], None]) -> None:
        self._loop = loop
        self._reported = reported
        self._signal = -1

    def descriptor(self) -> int:
        """Return the descriptor, which the event loop watches from the first call on.

        Raises:
            OSError: no descriptor is left.
        """
        if self._signal < 0:
            self._signal = system.new_signal()
            self._loop.add_reader(self._signal, self._take)
        return self._signal

    def _take(self) -> None:
        system.take_signal(self._signal)
        self._reported()

    def close(self) -> None:
        """Stop watching. The threads must have ended."""
        if self._signal < 0:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._signal)
        os.close(self._signal)
        self._signal = -1
