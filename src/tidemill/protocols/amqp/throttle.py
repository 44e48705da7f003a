"""Holds a connection back that publishes faster than consumers take it, or to a full disk.

While the engine says so, nothing is read from the connection, for at most a few seconds at a time:
a connection that is not read does not notice that its client has left. Knows publishers and one
link, and no frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tidemill.net.link import Link
from tidemill.net.pause import Pause

LOW_ON_DISK = "low on disk"
HELD_BACK = "consumers are behind"


class Held(Protocol):
    """A channel."""

    @property
    def is_disk_full(self) -> bool:
        """Whether its client must wait because the disk is full."""

    def hold_ms(self) -> int:
        """Return how long its client must wait before it publishes more, in milliseconds."""


class Throttle:
    """Holds one connection back.

    Args:
        channels: returns the open channels.
        on_held: called when the connection begins to wait, and each time that continues.
    """

    def __init__(
        self, link: Link, channels: Callable[[], Iterable[Held]], on_held: Callable[[], None]
    ) -> None:
        self._pause = Pause(link)
        self._channels = channels
        self._on_held = on_held

    def look(self) -> None:
        """Hold the connection if it must wait: it has published."""
        hold_ms = self._hold_ms()
        if hold_ms:
            self._pause.hold(hold_ms, self.must_wait)
            self._on_held()

    def close(self) -> None:
        """Hold nothing any more: the connection is gone."""
        self._channels, self._on_held = tuple, lambda: None  # the old ones refer to the session

    def must_wait(self) -> bool:
        """Return whether the connection must wait."""
        return bool(self._hold_ms())

    def reason(self) -> str | None:
        """Return why the connection must wait; None if it need not."""
        if any(channel.is_disk_full for channel in self._channels()):
            return LOW_ON_DISK
        return HELD_BACK if self.must_wait() else None

    def _hold_ms(self) -> int:
        return max((channel.hold_ms() for channel in self._channels()), default=0)
