"""What a window is: its kind and its durations, as whole numbers of microseconds.

Must not know: Spark, SQL, output modes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tidemill.errors import WindowError

Duration = str | timedelta
"""A length of time: an interval in Spark's words (``"1 hour 30 minutes"``), or a timedelta."""

MICROSECOND = timedelta(microseconds=1)

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    # Windows lie on the line of instants, where no clock is ever changed: a day is 24 hours.
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*([+-]?)\s*(\d+)(?:\.(\d{1,6}))?\s+([a-z]+)(?=\s|$)")
_LONGEST = 2**62
"""Sums with a timestamp stay within 64 bits."""


class Kind(StrEnum):
    """The four windows, by the names they have in Python and in SQL."""

    TUMBLING = "tumbling"
    SLIDING = "sliding"
    HOPPING = "hopping"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """A window's kind and durations. All in microseconds.

    Attributes:
        kind: which of the four.
        size: length of a window; of a session, the gap that ends it.
        step: from one window's start to the next; 0 for a session.
        start: offset of the windows' starts from 1970-01-01T00:00:00Z, in ``[0, step)``.
    """

    kind: Kind
    size: int
    step: int
    start: int = 0

    @property
    def has_gaps(self) -> bool:
        """Whether there are instants that belong to no window."""
        return self.kind is Kind.HOPPING and self.step > self.size

    def slide_with_gaps(self) -> int:
        """The longest slide that Spark's ``window()`` accepts and that meets every start.

        ``window(ts, size, slide)`` wants a slide no longer than the size. One that divides the hop
        makes all of the windows, and others between, to be filtered out.

        Raises:
            WindowError: there is none that makes fewer than 100 windows of each event.
        """
        slide = max(divisor for divisor in _divisors(self.step) if divisor <= self.size)
        if slide * 100 > self.size:
            return slide
        raise WindowError(
            f"hopping: a hop of {self.step} microseconds has no divisor near the size of "
            f"{self.size} microseconds",
            hint="Choose a rounder hop: one of whole milliseconds.",
        )


def tumbling_spec(size: Duration, start: Duration = "0 seconds") -> WindowSpec:
    """See ``tidemill.spark.windows.tumbling``."""
    length = _positive(Kind.TUMBLING, "size", size)
    return WindowSpec(Kind.TUMBLING, length, length, microseconds(start) % length)


def sliding_spec(size: Duration, slide: Duration, start: Duration = "0 seconds") -> WindowSpec:
    """See ``tidemill.spark.windows.sliding``."""
    length, step = _positive(Kind.SLIDING, "size", size), _positive(Kind.SLIDING, "slide", slide)
    if step > length:
        raise WindowError(
            f"sliding: the slide ({slide}) is longer than the size ({size})",
            hint="hopping(ts, size, hop) has windows with gaps between them.",
        )
    return WindowSpec(Kind.SLIDING, length, step, microseconds(start) % step)


def hopping_spec(size: Duration, hop: Duration, start: Duration = "0 seconds") -> WindowSpec:
    """See ``tidemill.spark.windows.hopping``."""
    length, step = _positive(Kind.HOPPING, "size", size), _positive(Kind.HOPPING, "hop", hop)
    return WindowSpec(Kind.HOPPING, length, step, microseconds(start) % step)


def session_spec(gap: Duration) -> WindowSpec:
    """See ``tidemill.spark.windows.session``."""
    return WindowSpec(Kind.SESSION, _positive(Kind.SESSION, "gap", gap), 0)


def microseconds(duration: Duration) -> int:
    """A duration in microseconds.

    Raises:
        WindowError: it is no duration, of no fixed length (months), or beyond 64 bits.
    """
    if isinstance(duration, timedelta):
        return duration // MICROSECOND
    if not isinstance(duration, str):
        raise WindowError(f"{duration!r} is no duration", hint=_HINT)
    text = duration.lower().strip()
    rest = text.removeprefix("interval ")
    total = 0
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise WindowError(f"{duration!r} is no duration", hint=_HINT)
        total += _part(duration, *part.groups(default=""))
        rest = rest[part.end() :]
    if not text or abs(total) > _LONGEST:
        raise WindowError(f"{duration!r} is no duration, or too long a one", hint=_HINT)
    return total


def _divisors(number: int) -> set[int]:
    """Divisors of a number: all that have no two prime factors above 100,000."""
    found, rest, factor = {1}, number, 2
    while rest > 1:
        if factor * factor > rest or factor > 100_000:
            factor = rest
        while rest % factor == 0:
            found |= {divisor * factor for divisor in found}
            rest //= factor
        factor += 1
    return found


_HINT = 'Write a text like "6 minutes" or "1 hour 30 minutes", or give a datetime.timedelta.'


def _part(duration: str, sign: str, whole: str, fraction: str, name: str) -> int:
    unit = name.removesuffix("s")
    if unit in ("month", "year", "quarter"):
        raise WindowError(
            f"{duration!r}: a {unit} has no fixed length, and windows need one",
            hint="Give days (\"30 days\"), or group by date_trunc('month', ts).",
        )
    if unit not in _UNITS or (fraction and unit != "second"):
        raise WindowError(f"{duration!r} is no duration: {name!r} in it", hint=_HINT)
    value = int(whole) * _UNITS[unit] + int(fraction.ljust(6, "0") or 0)
    return -value if sign == "-" else value


def _positive(kind: Kind, name: str, duration: Duration) -> int:
    value = microseconds(duration)
    if value <= 0:
        raise WindowError(f"{kind}: the {name} ({duration}) must be longer than nothing")
    return value
