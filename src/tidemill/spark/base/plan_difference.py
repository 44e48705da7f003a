"""Shows what differs between two texts of a plan, in a line that a person can read.

A fingerprint has one line for each operator, with microseconds, and Spark writes a sliding window
as half a page. Must not know: checkpoints, Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_LENGTH = 160
"""Most letters of a plan in a message."""

_MICROSECONDS = re.compile(r"(\d+(?:, \d+)*) microseconds")
_UNITS = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1000),
)
_CONTEXT = 40
"""Letters that are shown before the first difference."""
_WORD = re.compile(r"\w{1,20}")

# Spark computes the windows of a row with expressions like
# precisetimestampconversion(at, ...) - 0) % 1800000000 ... + 3600000000), LongType, TimestampType).
_SLIDE = re.compile(
    r"precisetimestampconversion\((\w+), TimestampType, LongType\) - (\d+)\) % (\d+)"
)
_LENGTH = re.compile(r" \+ (\d+)\), LongType, TimestampType")


def difference(before: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """Return the parts of two plans that differ; an empty text if a plan only lacks something."""
    gone = [line.strip() for line in before if line not in now]
    new = [line.strip() for line in now if line not in before]
    texts = [", ".join(map(_readable, lines)) for lines in (gone, new)]
    if texts[0] == texts[1]:  # they differ in what the readable text leaves out
        texts = [", ".join(gone), ", ".join(new)]
    if max(map(len, texts)) > MAX_LENGTH and all(texts):
        texts = _without_common_ends(*texts)
    return _cut(texts[0]), _cut(texts[1])


def _readable(line: str) -> str:
    slide, length = _SLIDE.search(line), _LENGTH.search(line)
    if line.startswith("Expand") and slide is not None and length is not None:
        text = f"windows of {slide[1]}: {_duration(length[1])}, one every {_duration(slide[3])}"
        return text if slide[2] == "0" else f"{text}, shifted by {_duration(slide[2])}"
    return _MICROSECONDS.sub(_durations, line)


def _without_common_ends(before: str, now: str) -> list[str]:
    """Return two texts from a bit before their first difference, without their common end."""
    first = _common(before, now)
    last = _common(before[first:][::-1], now[first:][::-1])
    start = max(0, first - _CONTEXT)
    shown = []
    for text in (before, now):
        # The rest of a word is shown, too: a number without its zeros would be wrong.
        rest = _WORD.match(text, len(text) - last)
        end = len(text) - last if rest is None else rest.end()
        part = text[start:end] if start == 0 else f"...{text[start:end].lstrip()}"
        shown.append(part if end == len(text) else f"{part}...")
    return shown


def _common(one: str, other: str) -> int:
    """Return the number of letters with which both texts begin."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."


def _durations(found: re.Match[str]) -> str:
    """Return ``60000000, 7 microseconds`` as ``1 minute, 7 microseconds``."""
    return ", ".join(_duration(number) for number in found[1].split(", "))


def _duration(digits: str) -> str:
    micros = int(digits)
    for unit, length in _UNITS:
        count, rest = divmod(micros, length)
        if count and not rest:
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return f"{micros} microseconds"
