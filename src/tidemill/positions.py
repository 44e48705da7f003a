"""Positions in a topic as users write them: ``beginning``, ``end``, 42, -10 or a time.

Commands and the gateway have the same forms. Must not know: a broker.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from tidemill.record_json import time_ms

FORMS = (
    "beginning, end, an offset, -N (the last N of each partition), "
    "a time (2026-11-20T10:00Z; UTC if it has no time zone) or @milliseconds."
)
_NUMBER = re.compile(r"([-@]?)(\d{1,19})", re.ASCII)


class Kind(enum.Enum):
    """The kind of a position."""

    BEGINNING = enum.auto()
    END = enum.auto()
    OFFSET = enum.auto()
    LAST = enum.auto()
    TIME = enum.auto()


_SIGNS = {"": Kind.OFFSET, "-": Kind.LAST, "@": Kind.TIME}
_WORDS = {
    **dict.fromkeys(("beginning", "earliest"), Kind.BEGINNING),
    **dict.fromkeys(("end", "latest"), Kind.END),
}


@dataclass(frozen=True)
class Position:
    """A position. ``value`` is an offset, a count or ms since the epoch, depending on ``kind``."""

    kind: Kind
    value: int = 0


def parse(text: str) -> Position:
    """Return the position that a text means.

    Raises:
        ValueError: it is not one.
    """
    word = text.strip()
    if kind := _WORDS.get(word.lower()):
        return Position(kind)
    number = _NUMBER.fullmatch(word)
    if number is None:
        return Position(Kind.TIME, time_ms(word))
    if (value := int(number[2])) >= 1 << 63:
        raise ValueError(f"{value} is too large")
    return Position(_SIGNS[number[1]], value)
