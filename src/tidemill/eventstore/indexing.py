"""Keeps an index up to date beside the fold: one process of a machine writes it, the others watch.

The holder of a file lock writes what it has folded, ten times a second or every thousand records.
All drop from memory what the index has. No append waits for it, except when the memory of what the
index lacks is full. Must not know: clients, the rules of the fold.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable

from tidemill.errors import TidemillError
from tidemill.eventstore.index import Indexed, IndexFile, mismatch
from tidemill.eventstore.index_files import Lock, lock_path
from tidemill.eventstore.index_writing import IndexWriter
from tidemill.eventstore.state import State

_log = logging.getLogger("tidemill.eventstore")

PERIOD_S = 0.1
"""How often the index is written, or looked at."""
STEPS = 1000
"""Records after which it is written earlier, and that one transaction writes."""
MEMORY = 64 * 1024 * 1024
"""Bytes of records that are not in the index. The fold waits while there are more."""


class Indexing:
    """Writes an index, or watches it, in a thread of its own.

    Args:
        index: the index.
        state: used with ``changed`` held.
        changed: notified when memory is free again.
        failed: called with the error because of which the thread ends.
    """

    def __init__(
        self,
        index: IndexFile,
        state: State,
        changed: threading.Condition,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._index = index
        self._state = state
        self._changed = changed
        self._failed = failed
        self._lock = Lock(lock_path(index.path))
        self._writer: IndexWriter | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Write earlier, because there is much to write. Never blocks."""
        self._wake.set()

    @property
    def is_full(self) -> bool:
        """Whether the fold must wait."""
        return self._state.size > MEMORY

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._wake.wait(PERIOD_S)
                self._wake.clear()
                self.advance()
        except TidemillError as error:
            self._failed(error)
        except Exception as error:  # without the thread, the fold would wait for memory
            _log.exception("the index %s can't be written", self._index.path)
            self._failed(error)

    def advance(self) -> None:
        """Write what is folded, or find out what another process has written."""
        if self._writer is None and self._lock.take():
            self._writer = IndexWriter(self._index)
        while True:
            with self._changed:
                steps = list(itertools.islice(self._state.steps, STEPS))
                folded = self._state.offset
            if self._writer is not None:
                indexed = self._writer.write(steps) if steps else None
            else:
                indexed = self._index.indexed() if steps else None
            if indexed is None:
                return
            self._drop(indexed)
            if self._writer is None or len(steps) < STEPS or folded <= indexed.head.offset:
                return

    def _drop(self, indexed: Indexed) -> None:
        head = indexed.head
        with self._changed:
            step = self._state.drop(head.offset)
            self._changed.notify_all()
        if step is not None and step.offset == head.offset and step.hash != head.hash:
            raise mismatch(self._index.path, f"has another content at offset {head.offset}")

    def close(self) -> None:
        """Write the rest, if this process writes, and end."""
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(TidemillError):
            if self._writer is not None:
                self.advance()
        if self._writer is not None:
            self._writer.close()
        self._lock.close()
