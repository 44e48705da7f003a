"""Define a window: its kind and its durations, as whole numbers of microseconds.

Must not know: Spark, SQL, output modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemill.duration import Duration, microseconds
from tidemill.errors import DurationError
from tidemill.spark.errors import WindowError


class Kind(StrEnum):
    """The four kinds of windows; the values are their names in Python and in SQL."""

    TUMBLING = "tumbling"
    SLIDING = "sliding"
    HOPPING = "hopping"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The kind of a window and its durations in microseconds.

    Attributes:
        kind: one of the four kinds.
        size: the length of a window; for a session, the gap that ends it.
        step: the time from one window's start to the next; 0 for a session.
        start: the offset of the windows' starts from 1970-01-01T00:00:00Z, in ``[0, step)``.
    """

    kind: Kind
    size: int
    step: int
    start: int = 0

    @property
    def has_gaps(self) -> bool:
        """Whether some instants do not belong to any window."""
        return self.kind is Kind.HOPPING and self.step > self.size

    def slide_with_gaps(self) -> int:
        """Return the longest slide with which Spark's ``window()`` makes all windows.

        ``window(ts, size, slide)`` requires a slide that is not longer than the size. A slide that
        divides the hop makes all windows, and others between them, which must be filtered out.
        """
        slide = max(divisor for divisor in _divisors(self.step) if divisor <= self.size)
        if slide * 100 > self.size:
            return slide
        raise WindowError(
            f"hopping: a hop of {self.step} microseconds has no divisor near the size of "
            f"{self.size} microseconds",
            hint="Use a rounder hop, for example whole milliseconds.",
        )


def tumbling_spec(size: Duration, start: Duration = "0 seconds") -> WindowSpec:
    """Return the spec of ``tidemill.spark.tumbling``, with the same parameters and errors."""
    length = _positive(Kind.TUMBLING, "size", size)
    return WindowSpec(Kind.TUMBLING, length, length, microseconds(start) % length)


def sliding_spec(size: Duration, slide: Duration, start: Duration = "0 seconds") -> WindowSpec:
    """Return the spec of ``tidemill.spark.sliding``, with the same parameters and errors."""
    length, step = _positive(Kind.SLIDING, "size", size), _positive(Kind.SLIDING, "slide", slide)
    if step > length:
        raise WindowError(
            f"sliding: the slide ({slide}) is longer than the size ({size})",
            hint="hopping(ts, size, hop) has windows with gaps between them.",
        )
    return WindowSpec(Kind.SLIDING, length, step, microseconds(start) % step)


def hopping_spec(size: Duration, hop: Duration, start: Duration = "0 seconds") -> WindowSpec:
    """Return the spec of ``tidemill.spark.hopping``, with the same parameters and errors."""
    length, step = _positive(Kind.HOPPING, "size", size), _positive(Kind.HOPPING, "hop", hop)
    return WindowSpec(Kind.HOPPING, length, step, microseconds(start) % step)


def session_spec(gap: Duration) -> WindowSpec:
    """Return the spec of ``tidemill.spark.session``, with the same parameters and errors."""
    return WindowSpec(Kind.SESSION, _positive(Kind.SESSION, "gap", gap), 0)


def _divisors(number: int) -> set[int]:
    """Return the divisors of a number, except those with two prime factors above 100,000."""
    found, rest, factor = {1}, number, 2
    while rest > 1:
        if factor * factor > rest or factor > 100_000:
            factor = rest
        while rest % factor == 0:
            found |= {divisor * factor for divisor in found}
            rest //= factor
        factor += 1
    return found


def _positive(kind: Kind, name: str, duration: Duration) -> int:
    try:
        value = microseconds(duration)
    except DurationError as error:
        raise WindowError(str(error), hint=error.hint) from None
    if value <= 0:
        raise WindowError(f"{kind}: the {name} ({duration}) must be greater than zero")
    return value
