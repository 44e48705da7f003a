"""Bytes of the messages that wait in a lane, for ``x-max-length-bytes``. Knows only offsets."""

from __future__ import annotations


class NoSizes:
    """Counts nothing: the queue has no limit in bytes."""

    counts = False
    ready = 0

    def published(self, size: int) -> None:
        """Count a new message."""

    def taken(self, offset: int, size: int) -> None:
        """Count a message that is out now."""

    def returned(self, first: int, last: int) -> None:
        """Count messages that were out and wait again."""

    def done(self, first: int, last: int) -> None:
        """Forget messages that were out."""

    def dropped(self, size: int) -> None:
        """Count a message that was dropped while it waited."""

    def clear(self) -> None:
        """Note that no message waits."""


class Sizes(NoSizes):
    """Counts the bytes of values.

    Attributes:
        ready: bytes of the messages that wait.
    """

    counts = True

    def __init__(self) -> None:
        self.ready = 0
        self._out: dict[int, int] = {}

    def published(self, size: int) -> None:
        """Count a new message."""
        self.ready += size

    def taken(self, offset: int, size: int) -> None:
        """Count a message that is out now."""
        self.ready -= size
        self._out[offset] = size

    def returned(self, first: int, last: int) -> None:
        """Count messages that were out and wait again."""
        for offset in range(first, last + 1):
            self.ready += self._out.pop(offset, 0)

    def done(self, first: int, last: int) -> None:
        """Forget messages that were out."""
        for offset in range(first, last + 1):
            self._out.pop(offset, None)

    def dropped(self, size: int) -> None:
        """Count a message that was dropped while it waited."""
        self.ready -= size

    def clear(self) -> None:
        """Note that no message waits."""
        self.ready = 0
