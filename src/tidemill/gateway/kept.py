"""Keeps what someone has looked at for a short time. Must not know: what it is, Kafka, HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """A value that is read when someone looks. Looks within a time share it.

    It belongs to one event loop.

    Args:
        seconds: How long it is kept.
        read: Returns it. It runs in a thread, one at a time.
        longer: How long it is kept at least, in seconds, for the seconds that the read took.
    """

    def __init__(
        self, seconds: float, read: Callable[[], T], longer: Callable[[float], float] | None = None
    ) -> None:
        self._seconds = self._least_s = seconds
        self._read = read
        self._longer = longer
        self._lock = asyncio.Lock()
        self._kept: tuple[float, T] | None = None

    async def get(self) -> T:
        """Return the value. It raises what the read does."""
        async with self._lock:
            kept = self._kept
            if kept is not None and time.monotonic() - kept[0] <= self._seconds:
                return kept[1]
            began = time.monotonic()
            found = await asyncio.to_thread(self._read)
            if self._longer is not None:
                self._seconds = max(self._least_s, self._longer(time.monotonic() - began))
            self.keep(found)
            return found

    def keep(self, value: T) -> None:
        """Keep a value that was found out in another way."""
        self._kept = time.monotonic(), value

    def expire(self) -> None:
        """Read again at the next look: something was changed here."""
        self._kept = None
