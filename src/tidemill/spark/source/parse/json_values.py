"""Converts the text of one JSON string or number to a value of a column's type.

docs/json-values.md has the rules. Every function raises ValueError if the text is not of the type.
Must not know: the syntax of objects and arrays, Arrow.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
import struct
from decimal import Decimal
from fractions import Fraction

from tidemill.spark.source.parse.json_text import MAX_NUMBER, Number, number

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_MIN_US = (1 - _EPOCH_DAY) * _DAY_US
_MAX_US = (datetime.date.max.toordinal() + 1 - _EPOCH_DAY) * _DAY_US - 1
"""The first and the last microsecond of the years 1 to 9999."""

_INT = re.compile(r"-?[0-9]{1,19}")
_SPECIAL = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
    "+INF": math.inf,
    "-INF": -math.inf,
}
"""Strings that stand for numbers that JSON can't write, as Spark accepts them."""
_DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]+))?)?)?"
    r" *(Z|UTC|GMT|([+-])(?:([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?|([0-9]{2})([0-9]{2})))?)?"
)
_TRIMMED = "".join(map(chr, range(33)))
_MAX_OFFSET_S = 18 * 3600
_EPOCH_POWERS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}


def integer(text: str, bits: int) -> int:
    """Return a number without a fraction, however it is written."""
    value = int(text) if _INT.fullmatch(text) else _whole(number(text), 0)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(text)
    return value


def _whole(parts: Number, power: int) -> int:
    """Return a number times a power of ten, if that is a whole number of at most 19 digits."""
    exponent = parts.exponent + power
    if parts.digits and (exponent < 0 or len(parts.digits) + exponent > 19):
        raise ValueError(parts)
    value = int(parts.digits or 0) * 10**exponent if parts.digits else 0
    return -value if parts.negative else value


def double(text: str) -> float:
    """Return the nearest double. It must not be infinite."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def single(text: str) -> float:
    """Return the nearest 32-bit float. It must not be infinite."""
    value = double(text)
    try:
        near = _as_single(value)
    except OverflowError:
        # Halfway to the float after the largest: only less than that is rounded down.
        if abs(value) != 2.0**128 - 2.0**103 or abs(Fraction(text)) >= Fraction(abs(value)):
            raise ValueError(text) from None
        return math.copysign(2.0**128 - 2.0**104, value)
    if near == value:
        return near
    other = _neighbour(near, value)
    if value - near != other - value:
        return near
    # The double is halfway between two floats, and may have been rounded to there.
    exact, middle = Fraction(text), Fraction(value)
    if exact == middle:
        return near
    return max(near, other) if exact > middle else min(near, other)


def _as_single(value: float) -> float:
    near: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return near


def _neighbour(near: float, towards: float) -> float:
    """Return the next 32-bit float in a direction; 2**128 after the largest."""
    if near == 0:
        return math.copysign(2.0**-149, towards)
    bits = struct.unpack("<i", struct.pack("<f", abs(near)))[0]
    bits += 1 if abs(towards) > abs(near) else -1
    size = 2.0**128 if bits == 0x7F800000 else struct.unpack("<f", struct.pack("<i", bits))[0]
    return math.copysign(size, near)


def special(text: str) -> float:
    """Return the number that a string stands for: NaN or an infinity."""
    try:
        return _SPECIAL[text]
    except KeyError:
        raise ValueError(text) from None


def decimal(text: str, precision: int, scale: int) -> Decimal:
    """Return a decimal, rounded half up to its scale."""
    parts = number(text)
    shift = parts.exponent + scale
    kept = len(parts.digits) + shift
    if not parts.digits or kept < 0:
        value = 0
    elif kept > precision:
        raise ValueError(text)
    elif shift >= 0:
        value = int(parts.digits) * 10**shift
    else:
        value = int(parts.digits[:kept] or 0) + (parts.digits[kept] >= "5")
    if value >= 10**precision:
        raise ValueError(text)
    return Decimal((int(parts.negative and value != 0), tuple(map(int, str(value))), -scale))


def decimal_string(text: str, precision: int, scale: int) -> Decimal:
    """Return a decimal that is written as a string."""
    if len(text) > MAX_NUMBER or not _DECIMAL_TEXT.fullmatch(text):
        raise ValueError(text)
    return decimal(text, precision, scale)


def base64_bytes(text: str) -> bytes:
    """Return the bytes that a string has in Base64 (RFC 4648), with padding."""
    if not _BASE64.fullmatch(text):
        raise ValueError(text)
    return base64.b64decode(text)


def epoch_us(text: str, timestamp_format: str) -> int:
    """Return a number as microseconds since 1970. What is smaller is cut off, downwards."""
    if timestamp_format == "iso":
        raise ValueError(text)
    parts = number(text)
    shift = parts.exponent + _EPOCH_POWERS[timestamp_format]
    if parts.digits and len(parts.digits) + shift > 18:
        raise ValueError(text)
    if shift >= 0 or not parts.digits:
        value = _whole(parts, shift - parts.exponent)
    else:
        value = int(parts.digits[: max(len(parts.digits) + shift, 0)] or 0)
        value = -value - 1 if parts.negative else value
    return _in_range(value)


def timestamp(text: str, *, zone: bool) -> int:
    """Return a moment in ISO 8601 as microseconds since 1970. Without a zone it is in UTC.

    Args:
        text: The moment.
        zone: Whether it may have a zone.
    """
    day, us, offset = _moment(text)
    if offset is not None and not zone:
        raise ValueError(text)
    return _in_range(day * _DAY_US + us - (offset or 0) * 1_000_000)


def date(text: str) -> int:
    """Return the date in ISO 8601, or that of a moment as it is written, as days since 1970."""
    return _moment(text)[0]


def _in_range(value: int) -> int:
    if not _MIN_US <= value <= _MAX_US:
        raise ValueError(value)
    return value


def _moment(text: str) -> tuple[int, int, int | None]:
    """Return the days since 1970, the microseconds in the day, and the zone's offset in seconds."""
    found = _MOMENT.fullmatch(text.strip(_TRIMMED))
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, zone, sign, h, m, s, hh, mm = found.groups()
    days = datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    clock = [int(each or 0) for each in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise ValueError(text)
    us = (clock[0] * 3600 + clock[1] * 60 + clock[2]) * 1_000_000
    us += int((fraction or "")[:6].ljust(6, "0"))
    if zone is None or sign is None:
        return days, us, None if zone is None else 0
    parts = [int(each or 0) for each in (h or hh, m or mm, s)]
    offset = parts[0] * 3600 + parts[1] * 60 + parts[2]
    if parts[1] > 59 or parts[2] > 59 or offset > _MAX_OFFSET_S:
        raise ValueError(text)
    return days, us, -offset if sign == "-" else offset
