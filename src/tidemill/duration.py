"""Parse lengths of time: Spark's interval texts and ``datetime.timedelta``.

Must not know: Spark, windows, tables, topics.
"""

from __future__ import annotations

import re
from datetime import timedelta

from tidemill.errors import DurationError

Duration = str | timedelta
"""A length of time: an interval as Spark writes it (``"1 hour 30 minutes"``), or a timedelta."""

_MICROSECOND = timedelta(microseconds=1)
_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    # Windows are defined on instants, where no clock is ever changed: a day has 24 hours.
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*([+-]?)\s*(\d+)(?:\.(\d{1,6}))?\s+([a-z]+)(?=\s|$)")
_MAX = 2**62
"""The sum of a duration and a timestamp must fit into 64 bits."""
_HINT = 'Write a text like "6 minutes" or "1 hour 30 minutes", or give a datetime.timedelta.'


def microseconds(duration: Duration) -> int:
    """Return a duration in microseconds.

    Args:
        duration: the text of an interval, or a timedelta.

    Raises:
        DurationError: the text is malformed, has a unit without a fixed length (months), or does
            not fit into 64 bits.
    """
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    if not isinstance(duration, str):
        raise DurationError(f"invalid duration {duration!r}", hint=_HINT)
    text = duration.lower().strip()
    rest = text.removeprefix("interval ")
    total = 0
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise DurationError(f"invalid duration {duration!r}", hint=_HINT)
        total += _part(duration, *part.groups(default=""))
        rest = rest[part.end() :]
    if not text:
        raise DurationError(f"invalid duration {duration!r}: the text is empty", hint=_HINT)
    if abs(total) > _MAX:
        raise DurationError(f"invalid duration {duration!r}: it is too long", hint=_HINT)
    return total


def as_interval(duration: Duration) -> str:
    """Return a duration as the text of an interval, which Spark's options take."""
    return duration if isinstance(duration, str) else f"{microseconds(duration)} microseconds"


def _part(duration: str, sign: str, whole: str, fraction: str, name: str) -> int:
    """Return the microseconds of one part of an interval, such as ``1.5 seconds``."""
    unit = name.removesuffix("s")
    if unit in ("month", "year", "quarter"):
        raise DurationError(
            f"invalid duration {duration!r}: a {unit} has no fixed length",
            hint="Give days (\"30 days\"), or group by date_trunc('month', ts).",
        )
    if unit not in _UNITS or (fraction and unit != "second"):
        raise DurationError(f"invalid duration {duration!r}: unknown unit {name!r}", hint=_HINT)
    value = int(whole) * _UNITS[unit] + int(fraction.ljust(6, "0") or 0)
    return -value if sign == "-" else value
