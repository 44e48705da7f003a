"""Let the commands on one aggregate run one after the other, within a process.

The store decides between writers, and needs no lock. But of many threads that decide about the same
state, one is accepted and all others read and decide again. Knows no store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A turn for each name that is in use. Threads share it.

    A thread that has a turn does not wait for another one: a command that executes commands could
    otherwise wait for one that waits for it. The store decides between these.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[threading.Lock, list[int]]] = {}
        self._mine = threading.local()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Wait for the turn, and keep it in this context."""
        if getattr(self._mine, "is_held", False):
            yield
            return
        with self._lock:
            turn, users = self._used.setdefault(name, (threading.Lock(), [0]))
            users[0] += 1
        try:
            with turn:
                self._mine.is_held = True
                try:
                    yield
                finally:
                    self._mine.is_held = False
        finally:
            with self._lock:
                users[0] -= 1
                if not users[0]:
                    del self._used[name]

    def __len__(self) -> int:
        return len(self._used)
