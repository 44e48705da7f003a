"""Make the edits of the tables while flights are replayed, each at its time.

The replayer and the editor meet at ``wait_for``: before a report is sent, all edits up to its time
are in the topics of the captured tables. A flight's version of its aircraft is never later than the
flight's report, so the pipeline's joins find the version, however fast or slow the capture is.

The editor runs in a thread of the caller. This module must not know SQL, Kafka or Spark.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.demo.database.delivery import Delivery
from tidemill.demo.database.registry import Edit
from tidemill.demo.database.tables import Tables
from tidemill.errors import TidemillError

HOUR = 3600

_POLL_S = 0.02
_LONGEST_LEAD = 6 * HOUR
_LEAD_S = 1.0


class EditorStalledError(TidemillError):
    """Edits do not arrive in the topics of the captured tables."""


@dataclass(frozen=True, slots=True)
class EditProgress:
    """The number of edits: in all, made in the database, and arrived in the topics."""

    total: int
    made: int
    delivered: int


def lead_for(speed: float | None) -> int:
    """Return how many seconds of the stretch the editor is ahead of the replayer.

    At a given speed it is about a second ahead, so that the replayer rarely waits for the capture.
    """
    return _LONGEST_LEAD if speed is None else min(_LONGEST_LEAD, int(speed * _LEAD_S))


class Editor:
    """The user of the database who changes rows.

    Args:
        open_tables: connects to the database. Called in the editor's thread.
        delivery: follows the topics. The editor's thread uses it.
        edits: the edits, in the order of their times.
        lead: how many seconds of the stretch an edit can be made before it is waited for.
        stalled_s: how long to wait for the arrival of an edit.
    """

    def __init__(
        self,
        open_tables: Callable[[], Tables],
        delivery: Delivery,
        edits: tuple[Edit, ...],
        lead: int,
        *,
        stalled_s: float = 120.0,
    ) -> None:
        self._open_tables = open_tables
        self._delivery = delivery
        self._edits = edits
        self._lead = lead
        self._stalled_s = stalled_s
        self._changed = threading.Condition()
        self._wanted = float("-inf")
        self._undelivered = float("-inf")
        self._made = 0
        self._delivered = 0
        self.is_loaded = False
        """Whether the first rows of all tables are in the topics."""
        self._is_over = False

    def progress(self) -> EditProgress:
        """Return the progress. Any thread can call this."""
        return EditProgress(len(self._edits), self._made, self._delivered)

    @property
    def _has_finished(self) -> bool:
        return self.is_loaded and self._delivered == len(self._edits)

    def run(self, stop: threading.Event) -> None:
        """Make all edits that are waited for. Return when all have arrived, or on ``stop``."""
        tables = self._open_tables()
        try:
            while not stop.is_set() and not self._has_finished:
                if self.is_loaded:
                    self._make(tables)
                self._delivery.poll(_POLL_S)
                self._publish()
        finally:
            tables.close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def wait_for(self, moment: int, stop: threading.Event) -> None:
        """Wait until all edits up to a Unix time are in the topics, or until ``stop`` is set.

        Raises:
            EditorStalledError: they do not arrive, or the editor has ended before.
        """
        with self._changed:
            self._wanted = max(self._wanted, moment)
            deadline = time.monotonic() + self._stalled_s
            while self._undelivered <= moment and not stop.is_set():
                if self._is_over or time.monotonic() > deadline:
                    raise EditorStalledError(
                        f"{self._made - self._delivered} edits of the database are not in the"
                        f" topics after {self._stalled_s:g} s"
                    )
                self._changed.wait(0.1)  # to look at ``stop``

    def _make(self, tables: Tables) -> None:
        while self._made < len(self._edits):
            edit = self._edits[self._made]
            if edit.time > self._wanted + self._lead:
                return
            tables.make(edit)
            self._made += 1

    def _publish(self) -> None:
        """Take over what has arrived, and wake the replayer."""
        delivery = self._delivery
        with self._changed:
            self.is_loaded = delivery.is_loaded
            self._delivered = delivery.delivered
            undelivered = delivery.undelivered if delivery.is_loaded else float("-inf")
            if undelivered != self._undelivered:
                self._undelivered = undelivered
                self._changed.notify_all()
