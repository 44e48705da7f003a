"""Single values of the binary log as text: exact decimals, dates and times.

Zero dates and dates without a day ("0000-00-00", "2020-00-00"), which Python's types can't hold,
keep their digits. Must not know columns or rows.

Source: MySQL source documentation, "sql-common/my_time.cc", and "strings/decimal.cc",
``decimal2bin``: groups of nine digits take four bytes, big-endian; negative numbers are inverted;
the highest bit of the first byte is the inverted sign.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import IPv4Address

_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DIGITS = 9


def decimal_bytes(precision: int, decimals: int) -> int:
    """Return the size of a DECIMAL(precision, decimals) in bytes."""
    whole = precision - decimals
    return (
        whole // _DIGITS * 4
        + _BYTES[whole % _DIGITS]
        + decimals // _DIGITS * 4
        + _BYTES[decimals % _DIGITS]
    )


def decode_decimal(data: bytes, precision: int, decimals: int) -> str:
    """Return the number as text, with exactly ``decimals`` digits behind the point."""
    if precision - decimals <= _DIGITS and 0 < decimals <= _DIGITS and precision > decimals:
        return _short(data, decimals)
    is_negative = not data[0] & 0x80
    raw = bytearray(data)
    raw[0] ^= 0x80
    if is_negative:
        raw = bytearray(each ^ 0xFF for each in raw)
    whole = precision - decimals
    position = 0

    def group(digits: int) -> str:
        nonlocal position
        size = _BYTES[digits]
        value = int.from_bytes(raw[position : position + size], "big")
        position += size
        return f"{value:0{digits}d}"

    sizes = [whole % _DIGITS] if whole % _DIGITS else []
    integral = "".join(group(each) for each in [*sizes, *[_DIGITS] * (whole // _DIGITS)])
    sizes = [decimals % _DIGITS] if decimals % _DIGITS else []
    fraction = "".join(group(each) for each in [*[_DIGITS] * (decimals // _DIGITS), *sizes])
    text = integral.lstrip("0") or "0"
    if decimals:
        text += "." + fraction
    return "-" + text if is_negative else text


def _short(data: bytes, decimals: int) -> str:
    """Return a number with at most nine digits on each side of the point: the usual case."""
    bits = 8 * len(data)
    value = int.from_bytes(data, "big") ^ 1 << bits - 1
    sign = ""
    if value >> bits - 1:  # the sign is inverted
        sign, value = "-", value ^ (1 << bits) - 1
    size = 8 * _BYTES[decimals]
    return f"{sign}{value >> size}.{value & (1 << size) - 1:0{decimals}d}"


def inet6_text(raw: bytes) -> str:
    """Return an INET6 as the server writes it: IPv4 addresses in it have dots.

    RFC 5952 never shortens a single group of zeros, which MariaDB does. Source: MariaDB source,
    "sql/sql_type_inet.cc", ``Inet6::to_string``.
    """
    words = struct.unpack(">8H", raw)
    gap, size = 8, 0  # the longest sequence of zeros, the first of those
    start = 0
    for index, word in enumerate((*words, 1)):
        if word:
            if index - start > size:
                gap, size = start, index - start
            start = index + 1
    if gap == 0 and (size == 6 or (size == 5 and words[5] == 0xFFFF)):
        return ("::" if size == 6 else "::ffff:") + str(IPv4Address(raw[12:]))
    groups = [f"{word:x}" for word in words]
    if not size:
        return ":".join(groups)
    return ":".join(groups[:gap]) + "::" + ":".join(groups[gap + size :])


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATETIME_OFFSET = 0x8000000000
_TIME_OFFSET = 0x800000


def fraction_bytes(decimals: int) -> int:
    """Return the size of the fractional seconds in bytes."""
    return (decimals + 1) // 2


def _fraction(micros: int, decimals: int) -> str:
    return f".{micros:06d}"[: decimals + 1] if decimals else ""


def _micros(data: bytes) -> int:
    """Return the fractional seconds in microseconds: one byte holds hundredths, two 1/10,000."""
    return int.from_bytes(data, "big") * int(10 ** (6 - 2 * len(data)))


def decode_date(data: bytes) -> str:
    """Return a DATE as ``YYYY-MM-DD``."""
    value = int.from_bytes(data, "little")
    return f"{value >> 9:04d}-{value >> 5 & 15:02d}-{value & 31:02d}"


def decode_datetime(data: bytes, decimals: int) -> str:
    """Return a DATETIME as ``YYYY-MM-DDTHH:MM:SS[.ffffff]``, without a zone."""
    value = int.from_bytes(data[:5], "big") - _DATETIME_OFFSET
    month = value >> 22
    date = f"{month // 13:04d}-{month % 13:02d}-{value >> 17 & 31:02d}"
    time = f"{value >> 12 & 31:02d}:{value >> 6 & 63:02d}:{value & 63:02d}"
    return f"{date}T{time}{_fraction(_micros(data[5:]), decimals)}"


def decode_old_datetime(data: bytes) -> str:
    """Return a DATETIME in the format before MySQL 5.6."""
    digits = f"{int.from_bytes(data, 'little'):014d}"
    date = f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"
    return f"{date}T{digits[8:10]}:{digits[10:12]}:{digits[12:14]}"


def decode_timestamp(data: bytes, decimals: int) -> str:
    """Return a TIMESTAMP as ``YYYY-MM-DDTHH:MM:SS[.ffffff]Z``, in UTC."""
    return timestamp_text(int.from_bytes(data[:4], "big"), _micros(data[4:]), decimals)


def timestamp_text(seconds: int, micros: int, decimals: int) -> str:
    """Return a time in UTC as text. The zero timestamp stays ``0000-00-00T00:00:00Z``."""
    if not seconds and not micros:
        return f"0000-00-00T00:00:00{_fraction(0, decimals)}Z"
    return f"{_second(seconds)}{_fraction(micros, decimals)}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Return a second in UTC as text. Changes of the same time follow one another."""
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"


def decode_time(data: bytes, decimals: int) -> str:
    """Return a TIME as ``[-]HH:MM:SS[.ffffff]``; it can have more than 24 hours."""
    whole = int.from_bytes(data[:3], "big") - _TIME_OFFSET
    size = len(data) - 3
    fraction = int.from_bytes(data[3:], "big")
    if whole < 0 and fraction:
        whole += 1
        fraction -= 1 << 8 * size
    packed = (whole << 24) + fraction * int(10 ** (6 - 2 * size))
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    clock = packed >> 24
    text = f"{clock >> 12 & 1023:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
    return f"{sign}{text}{_fraction(packed & 0xFFFFFF, decimals)}"


def decode_old_time(data: bytes) -> str:
    """Return a TIME in the format before MySQL 5.6."""
    value = int.from_bytes(data, "little", signed=True)
    sign, value = ("-", -value) if value < 0 else ("", value)
    return f"{sign}{value // 10000:02d}:{value // 100 % 100:02d}:{value % 100:02d}"
