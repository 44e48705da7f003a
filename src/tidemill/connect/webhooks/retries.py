"""Decide what an answer means, and when a delivery is tried again. No I/O, no clock.

Source: Standard Webhooks 1.0 (2xx is success, 410 disables, 429, 502 and 504 throttle, Retry-After
with any status), RFC 9110 (Retry-After: seconds or a date).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

STANDARD_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""The pauses that Standard Webhooks recommends: ten attempts in about 75 hours."""
JITTER = 0.2
"""A pause is up to this share longer, or many deliveries would be retried together."""
_LONGEST_HEADER = 64
_OVERLOADED = frozenset({502, 504})


class Verdict(Enum):
    """The meaning of an answer.

    ``THROTTLED`` and ``OVERLOADED`` are about the whole endpoint. A receiver that throttles has not
    looked at the event, so the attempt is not a step of the schedule.
    """

    DELIVERED = "delivered"
    FAILED = "failed"
    THROTTLED = "throttled"
    OVERLOADED = "overloaded"
    GONE = "gone"


def judge(status: int | None, *, asks_to_wait: bool = False) -> Verdict:
    """Return what a status means; None: there was no answer. Redirects are failures.

    Args:
        asks_to_wait: whether the answer has a valid Retry-After. With it, 503 is about the whole
            endpoint.
    """
    if status is None:
        return Verdict.FAILED
    if 200 <= status < 300:
        return Verdict.DELIVERED
    if status == 410:
        return Verdict.GONE
    if status == 429 or (status == 503 and asks_to_wait):
        return Verdict.THROTTLED
    return Verdict.OVERLOADED if status in _OVERLOADED else Verdict.FAILED


def pause_ms(schedule_s: Sequence[float], attempts: int, chance: float) -> int | None:
    """Return the pause after a number of attempts that failed; None: there is no further attempt.

    Args:
        schedule_s: the pauses in seconds.
        attempts: the number of attempts so far, at least 1.
        chance: a random number from 0 to 1.
    """
    if attempts > len(schedule_s):
        return None
    return math.ceil(1000 * schedule_s[attempts - 1] * (1 + JITTER * chance))


def retry_after_ms(header: str | None, now_ms: int, longest_ms: int) -> int | None:
    """Return how long a receiver asks to wait, in milliseconds; None: it does not, or not validly.

    Args:
        header: the value of Retry-After: seconds or a date (RFC 9110, 10.2.3).
        now_ms: the time, in milliseconds since the epoch.
        longest_ms: the longest pause that is granted.
    """
    text = "" if header is None else header.strip()
    if not text or len(text) > _LONGEST_HEADER or not text.isascii():
        return None
    if text.isdigit():
        wanted = int(text) * 1000
    else:
        from email.utils import parsedate_to_datetime  # the broker imports this module

        try:
            date = parsedate_to_datetime(text)
            wanted = math.ceil(date.timestamp() * 1000) - now_ms
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return min(max(wanted, 0), longest_ms)
