"""Rules for the values of captured rows: which JSON value stands for which value of a database.

| Kind | JSON |
|---|---|
| int | number, also above 2**53; outside of 64 bits a string |
| float | number; "NaN", "Infinity", "-Infinity" |
| decimal | string in plain notation, with its scale; "NaN", "Infinity", "-Infinity" |
| text, enum | string |
| bytes | base64 string (RFC 4648, section 4) |
| bool | true, false |
| date | "2026-11-22"; "infinity", "-infinity"; other years as the database writes them |
| time | "10:00:00.5"; with a zone "10:00:00.5+01:00" |
| timestamp | "2026-11-22T10:00:00.123456": the wall time that is stored, without a zone |
| timestamptz | "2026-11-22T10:00:00.123456Z": always UTC |
| interval | ISO 8601 duration, "P1Y2M3DT4H5M6.5S"; parts can be negative |
| json | string with the JSON text as the database delivers it, so that no digit is lost |
| uuid | string, lower case |
| array | array of values by these rules, nested for more dimensions |
| other | string, as the database writes it |

NULL is null. Must not know: a database.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

Kind = Literal[
    "int",
    "float",
    "decimal",
    "text",
    "bytes",
    "bool",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "json",
    "uuid",
    "array",
    "enum",
    "interval",
    "other",
]

UNAVAILABLE = "__tidemill_unavailable_value"
"""Replaces a value that a change did not touch and that the source could not find out."""

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def json_value(value: Any) -> Any:
    """Return the JSON value for a Python value, as the module's table says.

    Raises:
        TypeError: no rule is known for this type.
    """
    convert = _CONVERT.get(type(value))
    if convert is not None:
        return convert(value)
    for kind in type(value).__mro__:  # subclasses, e.g. an IntEnum
        if kind in _CONVERT:
            return _CONVERT[kind](value)
    raise TypeError(f"no rule for values of type {type(value).__name__}")


def int_value(value: int) -> int | str:
    """Return an integer, as a string if JSON readers with 64 bits could not take it."""
    return value if _INT_MIN <= value <= _INT_MAX else str(value)


def float_value(value: float) -> float | str:
    """Return a float, or the name of a value that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def decimal_value(value: Decimal) -> str:
    """Return a decimal in plain notation: the scale is kept, and there is no exponent."""
    if value.is_finite():
        return format(value, "f")
    return "NaN" if value.is_nan() else "Infinity" if value > 0 else "-Infinity"


def bytes_value(value: bytes | bytearray | memoryview) -> str:
    """Return bytes as base64."""
    return b64encode(value).decode("ascii")


def bytes_of(value: str) -> bytes:
    """Return the bytes of a base64 value."""
    return b64decode(value, validate=True)


def timestamp_value(value: datetime) -> str:
    """Return a timestamp: with a zone as UTC and "Z", without one as the wall time."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def interval_value(months: int = 0, days: int = 0, microseconds: int = 0, *, years: int = 0) -> str:
    """Return an ISO 8601 duration. Months, days and time are kept apart: they don't convert."""
    years, months = years + int(months / 12), months - 12 * int(months / 12)
    text = "".join(f"{n}{unit}" for n, unit in ((years, "Y"), (months, "M"), (days, "D")) if n)
    sign, rest = ("-" if microseconds < 0 else ""), abs(microseconds)
    hours, rest = divmod(rest, 3_600_000_000)
    minutes, rest = divmod(rest, 60_000_000)
    seconds = f"{rest // 1_000_000}.{rest % 1_000_000:06d}".rstrip("0").rstrip(".")
    clock = "".join(f"{sign}{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M")) if n)
    if rest:
        clock += f"{sign}{seconds}S"
    if clock:
        return f"P{text}T{clock}"
    return f"P{text}" if text else "PT0S"


def _timedelta_value(value: timedelta) -> str:
    return interval_value(
        days=value.days, microseconds=value.seconds * 1_000_000 + value.microseconds
    )


_CONVERT: dict[type, Any] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: int_value,
    float: float_value,
    str: lambda value: value,
    bytes: bytes_value,
    bytearray: bytes_value,
    memoryview: bytes_value,
    Decimal: decimal_value,
    datetime: timestamp_value,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: _timedelta_value,
    UUID: str,
    list: lambda values: [json_value(value) for value in values],
    tuple: lambda values: [json_value(value) for value in values],
}
