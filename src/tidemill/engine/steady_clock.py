"""A wall clock that does not jump."""

from __future__ import annotations

from tidemill.clock import Clock


class SteadyClock:
    """Wall-clock milliseconds that follow the monotonic clock from the start on.

    Timeouts must not fire because an operator set the machine's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._clock.monotonic_ms() + self._offset_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds of the monotonic clock."""
        return self._clock.monotonic_ms()
