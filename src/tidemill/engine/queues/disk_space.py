"""Whether the disk has space for messages. Publishers wait while it has not.

Messages leave the last part of a disk free: acknowledgements and checkpoints need it, and without
them nothing that is done can be freed. Knows the free space of one folder, and neither queues nor
logs.
"""

from __future__ import annotations

import os

from tidemill.clock import Clock
from tidemill.log.disk.files import storage_error
from tidemill.log.errors import DiskFullError, StorageError

RESERVED_BYTES = 16 << 20
"""Free bytes that messages leave."""
CHECK_MS = 100
"""How often the free space is looked up, at most."""


def free_bytes(folder: str) -> int:
    """Return the bytes that can be written to the file system of a folder."""
    disk = os.statvfs(folder)
    return disk.f_frsize * disk.f_bavail


class DiskSpace:
    """The free space of a disk."""

    def __init__(self, folder: str, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._is_full = False
        self._failure: StorageError | None = None
        self._check_ms = 0

    def refused(self) -> None:
        """Note that the disk has refused a message because it is full."""
        self._is_full = True
        self._check_ms = self._clock.monotonic_ms() + CHECK_MS

    @property
    def is_full(self) -> bool:
        """Whether messages are to be refused."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._check_ms:
            self._check_ms = now_ms + CHECK_MS
            self._failure = None
            try:
                self._is_full = free_bytes(self._folder) < RESERVED_BYTES
            except OSError as error:  # the folder was deleted: the broker is about to end
                self._failure = storage_error(error, "looking at", self._folder)
        return self._is_full

    def check(self) -> None:
        """Check that messages can be taken.

        Raises:
            DiskFullError: there is no space.
            StorageError: the space can't be looked up.
        """
        if self.is_full:
            raise DiskFullError(
                f"no space left on device: less than {RESERVED_BYTES >> 20} MiB are free in "
                f"{self._folder}",
                hint="Consume messages, free disk space, or delete topics.",
            )
        if self._failure is not None:
            raise self._failure.with_traceback(None)
