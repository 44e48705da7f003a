"""Bytes of the messages that wait in a lane, for ``x-max-length-bytes``. Knows only offsets."""

from __future__ import annotations

from tidemill.state.queues.format import WaitingBytes

NOTE_BYTES = 1 << 20
"""After so many published bytes, the count is stored. A start counts what came after that."""


class NoSizes:
    """Counts nothing: the queue has no limit in bytes."""

    counts = False
    ready = 0
    unnoted = 0

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

    def keep(self, left: int, before: int) -> None:
        """Note that ``left`` of ``before`` messages still wait, of unknown sizes."""

    def take_note(self, end: int, count: int) -> WaitingBytes | None:
        """Return what is to be stored, or None if nothing changed since the last call.

        Args:
            end: the end of the log.
            count: how many messages are not done.
        """
        return None

    def forget_note(self) -> None:
        """Note that the result of the last call was not stored."""


class Sizes(NoSizes):
    """Counts the bytes of values.

    Args:
        ready: bytes of the messages that wait.

    Attributes:
        ready: bytes of the messages that wait.
        unnoted: bytes that were published since the last note.
    """

    counts = True

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self.unnoted = 0
        self._out: dict[int, int] = {}
        self._bytes_out = 0
        self._noted: WaitingBytes | None = None

    def published(self, size: int) -> None:
        """Count a new message."""
        self.ready += size
        self.unnoted += size

    def taken(self, offset: int, size: int) -> None:
        """Count a message that is out now."""
        self.ready -= size
        self._out[offset] = size
        self._bytes_out += size

    def returned(self, first: int, last: int) -> None:
        """Count messages that were out and wait again."""
        for offset in range(first, last + 1):
            size = self._out.pop(offset, 0)
            self.ready += size
            self._bytes_out -= size

    def done(self, first: int, last: int) -> None:
        """Forget messages that were out."""
        for offset in range(first, last + 1):
            self._bytes_out -= self._out.pop(offset, 0)

    def dropped(self, size: int) -> None:
        """Count a message that was dropped while it waited."""
        self.ready -= size

    def keep(self, left: int, before: int) -> None:
        """Note that ``left`` of ``before`` messages still wait, of unknown sizes."""
        self.ready = self.ready * left // before if before > 0 else 0

    def take_note(self, end: int, count: int) -> WaitingBytes | None:
        """Return what is to be stored, or None if nothing changed since the last call."""
        if not count:
            self.ready = self._bytes_out = 0
            self._out.clear()
        note = WaitingBytes(end, max(0, self.ready + self._bytes_out))
        self.unnoted = 0
        if note == self._noted:
            return None
        self._noted = note
        return note

    def forget_note(self) -> None:
        """Note that the result of the last call was not stored."""
        self._noted = None
