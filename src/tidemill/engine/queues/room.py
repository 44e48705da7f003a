"""Whether the disk has room for messages. Publishers wait while it has not.

Knows the free space of one folder, and neither queues nor logs.
"""

from __future__ import annotations

import os

from tidemill.clock import Clock

WANTED_BYTES = 4 << 20
"""Free bytes with which publishers continue: several of the largest batches."""
CHECK_MS = 100
"""How often the free space is looked up while the disk is full."""


def free_bytes(folder: str) -> int:
    """Return the bytes that can be written to the file system of a folder."""
    disk = os.statvfs(folder)
    return disk.f_frsize * disk.f_bavail


class DiskRoom:
    """The room of a disk: none from a refusal on, until enough is free again.

    Args:
        folder: a folder of the file system.
        clock: the broker's time.
    """

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._is_full = False
        self._checked_ms = 0

    def refused(self) -> None:
        """Note that the disk has refused a message because it is full."""
        self._is_full = True
        self._checked_ms = self._clock.monotonic_ms()

    @property
    def is_full(self) -> bool:
        """Whether messages would probably be refused."""
        if not self._is_full:
            return False
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._checked_ms >= CHECK_MS:
            self._checked_ms = now_ms
            self._is_full = free_bytes(self._folder) < WANTED_BYTES
        return self._is_full
